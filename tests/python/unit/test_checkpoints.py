"""Checkpoints that are damaged, of another gang, or of another job: in a directory, and in an object storage."""

import errno
import json
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import Launch, wait_until
from pawl_launch import CheckpointUnreadable, bucket
from pawl_launch.checkpoints import MANIFEST, Store
from pawl_launch.fence import Fence
from pawl_launch.gang import Gang
from pawl_launch.keeper import Keeper
from pawl_launch.outcome import LostPeer, Outcome, StorageFull, Superseded, classify
from pawl_launch.plan import CheckpointPolicy, Plan, Rank
from pawl_launch.progress import Position, Reporter
from pawl_launch.throughput import Throughput

POLICY: dict[str, Any] = {"everySeconds": 3600, "keep": 2, "resume": True}
# Precedes the directory in the address of a storage.
SCHEME = ""


@pytest.fixture(params=["directory", "objects"])
def both(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs a test with a directory, then with an object storage whose objects are the files of that directory."""
    if request.param == "objects":
        store = pytest.importorskip("obstore.store")
        monkeypatch.setattr(f"{__name__}.SCHEME", "s3://")
        monkeypatch.setattr(bucket, "connect", lambda _, path: store.LocalStore(path, automatic_cleanup=True, mkdir=True))


in_both = pytest.mark.usefixtures("both")


def keeper(
    directory: Path,
    attempt: str = "job-1",
    rank: int = 0,
    world_size: int = 1,
    uid: str | None = None,
    launch: str = "launch",
    config: dict[str, Any] | None = None,
    seed: int = 1,
    **more: Any,
) -> tuple[Keeper, Reporter]:
    """The keeper of a training in ``directory``, and its reporter."""
    policy = CheckpointPolicy.read(POLICY | more)
    plan = Plan("job", attempt, launch, "Train", {}, config or {}, seed, checkpoint=policy, workload="script")
    identity = {} if uid is None else {"namespace": "team", "uid": uid}
    of = Rank(rank=rank, world_size=world_size, local_world_size=world_size, checkpoints=f"{SCHEME}{directory}", identity=identity)
    reporter = Reporter(plan, of, Throughput(0), Position())
    return Keeper(plan, of, Gang(rank, 1), reporter), reporter


def write(training: tuple[Keeper, Reporter], step: int) -> Path:
    """Writes a checkpoint of 10 items a step."""
    found, reporter = training
    reporter.position.step, reporter.position.items = step, 10 * step
    with found.write({}) as partial:
        (partial / "state.bin").write_bytes(b"x" * step)
    assert reporter.last_checkpoint is not None
    storage = found._rank.checkpoints
    assert storage is not None
    return Path(storage.removeprefix("s3://"), reporter.last_checkpoint["name"])


def resumed(training: tuple[Keeper, Reporter]) -> int | None:
    found = training[0].resumed
    return None if found is None else found.step


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def claimed(directory: Path) -> Fence:
    """The fence of a gang of the first attempt."""
    fence = Fence(directory, "job-1")
    fence.supersede()
    return fence


def names(directory: Path) -> list[str]:
    # An object storage has no empty directories.
    entries = [path for path in directory.iterdir() if path.is_file() or any(path.iterdir())]
    return sorted(path.name for path in entries if path.name not in ("epochs", ".pawl"))


def quarantined(directory: Path) -> list[str]:
    return sorted(path.name for path in (directory / ".pawl/quarantine").iterdir())


@in_both
@pytest.mark.parametrize("victim", ["state.bin", MANIFEST])
def test_a_flipped_bit_is_never_resumed(tmp_path: Path, victim: str) -> None:
    old = keeper(tmp_path)
    paths = [write(old, step) for step in (1, 2)]
    flip(paths[1] / victim)
    new = keeper(tmp_path, "job-2")
    assert resumed(new) == 1
    assert (names(tmp_path), quarantined(tmp_path)) == ([paths[0].name], [paths[1].name])
    third = write(new, 3)
    # The damaged one is not one of the two that are kept.
    assert (names(tmp_path), quarantined(tmp_path)) == ([paths[0].name, third.name], [paths[1].name])


def test_what_an_earlier_version_set_aside_is_left_alone_and_known(tmp_path: Path) -> None:
    path = write(keeper(tmp_path), 1)
    path.rename(path.with_name(f"{path.name}.damaged"))
    with pytest.raises(CheckpointUnreadable, match="000000000000010-job-1 was written, .* only damaged ones"):
        keeper(tmp_path, "job-2")
    for step in (2, 3, 4):
        (tmp_path / ".pawl/quarantine" / f"{10 * step:015d}-job-1.9").mkdir(parents=True)
    assert len(Store(tmp_path).damaged()) == 4


@in_both
def test_what_is_damaged_does_not_fill_the_storage(tmp_path: Path) -> None:
    for attempt in range(1, 6):
        training = keeper(tmp_path, f"job-{attempt}", keep=9)
        write(training, 2 * attempt - 1)
        flip(write(training, 2 * attempt) / "state.bin")
    last = keeper(tmp_path, "job-6", keep=9)
    write(last, 11)
    assert len(quarantined(tmp_path)) == 2
    assert resumed(keeper(tmp_path, "job-7")) == 11


@in_both
def test_files_that_have_grown_are_not_read(tmp_path: Path) -> None:
    old = keeper(tmp_path)
    paths = [write(old, step) for step in (1, 2)]
    for file in (paths[1] / "state.bin", paths[0] / MANIFEST):
        os.truncate(file, 1 << 40)
    begun = time.monotonic()
    with pytest.raises(CheckpointUnreadable, match="only damaged ones"):
        keeper(tmp_path, "job-2")
    assert time.monotonic() - begun < 5


@in_both
def test_a_training_of_which_only_damage_is_left_does_not_begin_anew(tmp_path: Path) -> None:
    flip(write(keeper(tmp_path), 1) / "state.bin")
    for attempt in ("job-2", "job-3"):
        with pytest.raises(CheckpointUnreadable, match="000000000000010-job-1 was written, .* only damaged ones"):
            keeper(tmp_path, attempt)


@in_both
def test_a_training_of_which_nothing_was_good_begins_anew(tmp_path: Path) -> None:
    training = keeper(tmp_path)
    names = [write(training, step).name for step in (1, 2)]
    training[0].discard_after(5)
    # The report of the divergence is lost: the checkpoint is expected.
    for attempt in ("job-2", "job-3"):
        anew = keeper(tmp_path, attempt, expected={"name": names[1], "step": 2, "items": 20})
        assert resumed(anew) is None
    # What was saved since then is not gone for that reason.
    path = write(anew, 1)
    shutil.rmtree(path)
    with pytest.raises(CheckpointUnreadable, match="restore the storage"):
        keeper(tmp_path, "job-4", expected={"name": path.name, "step": 1, "items": 10})


@in_both
def test_checkpoints_without_hashes_are_read(tmp_path: Path) -> None:
    """Those of the versions before."""
    path = write(keeper(tmp_path), 1)
    manifest = json.loads((path / MANIFEST).read_text())
    for later in ("hashes", "author", "epoch", "sha256"):
        del manifest[later]
    (path / MANIFEST).write_text(json.dumps(manifest))
    assert resumed(keeper(tmp_path, "job-2")) == 1


@in_both
def test_a_gang_that_was_superseded_writes_and_deletes_nothing(tmp_path: Path) -> None:
    old = keeper(tmp_path, keep=1)
    write(old, 1)
    # The same attempt was created again; then a later attempt.
    again = keeper(tmp_path, keep=1)
    new = keeper(tmp_path, "job-2", keep=1)
    assert [path.name for path in (tmp_path / "epochs").iterdir()] == ["2.1"], "as Pawl's own trainer: only the latest one counts"
    second = write(new, 2)
    for stale in (old, again):
        with pytest.raises(Superseded, match=r"attempt job-1 was superseded: a later one \(2.1\)"):
            write(stale, 9)
    assert names(tmp_path) == [second.name]
    with pytest.raises(Superseded):
        keeper(tmp_path)
    assert resumed(keeper(tmp_path, "job-3")) == 2


@in_both
def test_a_gang_frozen_while_it_writes_changes_nothing_of_the_new_one(tmp_path: Path) -> None:
    old = keeper(tmp_path, keep=1)
    write(old, 1)
    reporter = old[1]
    reporter.position.step, reporter.position.items = 9, 90
    with pytest.raises(Superseded), old[0].write({}) as partial:
        (partial / "state.bin").write_bytes(b"x")
        second = write(keeper(tmp_path, "job-2", keep=1), 2)
    assert names(tmp_path) == [second.name]


def test_what_a_superseded_gang_still_finishes_is_older_than_all_of_the_new_gang(tmp_path: Path) -> None:
    store = Store(tmp_path, claimed(tmp_path))
    partial = store.begin(990, "job-1")
    (partial / "state.bin").write_bytes(b"x")
    new = keeper(tmp_path, "job-2")
    write(new, 2)
    # Frozen between its last check and the rename.
    store.check = lambda: None  # type: ignore[method-assign]
    partial.mkdir(exist_ok=True)
    (partial / "state.bin").write_bytes(b"x")
    store.commit(partial, 99, 990, {})
    third = write(new, 3)
    assert third.name in names(tmp_path)
    assert resumed(keeper(tmp_path, "job-3")) == 3


def test_two_gangs_of_an_attempt_never_share_a_directory(tmp_path: Path) -> None:
    first, second = (Store(tmp_path, claimed(tmp_path)) for _ in range(2))
    first.check = lambda: None  # type: ignore[method-assign]
    assert first.begin(10, "job-1") != second.begin(10, "job-1")


@in_both
def test_checkpoints_of_another_job_are_neither_resumed_nor_deleted(tmp_path: Path) -> None:
    own = tmp_path / "own"
    write(keeper(own, uid="one"), 1)
    assert resumed(keeper(own, "job-2", uid="one")) == 1
    before = sorted(own.rglob("*"))
    with pytest.raises(CheckpointUnreadable, match="another job .job, uid one.*train.resumeFrom.storage"):
        keeper(own, uid="two")
    assert sorted(own.rglob("*")) == before
    own.rename(tmp_path / "other")
    named = keeper(own, uid="two", resumeFrom={"storage": f"{SCHEME}{tmp_path / 'other'}"})
    assert resumed(named) == 1 and named[0].resumed is not None
    copy = named[0].resumed.path
    write(named, 2)
    assert copy.exists() == (copy.parent == tmp_path / "other"), "of an object, the node has a copy until there is a newer one"
    assert resumed(keeper(own, "job-2", uid="two")) == 2


@in_both
def test_all_ranks_resume_what_rank_0_has_found(tmp_path: Path) -> None:
    write(keeper(tmp_path), 1)
    found: list[int | None] = []
    follower = threading.Thread(target=lambda: found.append(resumed(keeper(tmp_path, "job-2", rank=1, world_size=2))))
    follower.start()
    leader = keeper(tmp_path, "job-2", world_size=2)
    assert leader[1].phase == "Resuming"
    follower.join()
    # Another one appears before the next rank looks.
    write(leader, 2)
    late = keeper(tmp_path, "job-2", rank=2, world_size=2)
    assert (resumed(leader), found, resumed(late)) == (1, [1], 1)
    leader[0].agreed()
    assert not list(tmp_path.glob(".resume-*"))


@in_both
def test_a_rank_without_rank_0_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pawl_launch.decision.Board.read.__defaults__", (0.1,))
    with pytest.raises(LostPeer, match="rank 0 has not named the checkpoint"):
        keeper(tmp_path, rank=1, world_size=2)


SCRIPT = """
import pawl_launch, time
run = pawl_launch.init(batch_per_gpu=4)
size, resumed = run.batch_size, run.get_checkpoint()
print("resumed", resumed, flush=True)
for batch in run.steps([[0] * size] * 10, evaluate=lambda: {"loss": 1.0}):
    time.sleep(0.01)
    run.step(items=size, loss=1.0)
    if run.should_checkpoint:
        with run.checkpoint() as directory:
            (directory / "state").write_text(str(run.step_count))
"""


def test_a_gang_that_wakes_ends_without_touching_the_new_ones_checkpoints(launch: Launch) -> None:
    launch.train(items=1_000_000, everySeconds=0.1, keep=1)
    storage = launch.directory / "checkpoints"

    def gang(number: int) -> Launch:
        directory = launch.directory / f"gang-{number}"
        directory.mkdir()
        found = Launch(directory)
        found.plan = launch.plan | {"attempt": f"job-{number}"}
        return found

    def checkpoints(number: int) -> list[Path]:
        return list(storage.glob(f"0*-job-{number}"))

    gangs = [gang(number) for number in (1, 2, 3)]
    old = gangs[0].start(SCRIPT, PAWL_CHECKPOINTS=str(storage))
    wait_until(lambda: len(checkpoints(1)) > 0)
    old.send_signal(signal.SIGSTOP)
    new = gangs[1].start(SCRIPT, PAWL_CHECKPOINTS=str(storage))
    wait_until(lambda: len(checkpoints(2)) > 0)
    old.send_signal(signal.SIGCONT)
    old.communicate(timeout=60)
    assert (old.returncode, gangs[0].report()["outcome"]) == (30, "Stopped")
    assert "was superseded" in gangs[0].report()["message"]
    new.send_signal(signal.SIGTERM)
    new.communicate(timeout=60)
    last = gangs[1].report()["lastCheckpoint"]
    third = gangs[2].start(SCRIPT, PAWL_CHECKPOINTS=str(storage))
    assert third.stdout is not None
    assert third.stdout.readline() == f"resumed {storage}/{last['name']}\n"
    third.kill()
    third.communicate()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A directory with space for a megabyte."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", disk], capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"a small file system cannot be mounted here (needs root): {mounted.stderr}")
    yield disk
    subprocess.run(["umount", "-l", disk], check=True)


class FrameworkError(RuntimeError):
    """As PyTorch's file writer raises: it does not say what the system said."""


@pytest.mark.parametrize("hidden", [False, True], ids=["the system's error", "an error of the framework"])
def test_a_full_storage_is_an_outcome_of_its_own_and_loses_no_checkpoint(small_disk: Path, hidden: bool) -> None:
    training = keeper(small_disk)
    kept = write(training, 100)
    training[1].position.step, training[1].position.items = 200, 2000
    with pytest.raises(StorageFull, match="free some space there, or keep fewer checkpoints"):
        with training[0].write({}) as partial:
            try:
                (partial / "state.bin").write_bytes(bytes(2 << 20))
            except OSError:
                if hidden:
                    raise FrameworkError("PytorchStreamWriter failed writing file") from None
                raise
    assert not partial.exists() and resumed(keeper(small_disk, "job-2")) == 100 and kept.exists()


def test_a_failure_with_space_left_is_no_full_storage(tmp_path: Path) -> None:
    training = keeper(tmp_path)
    with pytest.raises(FrameworkError):
        with training[0].write({}):
            raise FrameworkError("No space left on device")


def test_a_full_storage_is_recognized_by_the_number_of_the_error() -> None:
    quota = RuntimeError("cannot save")
    quota.__cause__ = OSError(errno.EDQUOT, "")
    assert classify(quota) is Outcome.STORAGE_FULL
    assert classify(OSError(errno.EIO, "No space left on device")) is Outcome.FAILED
    assert Outcome.STORAGE_FULL.exit_code == 24


@in_both
@pytest.mark.parametrize("other", [{"config": {"depth": 3}}, {"seed": 2}], ids=["configuration", "seed"])
def test_a_checkpoint_of_another_training_is_not_resumed(tmp_path: Path, other: dict[str, Any]) -> None:
    write(keeper(tmp_path, config={"depth": 2}), 3)
    with pytest.raises(CheckpointUnreadable, match="another workload, configuration or seed, by attempt job-1 of job job: .*resumeFrom"):
        keeper(tmp_path, "job-2", **({"config": {"depth": 2}} | other))
    assert resumed(keeper(tmp_path, "job-3", config={"depth": 2})) == 3


@in_both
def test_a_manifest_lists_the_launches_that_trained_the_model(tmp_path: Path) -> None:
    def trained(path: Path) -> list[tuple[int, str, str]]:
        parts = json.loads((path / MANIFEST).read_text())["author"]["trained"]
        return [(part["fromItems"], part["attempt"], part["launch"]) for part in parts]

    write(keeper(tmp_path, launch="train-aa"), 3)
    assert trained(write(keeper(tmp_path, "job-2", launch="train-aa"), 5)) == [(0, "job-1", "train-aa")]
    third = keeper(tmp_path, "job-3", launch="train-bb")
    assert trained(write(third, 8)) == [(0, "job-1", "train-aa"), (50, "job-3", "train-bb")]
    # Progress says so from before the first step.
    assert [part["launch"] for part in keeper(tmp_path, "job-4", launch="train-bb")[1].trained] == ["train-aa", "train-bb"]
    assert third[1]._progress()["trained"] == [
        {"fromItems": 0, "attempt": "job-1", "launch": "train-aa"},
        {"fromItems": 50, "attempt": "job-3", "launch": "train-bb"},
    ]


@in_both
def test_a_checkpoint_of_an_earlier_version_is_resumed_although_it_does_not_say_what_it_trained(tmp_path: Path) -> None:
    first = write(keeper(tmp_path), 3)
    manifest = json.loads((first / MANIFEST).read_text())
    for name in ("trains", "trained"):
        del manifest["author"][name]
    del manifest["sha256"]
    (first / MANIFEST).write_text(json.dumps(manifest))
    training = keeper(tmp_path, "job-2", seed=7)
    assert resumed(training) == 3
    parts = json.loads((write(training, 5) / MANIFEST).read_text())["author"]["trained"]
    assert parts == [{"fromItems": 30, "attempt": "job-2", "launch": "launch"}]


CASES = json.loads((Path(__file__).parents[3] / "crds/contract/tests/checkpoints.json").read_text())


@in_both
def test_a_checkpoint_that_is_written_anew_after_it_was_discarded_counts(tmp_path: Path) -> None:
    training = keeper(tmp_path)
    write(training, 2)
    training[0].discard_after(15)
    write(training, 2)
    assert resumed(keeper(tmp_path, "job-2")) == 2


@in_both
@pytest.mark.parametrize("case", [case for case in CASES if "package" in case.get("by", ["package"])], ids=lambda case: case["name"])
def test_the_checkpoint_that_is_resumed_is_that_of_the_vectors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: dict[str, Any]
) -> None:
    """As the built-in trainer, and the agent for scripts without this package."""
    saved: list[tuple[int, Path, str]] = []
    for checkpoint in case["checkpoints"]:
        step, kind = checkpoint["step"], checkpoint.get("is", "good")
        attempt = f"job-{checkpoint.get('attempt', 1)}"
        training = keeper(tmp_path, attempt, keep=9, seed=2 if kind == "foreign" else 1)
        saved.append((step, write(training, step), kind))
        if "diverged" in case and len(saved) == len(case["checkpoints"]):
            if case.get("killed"):
                with monkeypatch.context() as killed:
                    killed.setattr(type(training[0]._store), "_delete", lambda self, name: None)
                    training[0].discard_after(case["diverged"])
            else:
                training[0].discard_after(case["diverged"])
    for _, path, kind in saved:
        if kind == "incomplete" and SCHEME:
            (path / MANIFEST).unlink()
        elif kind == "incomplete":
            path.rename(path.with_name(f".{path.name}.partial"))
        elif kind == "gone":
            shutil.rmtree(path)
        elif kind in ("damaged", "illegible"):
            flip(path / ("state.bin" if kind == "damaged" else MANIFEST))
    if "claimed" in case:
        keeper(tmp_path, f"job-{case['claimed']}")
    more: dict[str, Any] = {}
    if "expected" in case:
        step = case["expected"]
        name = next((path.name for at, path, _ in reversed(saved) if at == step), f"{10 * step:015d}-job-1.9")
        is_good = 10 * step <= case.get("limit", 10 * step)
        more["expected" if is_good else "expectedAfterLimit"] = {"name": name, "step": step, "items": 10 * step}
    if "limit" in case:
        more["resumeNotAfterItems"] = case["limit"]
    found: int | str | None
    try:
        training = keeper(tmp_path, "job-3", **more)
        found = resumed(training)
    except (CheckpointUnreadable, Superseded) as error:
        found = type(error).__name__
    assert found == case["resumes"]
    assert sorted(step for step, path, kind in saved if path.exists() and kind in ("good", "foreign")) == case["left"]
    if not isinstance(found, str):
        aside = {path.name for path in training[0]._store.damaged()}  # type: ignore[union-attr]
        assert sorted(step for step, path, _ in saved if path.name in aside) == case.get("quarantined", [])
        write(training, 9)
        assert [int(name[:15]) // 10 for name in names(tmp_path)] == case["kept"]
