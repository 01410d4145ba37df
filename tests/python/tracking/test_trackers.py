"""A job in a server of MLflow and in the files of TensorBoard and W&B, from PyPI, read by their own clients."""

import json
import os
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import Job, environment, phases, wait_until
from mlflow import MlflowClient
from mlflow.entities import Run
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from wandb.proto.wandb_internal_pb2 import Record
from wandb.sdk.internal.datastore import DataStore
from wandb.sdk.lib.proto_util import dict_from_proto_list
from wandb_server import WandbServer

TRAINER = Path(__file__).with_name("trainer.py")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    place = tmp_path / "server"
    place.mkdir()
    command += ["--backend-store-uri", f"sqlite:///{place}/mlflow.db", "--artifacts-destination", str(place)]
    with (place / "log").open("w") as log:
        process = subprocess.Popen(command, cwd=place, stdout=log, stderr=log)
        address = f"http://127.0.0.1:{port}"

        def answers() -> bool:
            assert process.poll() is None, (place / "log").read_text()
            try:
                return bool(urllib.request.urlopen(f"{address}/health", timeout=5).status == 200)
            except OSError:
                return False

        try:
            wait_until(answers)
            yield address
        finally:
            process.terminate()
            process.wait(60)


def runs(client: MlflowClient, experiment: str) -> dict[str, Run]:
    """The runs of an experiment by name, of which each is there once."""
    found = client.get_experiment_by_name(experiment)
    assert found is not None, experiment
    all = client.search_runs([found.experiment_id])
    named = {run.info.run_name: run for run in all}
    assert len(named) == len(all), [run.info.run_name for run in all]
    return named


class Offline:
    """A run in a directory of W&B, whose file wandb reads."""

    def __init__(self, file: Path) -> None:
        store = DataStore()
        store.open_for_scan(str(file))
        self.directory = file.parent
        self.history: list[dict[str, Any]] = []
        self.ends: list[str] = []
        while (data := store.scan_data()) is not None:
            record = Record()
            record.ParseFromString(data)
            kind = record.WhichOneof("record_type")
            if kind == "run":
                self.run = record.run
            elif kind == "history":
                self.history.append(dict_from_proto_list(record.history.item))
                assert record.history.step.num == self.history[-1]["_step"]
            elif kind == "summary":
                self.summary = dict_from_proto_list(record.summary.update)
            elif kind != "header":
                self.ends.append(kind)
                assert kind != "exit" or record.exit.exit_code == 0
        # wandb uploads what is in a directory whose name has the same identifier.
        assert file.name == f"run-{self.run.run_id}.wandb" and self.directory.name.endswith(f"-{self.run.run_id}")

    @property
    def config(self) -> dict[str, Any]:
        return dict_from_proto_list(self.run.config.update)


def offline(folder: Path) -> dict[str, Offline]:
    """The runs below a folder by name, of which each is there once."""
    files = list(folder.glob("wandb/offline-run-*/run-*.wandb"))
    named = {run.run.display_name: run for run in map(Offline, files)}
    assert len(named) == len(files), files
    return named


def upload(directory: Path, runs: dict[str, Offline]) -> None:
    """Uploads runs with ``wandb sync``, and compares what a server is sent with what wandb reads."""
    with WandbServer() as server:
        command = [str(Path(sys.executable).with_name("wandb")), "sync", *(str(run.directory) for run in runs.values())]
        access = environment(WANDB_BASE_URL=server.address, WANDB_API_KEY="a" * 40, HOME=str(directory))
        subprocess.run(command, cwd=directory, env=access, check=True, timeout=120)
    known = {run.run.run_id: run for run in runs.values()}
    assert server.groups == {id: run.run.run_group for id, run in known.items()}
    assert server.exits == dict.fromkeys(known, 0)
    for id, run in known.items():
        assert sorted(server.history.get(id, []), key=lambda row: row["_step"]) == run.history
        assert run.summary.items() <= server.summaries[id].items()


