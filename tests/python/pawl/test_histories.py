"""Random histories of a training under 'pawl run': kills at any time, edits, damaged checkpoints, an empty storage. What the status
says of the model is what trained it, and nothing damaged is resumed.

A failure prints the seed and the history. ``PAWL_HISTORY=SEED`` repeats one. The histories of the decision core alone, of which there
are many more, are in operator/decision/tests/decision/records.rs.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from conftest import Job

TRAINER = str(Path(__file__).with_name("recorded.py"))
SEEDS = [int(os.environ["PAWL_HISTORY"])] if "PAWL_HISTORY" in os.environ else range(6)


class History:
    """A job, and what happens to it."""

    def __init__(self, job: Job, seed: int) -> None:
        self.job = job
        self.random = random.Random(seed)
        self.spec: dict[str, Any] = {
            "settings": {"batchPerGpu": 8, "learningRate": "0.1"},
            "seeds": [1],
            "train": {"items": 2400, "checkpoint": {"every": "1s", "keep": 3}},
            "lifecycle": {"hangTimeout": "60s", "maxRestarts": 0},
        }
        self.storage = job.directory / ".pawl/toy/checkpoints"
        self.away = job.directory / "away"

    def say(self, what: str) -> None:
        print(what, flush=True)

    def write(self) -> None:
        self.job.write([sys.executable, TRAINER, str(self.job.directory)], self.spec)

    def stopped(self) -> None:
        """The job runs for a while, and is stopped or killed."""
        how = self.random.choice([signal.SIGTERM, signal.SIGKILL, signal.SIGINT])
        seconds = self.random.uniform(0.4, 2.5)
        process = self.job.start()
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.send_signal(how)
        process.communicate(timeout=60)
        self.say(f"after {seconds:.1f} s {how.name}: {process.returncode}, {self.job.status().get('stage')}")
        # Its ranks end with it, at the latest when they notice.
        time.sleep(0.3)

    def edited(self) -> None:
        field = self.random.choice(["rate", "rate", "seed", "items", "change"])
        if field == "rate":
            self.spec["settings"]["learningRate"] = self.random.choice(["0.1", "0.2", "0.3"])
        elif field == "seed":
            self.spec["seeds"] = [self.random.randint(1, 2)]
        elif field == "items":
            self.spec["train"]["items"] = self.random.choice([1600, 2400, 3200])
        else:
            self.spec["train"]["onChange"] = self.random.choice(["Continue", "Restart"])
        self.say(f"edited: {self.spec['settings']} {self.spec['seeds']} {self.spec['train']}")
        self.write()

    def damaged(self) -> None:
        files = sorted(self.storage.rglob("weights.json"))
        files = [file for file in files if ".pawl" not in file.relative_to(self.storage).parts]
        # One is left: a training of which only damage is left does not begin anew, as other tests show.
        if len(files) > 1:
            file = self.random.choice(files)
            content = bytearray(file.read_bytes())
            content[self.random.randrange(len(content))] ^= 1
            file.write_bytes(content)
            self.say(f"damaged: {file}")

    def emptied(self) -> None:
        """Another storage is mounted for one run: nothing begins from nothing, or nothing had been saved."""
        if not self.storage.exists() or not list(self.storage.rglob("weights.json")):
            return
        self.storage.rename(self.away)
        code, _ = self.job.run()
        known = self.job.status().get("training", {}).get("lastCheckpoint")
        self.say(f"with an empty storage: {code}, known: {known}")
        began = list(self.storage.rglob("weights.json"))
        if known is not None and began:
            # A new training that the spec asks for has a directory of its own, and needs nothing of the old one.
            assert self.job.status()["training"].get("directory"), "a training began from nothing"
            for path in self.storage.iterdir():
                if path.is_dir() and path.name.startswith("pawl-training-"):
                    path.rename(self.away / path.name)
        subprocess.run(["rm", "-rf", self.storage], check=True)
        self.away.rename(self.storage)

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

    def check(self, status: dict[str, Any]) -> None:
        assert not (self.job.directory / "damage-was-resumed").exists()
        assert status["stage"] == "Complete", status.get("failure")
        training = status["training"]
        assert training["items"] >= self.spec["train"]["items"], "steps were asked for"
        name = training["lastCheckpoint"]["name"]
        model = self.storage / training.get("directory", "") / name / "weights.json"
        begin = 0
        for end, rate, seed in json.loads(model.read_text())["weights"]:
            middle = (begin + end) // 2
            part = next(part for part in training["segments"] if part["fromItems"] <= middle < part["toItems"])
            said = (float(part["settings"]["learningRate"]), part["seed"])
            assert said == (rate, seed), f"items {begin} to {end} were trained with {rate, seed}, not {said}"
            begin = end


@pytest.mark.parametrize("seed", SEEDS)
def test_whatever_happens_the_status_says_what_trained_the_model(job: Job, seed: int) -> None:
    print(f"PAWL_HISTORY={seed}")
    history = History(job, seed)
    history.write()
    happens = [history.stopped, history.stopped, history.edited, history.edited, history.damaged, history.emptied]
    for _ in range(12):
        history.random.choice(happens)()
    history.check(history.settle())
