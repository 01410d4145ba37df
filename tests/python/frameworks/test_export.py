"""What 'pawl export' writes of a language model, in Transformers and PEFT: it has the loss that the trainer has measured."""

import json
import os
import random
import struct
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Job, environment
from transformers import AutoModelForCausalLM

SEQUENCE, WINDOWS, VOCABULARY = 64, 8, 512


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A directory with tokens, each of which depends on the one before."""
    directory = tmp_path / "tokens"
    directory.mkdir()
    draws = random.Random(7)
    for name, count in (("train", 20_000), ("validation", 2_000)):
        ids = [0]
        while len(ids) < count:
            ids.append((3 * ids[-1] + draws.randrange(8)) % VOCABULARY)
        (directory / f"{name}.bin").write_bytes(struct.pack(f"<{count}I", *ids))
    return directory


def train(job: Job, data: Path, config: dict[str, Any], settings: dict[str, Any]) -> float:
    """Trains a language model on the data; returns the loss of the trainer's last evaluation."""
    source = {"data": {"source": "Tokens", "directory": str(data)}, "evaluation": {"windows": WINDOWS}}
    spec = {
        "workload": {"name": "slm", "config": {"sequence": SEQUENCE, **config, **source}},
        "settings": {"batchPerGpu": 4, "compile": "Graph", "learningRate": "1e-3", **settings},
        "train": {"items": 80, "checkpoint": {"every": "1h", "keep": 2}},
    }
    job.directory.mkdir(exist_ok=True)
    job.write([], spec)
    code, _ = job.run()
    assert code == 0
    [report] = job.directory.glob(".pawl/toy/attempts/*/train-*/report.json")
    return json.loads(report.read_text())["validation"]["metrics"]["loss"]


def export(job: Job, name: str, *options: str) -> Path:
    command = [os.environ["PAWL"], "export", "job.yaml", "--to", name, "--checkpoint", "last", *options]
    subprocess.run(command, cwd=job.directory, env=environment(), check=True)
    return job.directory / name


def loss(model: Path, data: Path) -> float:
    """The loss of the model in Transformers on the windows that the trainer evaluates."""
    count = WINDOWS * SEQUENCE + 1
    ids = torch.tensor(struct.unpack(f"<{count}I", (data / "validation.bin").read_bytes()[: 4 * count]))
    loaded = AutoModelForCausalLM.from_pretrained(model).eval()
    assert all(weight.dtype == torch.float32 for weight in loaded.parameters())
    with torch.no_grad():
        logits = loaded(ids[:-1].view(WINDOWS, SEQUENCE)).logits
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1).double(), ids[1:]).item()


@pytest.mark.parametrize("settings", [{}, {"ema": "0.9"}], ids=["weights", "averages"])
def test_a_model_from_random_weights(settings: dict[str, Any], job: Job, data: Path) -> None:
    measured = train(job, data, {"size": "tiny"}, settings)
    model = export(job, "model")
    assert loss(model, data) == pytest.approx(measured, rel=1e-5)
    if settings:
        assert loss(export(job, "itself", "--no-average"), data) != pytest.approx(measured, rel=1e-5)


def test_adapters_merged_and_alone(job: Job, data: Path) -> None:
    train(job, data, {"size": "tiny"}, {})
    base = export(job, "base")
    tuned = Job(job.directory / "tuned")
    lora = {"rank": 4, "alpha": 8.0, "dropout": 0.0, "targets": ["q", "v", "down"]}
    measured = train(tuned, data, {"weights": str(base), "method": "Lora", "lora": lora}, {"learningRate": "1e-2"})
    assert loss(base, data) != pytest.approx(measured, rel=1e-5), "the adapters have learned"
    for name, options in (("merged", ()), ("adapter", ("--adapter",))):
        assert loss(export(tuned, name, *options), data) == pytest.approx(measured, rel=1e-5), name