def test_a_job_is_a_run_with_a_child_for_each_phase(job: Job, server: str) -> None:
    job.write(
        [sys.executable, str(TRAINER)],
        {
            "phases": [
                {"name": "graph", "minSpeedup": "1.1", "settings": {"compile": "Graph"}},
                {"name": "recompute", "minSpeedup": "1.1", "settings": {"activationCheckpointing": "None"}},
            ],
        },
    )
    code, status = job.run(MLFLOW_TRACKING_URI=server, MLFLOW_EXPERIMENT_NAME="jobs of a team")
    assert code == 0
    verdicts = phases(status)
    assert verdicts["graph"] == ("Accepted", "SpeedAboveThreshold")
    client = MlflowClient(server)
    found = runs(client, "jobs of a team")
    parent = found["toy"]
    assert parent.info.status == "FINISHED" and parent.data.metrics["speedup"] > 1.1
    for name, (state, reason) in verdicts.items():
        child = found[name]
        assert child.data.tags["mlflow.parentRunId"] == parent.info.run_id
        assert (child.data.tags["pawl.verdict"], child.data.tags["pawl.reason"]) == (state, reason)
    graph = found["graph"]
    assert graph.data.params == {"compile": "Graph"} and graph.data.metrics["speedup"] > 1.1
    training = found["training"]
    assert training.data.params["compile"] == "Graph"
    curve = client.get_metric_history(training.info.run_id, "loss")
    assert len(curve) > 5 and max(point.step for point in curve) == 400
    assert training.data.metrics["validation_accuracy"] == 0.5

    # What is there already is not logged again.
    command = [os.environ["PAWL"], "track", "job.yaml"]
    tracker = environment(MLFLOW_TRACKING_URI=server, MLFLOW_EXPERIMENT_NAME="jobs of a team")
    subprocess.run(command, cwd=job.directory, env=tracker, check=True)
    again = runs(client, "jobs of a team")
    assert {name: run.info.run_id for name, run in again.items()} == {name: run.info.run_id for name, run in found.items()}
    assert len(client.get_metric_history(training.info.run_id, "loss")) == len(curve)

    # TensorBoard reads the same from files.
    subprocess.run(command, cwd=job.directory, env=environment(TENSORBOARD_LOGGING_DIR="logs"), check=True)
    read = EventAccumulator(str(job.directory / "logs/toy/phase-graph")).Reload()
    assert read.Scalars("speedup")[0].value == pytest.approx(graph.data.metrics["speedup"])
    assert read.Tensors("verdict")[0].tensor_proto.string_val == [b"Accepted"]
    points = EventAccumulator(str(job.directory / "logs/toy/training")).Reload().Scalars("loss")
    assert [point.step for point in points] == [point.step for point in curve]

    # wandb reads the same from its own files.
    tracker = environment(WANDB_DIR="logs", WANDB_PROJECT="speech", WANDB_ENTITY="team-a")
    subprocess.run(command, cwd=job.directory, env=tracker, check=True)
    written = offline(job.directory / "logs")
    assert written.keys() == found.keys()
    assert all((run.run.project, run.run.entity) == ("speech", "team-a") for run in written.values())
    [group] = {run.run.run_group for run in written.values()}
    assert group.startswith("toy-")
    assert {run.run.job_type for run in written.values()} >= {"job", "baseline", "phase", "training"}
    for name, (state, reason) in verdicts.items():
        assert (written[name].summary["verdict"], written[name].summary["reason"]) == (state, reason)
    phase = written["graph"]
    assert phase.config == {"compile": "Graph"} and phase.run.job_type == "phase"
    assert phase.summary["speedup"] == pytest.approx(graph.data.metrics["speedup"])
    files = phase.directory / "files"
    assert yaml.safe_load((files / "config.yaml").read_text()) == {"compile": {"value": "Graph"}}
    assert json.loads((files / "wandb-summary.json").read_text()) == phase.summary
    history = [(row["_step"], row["loss"]) for row in written["training"].history if "loss" in row]
    assert history == [(point.step, pytest.approx(point.value)) for point in curve]
    assert all(run.ends == ["exit", "final", "footer"] for run in written.values())

    upload(job.directory, written)

    # Written again, a run stays the same one, and uploaded.
    subprocess.run(command, cwd=job.directory, env=tracker, check=True)
    rewritten = offline(job.directory / "logs")
    assert {name: run.directory for name, run in rewritten.items()} == {name: run.directory for name, run in written.items()}
    assert len(list((job.directory / "logs").glob("wandb/*/*.wandb.synced"))) == len(written)

    # The script's own tracker reports the training, and nothing that was measured.
    own = runs(client, "of-the-script")
    assert list(own) == ["Train"]
    assert client.get_metric_history(own["Train"].info.run_id, "loss")
