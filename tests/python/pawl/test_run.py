"""'pawl run' judges a script that uses the package."""

import sys
from pathlib import Path

import pytest
from conftest import Job, phases, wait_until

TRAINER = str(Path(__file__).with_name("trainer.py"))
COMMANDS = {"cold": [sys.executable, TRAINER], "warm": [sys.executable, "-m", "pawl_launch.warm", TRAINER]}


@pytest.fixture(params=COMMANDS)
def command(request: pytest.FixtureRequest) -> list[str]:
    """How the script is started: a warm interpreter changes no result."""
    return COMMANDS[request.param]


def test_phases_are_kept_and_rolled_back_with_their_reasons(job: Job, command: list[str]) -> None:
    fault = lambda kind: {"workload": {"fault": kind}}  # noqa: E731
    job.write(
        command,
        {
            "phases": [
                {"name": "compile", "minSpeedup": "1.1", "settings": {"compile": "Graph"}},
                {"name": "recompute", "minSpeedup": "1.02", "settings": {"activationCheckpointing": "Full"}},
                {"name": "nan", "settings": fault("NonFinite")},
                {"name": "hang", "settings": fault("Hang")},
                {
                    "name": "memory",
                    "minSpeedup": "1.2",
                    "settings": fault("OutOfMemory"),
                    "fallbacks": [{"when": ["OutOfMemory"], "settings": {"workload": {"fault": "none", "factor": 3}}}],
                },
                {"name": "attention", "settings": {"attention": "Flash"}},
            ],
            "lifecycle": {"hangTimeout": "10s"},
        },
    )
    code, status = job.run()
    assert code == 0
    found = phases(status)
    assert found["compile"] == ("Accepted", "SpeedAboveThreshold")
    assert found["recompute"] == ("RolledBack", "SpeedBelowThreshold")
    assert found["nan"] == ("RolledBack", "NonFinite")
    assert found["hang"] == ("RolledBack", "Hang")
    assert found["memory"] == ("Accepted", "SpeedAboveThreshold"), "with its fallback"
    assert next(phase for phase in status["phases"] if phase["name"] == "memory")["rung"] == 1
    # A setting that the script does not read is never measured as "no gain".
    assert found["attention"] == ("Unsupported", "Unsupported")
    assert status["stage"] == "Complete" and status["training"]["items"] == 400
    assert status["training"]["validation"]["metrics"]["loss"]


def test_interrupted_training_resumes_from_its_checkpoint(job: Job, command: list[str]) -> None:
    job.write(command, {})
    process = job.start(SLOW_TRAINING="1")
    wait_until(lambda: job.status().get("training", {}).get("steps", 0) > 5)
    assert job.interrupt(process) == 143
    saved = job.status()["training"]["lastCheckpoint"]
    assert saved["items"] > 0
    code, status = job.run()
    assert (code, status["training"]["items"]) == (0, 400)
    losses = status["training"]["validation"]["metrics"]["loss"]
    assert abs(float(losses) - 0.999**100) < 1e-4, "the weight was resumed, not begun again"
    assert (job.directory / ".pawl/toy/checkpoints").exists()
