"""Jobs that are run and read from Python."""

import json
import os
from pathlib import Path

import pytest
from conftest import Job
from pawl_launch import jobs
from test_zero_lines import COMMAND, MONITOR

RECORDED = Path(__file__).parents[2] / "device/ladders/ups-1gpu.json"


def test_a_job_is_run_and_read(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(job.directory)
    ladder = [{"name": "compile", "minSpeedup": "1.1", "settings": {"compile": "Graph"}}]
    job.write([], {"workload": {"command": COMMAND, "monitor": MONITOR}, "phases": ladder})
    done = jobs.run("job.yaml", program=os.environ["PAWL"])
    assert (done.name, done.stage) == ("toy", "Complete") and done.speedup is not None and done.speedup > 1.1
    (phase,) = done.phases()
    assert (phase["name"], phase["state"]) == ("compile", "Accepted")
    assert phase["lower"] <= phase["speedup"] and phase["pairs"] >= 3
    assert {launch["phase"] for launch in done.launches()} >= {"compile"}
    assert jobs.load("toy").status == done.status and [found.name for found in jobs.everything()] == ["toy"]

    (job.directory / "broken.yaml").write_text("apiVersion: pawl.dev/v1alpha1\n")
    with pytest.raises(jobs.JobError, match="exit code 2"):
        jobs.run("broken.yaml", program=os.environ["PAWL"])
    with pytest.raises(jobs.JobError, match="install pawl"):
        jobs.run("job.yaml", program="no-such-program")


def test_a_state_that_is_not_there_or_damaged_is_named(tmp_path: Path) -> None:
    with pytest.raises(jobs.JobError, match="no job was run there"):
        jobs.load(tmp_path)
    (tmp_path / "status.json").write_text("{")
    with pytest.raises(jobs.JobError, match="status.json"):
        jobs.load(tmp_path)
    assert jobs.everything(tmp_path / "nowhere") == []


def test_a_storage_is_read(tmp_path: Path) -> None:
    records = tmp_path / ".pawl/_records"
    records.mkdir(parents=True)
    document = {"format": 1, "job": {"metadata": {"name": "toy"}, "spec": {}}, "status": {"stage": "Training"}}
    (records / "status.json").write_text(json.dumps(document))
    found = jobs.load(tmp_path)
    assert (found.name, found.stage, found.directory) == ("toy", "Training", records)


def test_numbers_of_a_recorded_ladder_are_numbers(tmp_path: Path) -> None:
    (tmp_path / "status.json").write_text(json.dumps(json.loads(RECORDED.read_text())["job"]))
    done = jobs.load(tmp_path)
    rows = done.phases()
    assert len(rows) == 6 and all(isinstance(row["itemsPerSecond"], float) for row in rows if row["state"] == "Accepted")
    measured = [launch for launch in done.launches() if launch["kind"] == "Measure" and launch["outcome"] == "Done"]
    assert len(measured) > 20 and all(launch["itemsPerSecond"] > 0.0 for launch in measured)
