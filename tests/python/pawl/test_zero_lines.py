"""'pawl run' judges a script that knows nothing of Pawl, by placeholders in its command and patterns over its output."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import Job, environment, phases, wait_until

COMMAND = [
    sys.executable,
    str(Path(__file__).with_name("plain.py")),
    "--steps=$(launch.steps)",
    "--batch-size=$(settings.batchPerGpu)",
    "$(settings.compile=Graph:+--compile)",
    "$(settings.activationCheckpointing=Full:+--recompute)",
    "$(settings.workload.fault:+--fault=$(settings.workload.fault))",
    "--checkpoints=$(checkpoint.dir)",
    "$(checkpoint.latest:+--resume=$(checkpoint.latest))",
]
MONITOR = {
    "training": r"step (?<step>\d+)/\d+\tloss (?<loss>\S+)",
    "validation": r"validation loss (?<loss>\S+) accuracy (?<accuracy>\S+)",
}


def spec(**more: Any) -> dict[str, Any]:
    return {"workload": {"command": COMMAND, "monitor": MONITOR}, **more}


def test_phases_of_an_unchanged_script_are_kept_and_rolled_back(job: Job) -> None:
    fault = lambda kind: {"workload": {"fault": kind}}  # noqa: E731
    ladder = [
        {"name": "compile", "minSpeedup": "1.1", "settings": {"compile": "Graph"}},
        {"name": "recompute", "settings": {"activationCheckpointing": "Full"}},
        {"name": "nan", "settings": fault("NonFinite")},
        {"name": "memory", "settings": fault("OutOfMemory")},
        {"name": "hang", "settings": fault("Hang")},
        {"name": "attention", "settings": {"attention": "Flash"}},
        {"name": "fuse", "settings": {"compile": "Fuse"}},
    ]
    job.write([], spec(phases=ladder, lifecycle={"hangTimeout": "5s"}))
    code, status = job.run()
    assert code == 0
    assert phases(status) == {
        "compile": ("Accepted", "SpeedAboveThreshold"),
        "recompute": ("RolledBack", "SpeedBelowThreshold"),
        "nan": ("RolledBack", "NonFinite"),
        "memory": ("RolledBack", "OutOfMemory"),
        "hang": ("RolledBack", "Hang"),
        # No placeholder uses these values: they are never measured as "no gain".
        "attention": ("Unsupported", "Unsupported"),
        "fuse": ("Unsupported", "Unsupported"),
    }
    assert status["stage"] == "Complete" and status["training"]["items"] == 400
    assert float(status["training"]["validation"]["metrics"]["accuracy"]) == 0.5


@pytest.mark.parametrize("validates", [True, False])
def test_losses_that_differ_by_rounding_lead_to_the_quality_gates(job: Job, validates: bool) -> None:
    monitor = {name: pattern for name, pattern in MONITOR.items() if validates or name == "training"}
    ladder = [{"name": "compile", "minSpeedup": "1.1", "settings": {"compile": "Graph"}}]
    analysis = {"warmupSteps": 5, "windowSteps": 8, "qualityItems": 40}
    workload = {"command": [*COMMAND, "--rounding=0.01"], "monitor": monitor}
    job.write([], {"workload": workload, "phases": ladder, "analysis": analysis})
    code, status = job.run()
    verdict = ("Accepted", "SpeedAboveThreshold") if validates else ("Inconclusive", "NumericsUnclear")
    assert code == 0 and phases(status) == {"compile": verdict}
    (phase,) = status["phases"]
    assert "training losses differ by" in phase["message"]
    assert ("judged as numerics: Changed" in phase["message"]) == validates
    assert [launch["kind"] for launch in phase["launches"]].count("Quality") == int(validates)


def test_the_manifest_of_init_has_the_phases_that_a_script_has_options_for(job: Job) -> None:
    command = [os.environ["PAWL"], "init", str(Path(__file__).with_name("plain.py")), "--gpus", "0"]
    done = subprocess.run(command, cwd=job.directory, env=environment(), capture_output=True, text=True, check=True)
    assert "note: loader-workers is left out: the script has no option --workers" in done.stdout
    file = job.directory / "job.yaml"
    text = file.read_text()
    # What a person adapts: the patterns, and less to measure.
    for written, adapted in [
        (r"step (?<step>\d+): loss (?<loss>\S+)", MONITOR["training"]),
        (r"validation: loss (?<loss>\S+)", MONITOR["validation"]),
        ("{warmupSteps: 20, windowSteps: 100, qualityItems: 20000}", "{warmupSteps: 5, windowSteps: 8, qualityItems: 40}"),
        ("seeds: [42, 43, 44]", "seeds: [42]"),
    ]:
        assert written in text
        text = text.replace(written, adapted)
    file.write_text(text)
    code, status = job.run()
    assert code == 0
    judged = phases(status)
    assert set(judged) == {"compile", "larger-batch"}
    assert judged["compile"] == ("Accepted", "SpeedAboveThreshold")


def test_a_training_resumes_from_the_newest_checkpoint_of_the_script(job: Job) -> None:
    job.write([], spec(train={"items": 400}))
    process = job.start()
    wait_until(lambda: job.status().get("training", {}).get("steps", 0) > 45)
    assert job.interrupt(process) == 143
    code, status = job.run()
    assert (code, status["training"]["items"]) == (0, 400)
    logs = [path.read_text() for path in job.directory.glob(".pawl/toy/attempts/*/train-*/rank-0.log")]
    assert any("begins after step 40" in log or "begins after step 60" in log for log in logs)


def test_a_dry_run_prints_the_command_of_each_launch(job: Job) -> None:
    compiled = {"name": "compile", "settings": {"compile": "Graph"}}
    job.write([], spec(phases=[compiled, {"name": "attention", "settings": {"attention": "Flash"}}]))
    command = [os.environ["PAWL"], "run", "--dry-run", "job.yaml"]
    done = subprocess.run(command, cwd=job.directory, env=environment(), capture_output=True, text=True, check=True)
    baseline, compile_, attention, training = done.stdout.split("\n\n")[:4]
    assert baseline.startswith("# baseline (Measure, 13 steps)\n") and "--steps=13 --batch-size=4" in baseline
    assert "--compile" not in baseline and "--compile" in compile_
    assert "# Unsupported: settings.attention: no placeholder uses this value" in attention
    assert "--steps=100" in training and ".pawl/toy/checkpoints" in training
    assert not (job.directory / ".pawl").exists()
