"""A script that knows nothing of Pawl, with the manifest of 'pawl init'."""

import json
import os
import subprocess
from pathlib import Path

import yaml
from conftest import Job, environment, phases


def test_an_unchanged_trainer_of_hugging_face_reports_by_its_callback(job: Job) -> None:
    script = Path(__file__).with_name("unchanged.py")
    command = [os.environ["PAWL"], "init", str(script), "--framework", "hf", "--gpus", "0", "--batch", "4"]
    done = subprocess.run(command, cwd=job.directory, env=environment(), capture_output=True, text=True, check=True)
    assert "note" not in done.stdout, "the script parses its arguments"
    manifest = yaml.safe_load((job.directory / "job.yaml").read_text())
    written = {phase["name"]: phase for phase in manifest["spec"]["phases"]}
    manifest["metadata"]["name"] = "toy"
    manifest["spec"] |= {
        "phases": [
            written["fused-optimizer"] | {"minSpeedup": "0.5"},
            # The script has no such argument.
            written["attention"],
            written["gradient-checkpointing"] | {"minSpeedup": "3"},
        ],
        # Longer than 15 seconds: the updates come every 5.
        "analysis": {"warmupSteps": 50, "windowSteps": 500, "minPairs": 1, "maxPairs": 1, "reuseControl": True},
    }
    # JSON is YAML.
    (job.directory / "job.yaml").write_text(json.dumps(manifest))
    code, status = job.run()
    assert code == 0
    assert phases(status) == {
        "fused-optimizer": ("Accepted", "SinglePair"),
        "attention": ("Unsupported", "Unsupported"),
        "gradient-checkpointing": ("RolledBack", "SpeedBelowThreshold"),
    }
    message = next(phase["message"] for phase in status["phases"] if phase["name"] == "attention")
    assert "--attn_implementation" in message
    assert float(status["baseline"]["itemsPerSecond"]) < 4 / 0.04, "four items in a step of at least 0.04 s"
