"""'pawl run' judges the manifests of the examples, and what happens to their launches."""

import sys

import pytest
from conftest import ROOT, Job, phases, wait_until
from test_examples import FRAMEWORKS, PLANTED, script, settings


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_example(framework: str, job: Job) -> None:
    example = ROOT / "examples" / framework
    code, status = job.run(example / "cpu.yaml", SCRIPTS=str(example))
    assert code == 0
    found = phases(status)
    assert found.pop("larger-batch") == ("Accepted", "SpeedAboveThreshold")
    assert found.pop("high-rate") == ("RolledBack", "NonFinite")
    [(state, reason)] = found.values()
    assert state in ("RolledBack", "Inconclusive") and reason.startswith("Speed"), reason
    assert status["stage"] == "Complete"
    first, last = (status["training"][name]["metrics"]["loss"] for name in ("firstValidation", "validation"))
    assert float(last) < float(first), "it has learned"
    assert list(job.directory.glob(".pawl/*/checkpoints/*/pawl.json"))


def test_lora_is_judged_by_its_quality(job: Job) -> None:
    example = ROOT / "examples/huggingface"
    code, status = job.run(example / "lora.yaml", SCRIPTS=str(example))
    assert code == 0
    assert phases(status) == {
        "lora": ("Accepted", "SpeedAboveThreshold"),
        "lora-low-rate": ("RolledBack", "QualityBelowThreshold"),
    }
    assert status["stage"] == "Complete"
    assert list(job.directory.glob(".pawl/*/checkpoints/*/adapter_model.safetensors"))


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_an_example_runs_out_of_memory_hangs_stops_and_resumes(framework: str, job: Job) -> None:
    # The package does not read the fault: a placeholder uses it.
    command = [sys.executable, str(PLANTED), str(script(framework)), "$(settings.workload.fault:-none)"]
    spec = {
        "settings": settings(),
        "phases": [
            {"name": "hang", "settings": {"workload": {"fault": "Hang"}}},
            {
                "name": "larger-batch",
                "minSpeedup": "0.1",
                "settings": {"batchPerGpu": 2, "workload": {"fault": "OutOfMemory"}},
                "fallbacks": [{"when": ["OutOfMemory"], "settings": {"batchPerGpu": 8, "workload": {"fault": "none"}}}],
            },
        ],
        "analysis": {"warmupSteps": 3, "windowSteps": 12, "minPairs": 1, "maxPairs": 1, "reuseControl": True},
        "train": {"items": 3200, "checkpoint": {"every": "1h", "keep": 2}},
        # Longer than the end of a Python process on a busy machine.
        "lifecycle": {"hangTimeout": "60s"},
    }
    job.write(command, spec)
    process = job.start(SLOW="0.2")
    wait_until(lambda: job.status().get("training", {}).get("steps", 0) > 5, seconds=1200)
    assert job.interrupt(process) == 143
    found = phases(job.status())
    assert found["hang"] == ("RolledBack", "Hang")
    assert found["larger-batch"][0] == "Accepted"
    assert next(phase for phase in job.status()["phases"] if phase["name"] == "larger-batch")["rung"] == 1
    saved = job.status()["training"]["lastCheckpoint"]["items"]
    assert 0 < saved < 3200

    code, status = job.run()
    assert (code, status["stage"], status["training"]["items"]) == (0, "Complete", 3200)
    logs = [path.read_text() for path in job.directory.glob(".pawl/toy/attempts/*/train-*/rank-0.log")]
    # Two micro-steps of eight items in each step.
    assert any(f"{(3200 - saved) // 8} backward passes" in log for log in logs), "it resumed"
