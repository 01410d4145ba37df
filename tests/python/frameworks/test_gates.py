"""Every gate of every script's manifest can pass and can fail: a run of each kind is planted, and judged by 'pawl run', with the gates
and the seeds of the manifest, on its script at smoke size."""

import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import ROOT, Job
from test_examples import FRAMEWORKS, script, settings

MANIFESTS = sorted(path for framework in FRAMEWORKS for path in (ROOT / "examples" / framework).glob("*.yaml"))
# Of the model of the CPU, for manifests for GPUs: enough to learn four times what the gate allows.
ITEMS = {"pytorch": 2048, "huggingface": 2048, "lightning": 1024, "accelerate": 16384}
# Gates judge here, not speed. On a busy machine the halves of a short window differ, its pair is measured again, and after two such
# pairs the verdict is NotSteady instead of that of the gate. Without times a launch cannot tell.
UNTIMED = "import pawl_launch.throughput\npawl_launch.throughput.is_steady = lambda spans: None\n"


def name(path: Path) -> str:
    return f"{path.parent.name}/{path.name}"


def spec_of(path: Path) -> dict[str, Any]:
    return yaml.safe_load(path.read_text())["spec"]


def planted(path: Path) -> dict[str, Any]:
    """The job of a manifest at smoke size, with a phase that learns as well as the baseline, and one that does not."""
    spec = spec_of(path)
    workload, given, items = spec["workload"].get("config", {}), spec["settings"], spec["analysis"]["qualityItems"]
    if spec["trainer"]["gpusPerReplica"]:
        workload, given, items = {}, settings(), ITEMS[path.parent.name]
    passes, fails = {"optimizerKernel": "Fused"}, {"learningRate": "1e-9"}
    if path.stem == "lora":
        passes, fails = (phase["settings"] for phase in spec["phases"])
    phase = lambda name, given: {"name": name, "minSpeedup": "0.05", "numerics": "Changed", "settings": given}  # noqa: E731
    return {
        "workload": {"config": workload},
        # Without the accumulation of the manifests for CPUs: it takes longer, and changes nothing of what is learnt.
        "settings": {"batchPerGpu": 32, "globalBatch": 32, "learningRate": given["learningRate"]},
        "seeds": spec["seeds"],
        "phases": [phase("passes", passes), phase("fails", fails)],
        "analysis": {"warmupSteps": 1, "windowSteps": 10, "minPairs": 1, "maxPairs": 1, "qualityItems": items},
        "gates": spec["gates"],
        "train": {},
        "lifecycle": {"hangTimeout": "120s"},
    }


def cases() -> list[Path]:
    """Manifests without those that would plant the same as another one."""
    found: dict[str, Path] = {}
    for path in MANIFESTS:
        found.setdefault(f"{path.parent.name} {planted(path)}", path)
    return list(found.values())


def test_every_gate_of_every_manifest_has_a_planted_pair() -> None:
    assert {path.parent.name for path in MANIFESTS} == set(FRAMEWORKS)
    for path in MANIFESTS:
        gates = spec_of(path).get("gates", {})
        assert set(gates) == {"validationLossDelta"}, f"{name(path)}: plant a run that passes and one that fails for each new gate"


@pytest.mark.parametrize("path", cases(), ids=name)
def test_every_gate_passes_and_fails(path: Path, job: Job) -> None:
    spec, copy = planted(path), job.directory / "train.py"
    copy.write_text(UNTIMED + script(path.parent.name).read_text())
    # A warm interpreter imports the framework once for all launches of an attempt.
    spec["workload"]["command"] = [sys.executable, "-m", "pawl_launch.warm", str(copy)]
    job.write([], spec)
    code, status = job.run()
    assert code == 0, status
    found = {phase["name"]: phase for phase in status["phases"]}
    assert found["passes"]["state"] == "Accepted", found["passes"]
    failed = found["fails"]
    assert (failed["state"], failed["reason"]) == ("RolledBack", "QualityBelowThreshold"), failed
    assert all(gate in failed["message"] for gate in spec["gates"]), failed["message"]
    assert status["bundle"]["reason"] == "GoalMet", status["bundle"]
