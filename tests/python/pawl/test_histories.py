"""Random histories of a training under 'pawl run': kills at any time, edits, damaged checkpoints, an empty storage. What the status
says of the model is what trained it, nothing damaged is resumed, and nothing good is deleted. For the Python package, the built-in
trainer, and a script that knows nothing of Pawl.

A failure prints the seed and the history. ``PAWL_HISTORY=SEED`` repeats one, and ``PAWL_HISTORIES=N`` runs so many of each kind. The
histories of the decision core alone, of which there are many more, are in operator/decision/tests/decision/records.rs.
"""

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import Job
from history import History, read, seeds

TRAINER = str(Path(__file__).with_name("recorded.py"))
PLAIN = str(Path(__file__).with_name("recorded_plain.py"))


class OfThePackage(History):
    """The model is a record of what trained it, with a check sum."""

    def write(self) -> None:
        self.job.write([sys.executable, TRAINER, str(self.job.directory)], self.spec)

    def position(self, checkpoint: Path) -> int | None:
        items = checkpoint.name.partition("-")[0]
        return int(items) if items.isdigit() and len(items) == 15 else None

    def is_good(self, checkpoint: Path) -> bool:
        content, manifest = read(checkpoint / "weights.json"), read(checkpoint / "pawl.json")
        if not isinstance(content, dict) or not isinstance(manifest, dict):
            return False
        hashed = hashlib.sha256(json.dumps(content.get("weights")).encode()).hexdigest()
        return content.get("seal") == hashed

    def damage(self, good: list[Path]) -> None:
        checkpoint = self.random.choice([*good, good[-1], good[-1]])
        self.flip(checkpoint, checkpoint / "weights.json")

    def check_model(self, training: dict[str, Any], checkpoint: Path) -> None:
        self.check_record(training, json.loads((checkpoint / "weights.json").read_text())["weights"], 1)


class OfTheBuiltInTrainer(History):
    """The same segments, trained without interruption, give the same weights to the bit: with other settings, from a damaged
    checkpoint, or of other batches, they would differ."""

    RATES = ("1e-3", "2e-3", "5e-4")
    BATCH = 4
    STEPS = 80

    def __init__(self, job: Job, seed: int) -> None:
        super().__init__(job, seed)
        # Its learning rate is constant: where it decays, the model depends on train.items too.
        config = {"preset": "smoke", "data": {"training": 256, "validation": 16, "test": 16}}
        self.spec["workload"] = {"name": "vision-bdh", "config": config}
        self.spec["settings"] |= {"compile": "Graph"}
        self.spoiled: set[Path] = set()

    def write(self) -> None:
        self.job.write([], self.spec)

    def position(self, checkpoint: Path) -> int | None:
        _, found, rest = checkpoint.name.partition("-step-")
        return int(rest.partition("-by-")[0]) if found else None

    def is_good(self, checkpoint: Path) -> bool:
        manifest = read(checkpoint / "manifest.json")
        if checkpoint in self.spoiled or not isinstance(manifest, dict):
            return False
        files = [(checkpoint / shard["file"], shard["sha256"]) for shard in manifest["shards"]]
        return all(path.exists() and hashlib.sha256(path.read_bytes()).hexdigest() == known for path, known in files)

    def damage(self, good: list[Path]) -> None:
        checkpoint = self.random.choice([*good, good[-1], good[-1]])
        self.spoiled.add(checkpoint)
        self.flip(checkpoint, self.random.choice(sorted(checkpoint.iterdir())))

    def check_model(self, training: dict[str, Any], checkpoint: Path) -> None:
        directory = self.job.directory / "again"
        directory.mkdir()
        again = OfTheBuiltInTrainer(Job(directory), 0)
        again.spec["train"]["onChange"] = "Continue"
        for part in training["segments"]:
            again.spec["settings"]["learningRate"] = part["settings"]["learningRate"]
            again.spec["seeds"] = [part["seed"]]
            again.spec["train"]["items"] = part["toItems"]
            again.write()
            code, status = again.job.run()
            assert code == 0, status
        (reference,) = [good[-1] for _, good in again.trainings() if good]
        self.say(f"{[(part['toItems'], part['settings']['learningRate'], part['seed']) for part in training['segments']]}")
        assert weights(checkpoint) == weights(reference), "the segments of the status give another model"


def weights(checkpoint: Path) -> dict[str, str]:
    """The hash of each file of tensors."""
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in checkpoint.glob("*.safetensors")}


class OfAPlainScript(History):
    """What a script writes has no hashes: what can be seen is that files are missing, and that its training had diverged."""

    def __init__(self, job: Job, seed: int) -> None:
        super().__init__(job, seed)
        command = [
            sys.executable, PLAIN, "--steps=$(launch.steps)", "--batch-size=$(settings.batchPerGpu)",
            "--learning-rate=$(settings.learningRate)", "--seed=$(seed)", "--kind=$(launch.kind)",
            "--checkpoints=$(checkpoint.dir)", "$(checkpoint.latest:+--resume=$(checkpoint.latest))",
            f"--notes={job.directory}",
        ]  # fmt: skip
        monitor = {"training": r"step (?<step>\d+)/\d+ loss (?<loss>\S+)", "validation": r"validation loss (?<loss>\S+)"}
        self.spec["workload"] = {"command": command, "monitor": monitor}

    def write(self) -> None:
        self.job.write([], self.spec)

    def position(self, checkpoint: Path) -> int | None:
        name, _, step = checkpoint.name.partition("-")
        return int(step) if name == "step" and step.isdigit() else None

    def is_good(self, checkpoint: Path) -> bool:
        content = read(checkpoint / "weights.json")
        return isinstance(content, dict) and not content["diverged"] and (checkpoint / "state.json").exists()

    def damage(self, good: list[Path]) -> None:
        """The newest one, if no other is incomplete: only the newest one may be, and what it lacks shows in the one before."""
        every = sorted((at, path) for path in good[-1].parent.iterdir() if (at := self.position(path)) is not None)
        if [path for _, path in every[-2:]] == good[-2:]:
            (good[-1] / "state.json").unlink()
            self.say(f"torn: {good[-1]}")

    def diverges(self) -> None:
        """The next training diverges, unless it ends before. Nobody is killed then: who reads the line that says so sets the damage
        aside, a moment later."""
        (self.job.directory / "diverge").touch()
        code, status = self.job.run()
        (self.job.directory / "diverge").unlink(missing_ok=True)
        self.say(f"diverges: {code}, {status.get('failure')}")

    def happens(self) -> list[Any]:
        return [*super().happens(), self.diverges]

    def check_model(self, training: dict[str, Any], checkpoint: Path) -> None:
        self.check_record(training, json.loads((checkpoint / "weights.json").read_text())["weights"], self.BATCH)


@pytest.mark.parametrize("seed", seeds(6))
def test_whatever_happens_the_status_says_what_trained_the_model(job: Job, seed: int) -> None:
    print(f"PAWL_HISTORY={seed}")
    OfThePackage(job, seed).run(9)


@pytest.mark.parametrize("seed", seeds(2))
def test_whatever_happens_the_segments_give_the_model_of_the_built_in_trainer(job: Job, seed: int) -> None:
    print(f"PAWL_HISTORY={seed}")
    OfTheBuiltInTrainer(job, seed).run(5)


@pytest.mark.parametrize("seed", seeds(3))
def test_whatever_happens_the_status_says_what_trained_the_model_of_a_script(job: Job, seed: int) -> None:
    print(f"PAWL_HISTORY={seed}")
    OfAPlainScript(job, seed).run(9)
