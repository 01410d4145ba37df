"""What happens to a training under 'pawl run' in a random history, and what must hold whatever happens.

Each kind of trainer says where its checkpoints are, which are good, how they are damaged, and what trained a model.
"""

import json
import os
import random
import signal
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from conftest import Job


class History(ABC):
    """A job, and what happens to it."""

    RATES = ("0.1", "0.2", "0.3")
    BATCH = 8
    STEPS = 300

    def __init__(self, job: Job, seed: int) -> None:
        self.job = job
        self.random = random.Random(seed)
        self.spec: dict[str, Any] = {
            "settings": {"batchPerGpu": self.BATCH, "learningRate": self.RATES[0]},
            "seeds": [1],
            "train": {"items": self.BATCH * self.STEPS, "checkpoint": {"every": "1s", "keep": 3}},
            "lifecycle": {"hangTimeout": "60s", "maxRestarts": 0},
        }
        self.storage = job.directory / ".pawl/toy/checkpoints"
        self.away = job.directory / "away"
        # As they were after the last event.
        self.best: dict[str, int] = {}

    @abstractmethod
    def write(self) -> None:
        """Writes the manifest."""

    @abstractmethod
    def position(self, checkpoint: Path) -> int | None:
        """The items or steps of a checkpoint; none for another entry of the storage."""

    @abstractmethod
    def is_good(self, checkpoint: Path) -> bool:
        """Whether a checkpoint is complete and not damaged."""

    @abstractmethod
    def damage(self, good: list[Path]) -> None:
        """Damages one of several good checkpoints of a training, the newest last, in a way that must be noticed."""

    @abstractmethod
    def check_model(self, training: dict[str, Any], checkpoint: Path) -> None:
        """The model is what the status says."""

    def say(self, what: str) -> None:
        print(what, flush=True)

    def directories(self) -> list[Path]:
        """The directory of each training."""
        return [self.storage, *self.storage.glob("pawl-training-*")] if self.storage.exists() else []

    def entries(self) -> set[Path]:
        """All checkpoints, good or not."""
        paths = (path for directory in self.directories() for path in directory.iterdir())
        return {path for path in paths if self.position(path) is not None}

    def trainings(self) -> Iterator[tuple[str, list[Path]]]:
        """Each training, by its directory, with its good checkpoints, the newest last."""
        for directory in self.directories():
            found = [(self.position(path), path) for path in directory.iterdir()]
            good = sorted((at, path) for at, path in found if at is not None and self.is_good(path))
            yield str(directory.relative_to(self.storage)), [path for _, path in good]

    def stopped(self) -> None:
        """The job runs for a while, and is stopped or killed: at once, or a moment after it has written so many checkpoints, however
        busy the machine is."""
        how = self.random.choice([signal.SIGTERM, signal.SIGKILL, signal.SIGINT])
        written, seconds = self.random.choice([0, 1, 1, 2]), self.random.uniform(0.0, 1.0)
        before = self.entries()
        process = self.job.start()
        end = time.monotonic() + 30
        while process.poll() is None and len(self.entries() - before) < written and time.monotonic() < end:
            time.sleep(0.05)
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.send_signal(how)
        process.communicate(timeout=60)
        now = self.job.status().get("stage")
        self.say(f"{seconds:.1f} s after {written} checkpoints {how.name}: {process.returncode}, {now}")
        # Its ranks end with it, at the latest when they notice.
        time.sleep(0.3)

    def edited(self) -> None:
        field = self.random.choice(["rate", "rate", "rate", "seed", "items", "items", "change"])
        if field == "rate":
            self.spec["settings"]["learningRate"] = self.random.choice(self.RATES)
        elif field == "seed":
            self.spec["seeds"] = [self.random.randint(1, 2)]
        elif field == "items":
            self.spec["train"]["items"] = self.BATCH * self.random.choice([self.STEPS * 2 // 3, self.STEPS, self.STEPS * 4 // 3])
        else:
            self.spec["train"]["onChange"] = self.random.choice(["Continue", "Restart"])
        self.say(f"edited: {self.spec['settings']} {self.spec['seeds']} {self.spec['train']}")
        self.write()

    def damaged(self) -> None:
        # The model of a finished training is not read again.
        if self.job.status().get("stage") == "Complete":
            return
        # One is left: a training of which only damage is left does not begin anew, as other tests show.
        several = [good for _, good in self.trainings() if len(good) > 1]
        if several:
            self.damage(self.random.choice(several))
            self.best = self.newest()

    def flip(self, checkpoint: Path, file: Path) -> None:
        content = bytearray(file.read_bytes())
        content[self.random.randrange(len(content))] ^= 1
        file.write_bytes(content)
        self.say(f"damaged: {file}")

    def emptied(self) -> None:
        """Another storage is mounted for one run: nothing begins from nothing."""
        known = self.job.status().get("training", {}).get("lastCheckpoint")
        if known is None or not any(good for _, good in self.trainings()):
            return
        self.storage.rename(self.away)
        code, _ = self.job.run()
        self.say(f"with an empty storage: {code}, known: {known}")
        for directory, good in self.trainings():
            # A new training that the spec asks for has a directory of its own, and needs nothing of the old one.
            if good:
                assert directory != "." and not (self.away / directory).exists(), f"a training began from nothing in {directory}"
                (self.storage / directory).rename(self.away / directory)
        subprocess.run(["rm", "-rf", self.storage], check=True)
        self.away.rename(self.storage)

    def newest(self) -> dict[str, int]:
        """Position of the newest good checkpoint of each training, by its directory."""
        return {directory: self.position(good[-1]) or 0 for directory, good in self.trainings() if good}

    def kept(self) -> None:
        """Nothing good was deleted that nothing newer replaces."""
        now = self.newest()
        for directory, position in self.best.items():
            assert now.get(directory, 0) >= position, f"{directory}: the good checkpoint at {position} is gone: {now}"
        self.best |= now

    def settle(self) -> dict[str, Any]:
        """Nothing happens any more; a job that has failed is tried again by its user."""
        for retry in range(3):
            code, status = self.job.run()
            self.say(f"to the end: {code}, {status.get('failure')}")
            if status.get("stage") == "Complete":
                break
            self.spec["lifecycle"]["maxRestarts"] = retry + 1
            self.write()
        return self.job.status()

    def happens(self) -> list[Any]:
        """What may happen, as often as it is named."""
        return [self.stopped, self.stopped, self.edited, self.damaged, self.emptied]

    def run(self, length: int) -> None:
        """A history of ``length`` events, and its end."""
        self.write()
        for event in range(length):
            # At first, something to damage.
            (self.stopped if event == 0 else self.random.choice(self.happens()))()
            self.kept()
        status = self.settle()
        self.kept()
        assert not (self.job.directory / "damage-was-resumed").exists()
        assert status["stage"] == "Complete", status.get("failure")
        training = status["training"]
        assert training["items"] >= self.spec["train"]["items"], "steps were asked for"
        assert training["segments"][-1]["seed"] == self.spec["seeds"][0], "another training was asked for"
        checkpoint = self.storage / training.get("directory", "") / training["lastCheckpoint"]["name"]
        self.check_model(training, checkpoint)

    def check_record(self, training: dict[str, Any], weights: list[list[float]], items: int) -> None:
        """The record in a model, whose positions are of so many items each, against the status."""
        begin = 0
        for end, rate, seed in weights:
            middle = (begin + int(end) * items) // 2
            part = next(part for part in training["segments"] if part["fromItems"] <= middle < part["toItems"])
            said = (float(part["settings"]["learningRate"]), part["seed"])
            assert said == (rate, seed), f"items {begin} to {int(end) * items} were trained with {rate, seed}, not {said}"
            begin = int(end) * items


def seeds(default: int) -> list[int]:
    """The histories to run: ``PAWL_HISTORY=SEED`` one, ``PAWL_HISTORIES=N`` so many."""
    if "PAWL_HISTORY" in os.environ:
        return [int(os.environ["PAWL_HISTORY"])]
    return list(range(int(os.environ.get("PAWL_HISTORIES", default))))


def read(path: Path) -> Any:
    """The JSON in a file; none where it is not whole."""
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
