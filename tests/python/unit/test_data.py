"""A resumed launch continues in its data where it was, whatever the loader."""

import json
import random
from typing import Any

import pytest
from conftest import ROOT, Launch
from pawl_launch import encoding, generators
from pawl_launch.fingerprint import fingerprint

LOOP = """
import pawl_launch, random, os
run = pawl_launch.init(batch_per_gpu=4)
size, _ = run.batch_size, run.get_checkpoint()
random.seed(run.seed)
DATA = list(range(40))
def batches(order):
    return [order[i:i + size] for i in range(0, len(order), size)]
LOADER
seen = open("seen.jsonl", "a")
for batch in run.steps(loader, evaluate=lambda: {"loss": 1.0}, items_per_epoch=len(DATA)):
    print([list(batch), random.random()], file=seen, flush=True)
    run.step(items=len(batch), loss=1.0)
    if run.should_checkpoint:
        with run.checkpoint() as directory:
            (directory / "state").write_text("x")
"""

LIST = "loader = batches(DATA)"
ITERABLE = """
class Loader:
    def __iter__(self):
        return iter(batches(DATA))
loader = Loader()
"""
# As a DataLoader with a batch_sampler, whose batch_size is None.
BATCH_SAMPLER = """
class Sampler:
    def set_epoch(self, epoch):
        self.epoch = epoch
class BatchSampler:
    sampler = Sampler()
class Loader:
    batch_size, batch_sampler = None, BatchSampler()
    def __iter__(self):
        order = DATA[:]
        random.Random(self.batch_sampler.sampler.epoch).shuffle(order)
        return iter(batches(order))
loader = Loader()
"""
# Shuffles by the generator of the process, which the script seeds once.
SHUFFLED = """
class Loader:
    def __iter__(self):
        order = DATA[:]
        random.shuffle(order)
        for batch in batches(order):
            random.random()  # An augmentation.
            yield batch
loader = Loader()
"""
# As a StatefulDataLoader of torchdata.
STATEFUL = """
class Loader:
    at, loaded = 0, None
    def __iter__(self):
        self.at, self.loaded = self.loaded or 0, None
        while self.at < 40:
            open("read", "a").write("x")
            self.at += size
            yield DATA[self.at - size:self.at]
    def state_dict(self):
        return {"at": self.at, "of": (b"x", 1)}
    def load_state_dict(self, state):
        assert state["of"] == (b"x", 1)
        self.loaded = state["at"]
loader = Loader()
"""
CHANGING = """
class Loader:
    def __iter__(self):
        order = DATA[:]
        random.SystemRandom().shuffle(order)
        return iter(batches(order))
loader = Loader()
"""


def seen(launch: Launch, loader: str, *items: int, **settings: Any) -> list[Any]:
    """The batches that the script saw in launches which end after ``items`` items, with a draw of the generator at each."""
    for end in items:
        launch.train(items=end)
        code, report = launch.run(LOOP.replace("LOADER", loader))
        assert (code, report["items"]) == (0, end)
    path = launch.directory / "seen.jsonl"
    found = [json.loads(line) for line in path.read_text().splitlines()]
    path.unlink()
    return found


@pytest.mark.parametrize("loader", [LIST, ITERABLE, BATCH_SAMPLER, SHUFFLED, STATEFUL], ids=["list", "iterable", "batch sampler", "shuffled", "stateful"])
def test_no_batch_is_repeated_or_left_out(launch: Launch, tmp_path_factory: pytest.TempPathFactory, loader: str) -> None:
    at_once = seen(Launch(tmp_path_factory.mktemp("whole")), loader, 100)
    assert len(at_once) == 25
    # Stopped within an epoch, at the end of one, and again within the next.
    assert seen(launch, loader, 12, 40, 68, 100) == at_once


def test_a_loader_with_a_state_reads_no_batch_twice(launch: Launch) -> None:
    seen(launch, STATEFUL, 12, 68)
    assert len((launch.directory / "read").read_text()) == 17


@pytest.mark.parametrize(("loader", "reported"), [(CHANGING, True), (SHUFFLED, False)], ids=["changing", "shuffled"])
def test_a_loader_whose_order_changes_is_reported(
    launch: Launch, capfd: pytest.CaptureFixture[str], loader: str, reported: bool
) -> None:
    assert len(seen(launch, loader, 12, 36)) == 9
    said = "this loader's order is not reproducible: epoch 0 begins with another batch" in capfd.readouterr().out
    assert said == reported


def test_with_another_batch_size_the_same_items_are_left(launch: Launch) -> None:
    first = seen(launch, LIST, 16)
    launch.plan["settings"] = {"batchPerGpu": 8}
    rest = seen(launch, LIST, 40)
    assert [item for batch, _ in [*first, *rest] for item in batch] == list(range(40))


def test_only_the_weights_of_another_job_leave_the_data_at_their_beginning(launch: Launch) -> None:
    seen(launch, LIST, 12)
    (launch.directory / "checkpoints").rename(launch.directory / "other")
    launch.train(items=8, resumeFrom={"storage": f"{launch.directory}/other", "weightsOnly": True})
    assert launch.run(LOOP.replace("LOADER", LIST))[0] == 0
    first = json.loads((launch.directory / "seen.jsonl").read_text().splitlines()[0])
    assert first[0] == [0, 1, 2, 3]


def test_states_survive_json() -> None:
    value = {"a": [1, 2.5, None, True], 3: (b"\x00\xff", "text", {"deep": ()})}
    assert encoding.decode(json.loads(json.dumps(encoding.encode(value)))) == value
    with pytest.raises(TypeError, match="object has no form in JSON"):
        encoding.encode({"x": object()})
    before = json.loads(json.dumps(encoding.encode(generators.states())))
    drawn = random.random()
    generators.restore(encoding.decode(before))
    assert random.random() == drawn


def test_batches_are_compared_by_their_content() -> None:
    assert fingerprint({"x": [1, 2], "y": "a"}) == fingerprint({"x": [1, 2], "y": "a"}) != fingerprint({"x": [1, 3], "y": "a"})
    assert fingerprint(object()) is None and fingerprint([object(), object()]) is None


def test_the_first_script_of_the_page_ends_with_the_same_weight(launch: Launch, tmp_path_factory: pytest.TempPathFactory) -> None:
    page = (ROOT / "trainer-image/python/README.md").read_text()
    script = page.split("```python\n")[1].split("\n```")[0].replace("time.sleep(", "float(")

    def weight(launch: Launch, *items: int) -> float:
        launch.plan["settings"] = {"batchPerGpu": 8}
        for end in items:
            assert launch.train(items=end).run(script)[0] == 0
        [newest] = (launch.directory / "checkpoints").glob(f"{items[-1]:015d}-*")
        return float((newest / "weight").read_text())

    assert weight(launch, 200, 640) == weight(Launch(tmp_path_factory.mktemp("whole")), 640)
