"""Losses, throughput, settings, checkpoints and exceptions, each on its own."""

import json
import math
import os
import platform
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pawl_launch import CheckpointUnreadable, InvalidPlan, NonFinite, Outcome, Settings, Unsupported, checkpoints, device, hashes, source
from pawl_launch.advice import advice
from pawl_launch.budget import Budget
from pawl_launch.checkpoints import MANIFEST, Store
from pawl_launch.contract_settings import TYPES
from pawl_launch.gang import Gang
from pawl_launch.keeper import Keeper
from pawl_launch.losses import Curve, SpikeWatch, steps_before_quarters
from pawl_launch.outcome import classify
from pawl_launch.plan import CheckpointPolicy, Criterion, Plan, Rank
from pawl_launch.progress import Position, Reporter
from pawl_launch.steady import is_steady
from pawl_launch.throughput import Throughput
from pawl_launch.waits import CollectiveWaits


@pytest.mark.parametrize("steps", [1, 63, 64, 65, 1000])
def test_a_curve_is_short_and_keeps_the_mean(steps: int) -> None:
    curve = Curve()
    for step in range(steps):
        curve.add(4 * (step + 1), float(step))
    points = curve.points()
    assert len(points) <= 64 and points[-1]["items"] == 4 * steps
    before, total = 0, 0.0
    for point in points:
        total += point["loss"] * (point["items"] - before) / 4
        before = point["items"]
    assert total == pytest.approx(sum(range(steps)))


@pytest.mark.parametrize("steps", [8, 60, 63, 64, 100, 1000])
def test_the_loss_of_a_launch_does_not_depend_on_how_often_it_is_read(steps: int) -> None:
    edges = steps_before_quarters(steps)

    def quarters(every: int) -> list[float]:
        curve, losses = Curve(), []
        curve.begin(100)
        for step in range(1, steps + 1):
            losses.append(1.0 / step)
            if step % every == 0 or step in (*edges, steps):
                curve.add(100 + 4 * step, sum(losses) / len(losses), len(losses))
                losses = []
        points = curve.points()
        begins = [len(points) * quarter // 4 for quarter in range(5)]
        assert points[0]["items"] > 100 and points[-1]["items"] == 100 + 4 * steps
        assert [points[begin - 1]["items"] for begin in begins[1:4]] == [100 + 4 * edge for edge in edges]
        parts = [points[begin:end] for begin, end in zip(begins, begins[1:])]
        return [sum(point["loss"] for point in part) / len(part) for part in parts]

    # From 64 steps on, a point is the mean of several steps, and the last one may be of fewer than the others.
    tolerance = 1e-12 if steps < 64 else 0.02
    for every in (7, 10, 17):
        assert quarters(every) == pytest.approx(quarters(1), rel=tolerance)


VECTORS = json.loads((Path(__file__).parents[3] / "crds/contract/tests/losses.json").read_text())


@pytest.mark.parametrize("interrupted", [0, 10, 24, 63, 64, 100, 161, 163])
@pytest.mark.parametrize("case", VECTORS, ids=lambda case: case["name"])
def test_spikes_are_those_of_the_trainer_wherever_the_training_is_interrupted(case: Any, interrupted: int) -> None:
    watch, spike, bound = SpikeWatch(), None, None
    for index, loss in enumerate(case["losses"]):
        if index == interrupted:
            watch = SpikeWatch.from_state(json.loads(json.dumps(watch.state())))
        bound = watch.add(loss)
        if bound is not None:
            spike = index
            break
    assert spike == case["spike"]
    assert bound == (case["bound"] and pytest.approx(case["bound"], rel=1e-12))
    assert watch == SpikeWatch.from_state(case["state"]), "what a checkpoint keeps"


def test_a_checkpoint_of_an_earlier_version_has_no_losses() -> None:
    position = Position.from_state(3, 12, {"firstValidation": None, "evaluationsSinceBest": 0})
    assert position.losses == SpikeWatch()
    position.losses.add(1 / 3)
    assert Position.from_state(3, 12, json.loads(json.dumps(position.state()))) == position


def test_throughput_counts_steps_after_the_warm_up() -> None:
    throughput = Throughput(warmup=2)
    for seconds in (9.0, 9.0):
        throughput.add(seconds, 8, 0.0, 0.0)
    assert throughput.at_end_of_warmup
    throughput.close(full=False)
    for seconds in (0.1, 0.2, 0.1):
        throughput.add(seconds, 8, seconds / 4, seconds)
    throughput.close(full=False)
    assert throughput.items_per_second() == pytest.approx(60.0)
    assert throughput.loader_share() == pytest.approx(0.25)
    assert throughput.cpu_utilization(2) == pytest.approx(0.5)
    assert throughput.step_seconds() == {"p10": 0.1, "median": 0.1, "p90": 0.2}
    assert throughput.windows == 0


STEADY = Path(__file__).resolve().parents[3] / "crds/contract/tests/steady.json"


@pytest.mark.parametrize("case", json.loads(STEADY.read_text()), ids=lambda case: case["name"])
def test_windows_are_judged_as_by_the_other_trainers(case: dict[str, Any]) -> None:
    assert is_steady([tuple(span) for span in case["spans"]]) is case["steady"]


def test_the_wait_for_other_ranks_is_a_share_of_measured_steps() -> None:
    throughput = Throughput(warmup=1)
    throughput.add(1.0, 8, 0.0, 0.0)
    throughput.waited_for_ranks(1.0)
    throughput.close(full=False)
    assert throughput.collective_share() is None, "of the warm-up"
    for seconds in (0.25, None):
        throughput.add(1.0, 8, 0.0, 0.0)
        throughput.waited_for_ranks(seconds)
        throughput.close(full=False)
    assert throughput.collective_share() == pytest.approx(0.125)


def test_waits_of_a_device_are_read_from_its_events(monkeypatch: pytest.MonkeyPatch) -> None:
    class Event:
        """Recorded at 0, 10, 20 ... milliseconds."""

        recorded = 0

        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            self.at, Event.recorded = 10.0 * Event.recorded, Event.recorded + 1

        def elapsed_time(self, other: "Event") -> float:
            return other.at - self.at

    monkeypatch.setattr(device, "cuda", lambda: SimpleNamespace(Event=Event))
    waits = CollectiveWaits()
    waits._watches = True
    for _ in range(3):
        with waits.waiting(), waits.waiting():
            pass
    assert waits.take() == pytest.approx(0.03), "a wait within a wait does not count twice"
    assert waits.take() == 0.0


def test_settings_that_placeholders_have_consumed_need_not_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAWL_CONSUMED_SETTINGS", "precision,workload.width")
    settings = Settings({"precision": "bf16", "compile": "Graph", "workload": {"width": 3, "depth": 2}})
    assert settings.unread() == ["compile", "workload.depth"]


@pytest.mark.parametrize(
    ("imported", "begin", "attention"),
    [
        (["pytorch"], "iterate over run.steps(loader)", "run.settings.attention"),
        (["pytorch", "accelerate"], "iterate over run.steps(loader)", "pawl_launch.pytorch.attention(run)"),
        (["pytorch", "lightning"], "**pawl_launch.lightning.arguments()", "pawl_launch.pytorch.attention(run)"),
        (["accelerate", "hf"], "callbacks=[hf.PawlCallback()]", "**hf.model_arguments()"),
    ],
)
def test_advice_is_of_the_library_that_the_script_uses(
    monkeypatch: pytest.MonkeyPatch, imported: list[str], begin: str, attention: str
) -> None:
    for module in ("pytorch", "lightning", "accelerate", "hf"):
        monkeypatch.delitem(sys.modules, f"pawl_launch.{module}", raising=False)
    for module in imported:
        monkeypatch.setitem(sys.modules, f"pawl_launch.{module}", sys)
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert begin in advice().begin
    assert attention in advice().read(["attention"])


def test_settings_are_typed_have_defaults_and_must_be_read() -> None:
    given = {"precision": "bf16", "gradientClip": "0.5", "nccl": {"NCCL_DEBUG": "INFO"}, "workload": {"width": 3}}
    settings = Settings(given, {"batch_per_gpu": 16})
    assert (settings.batch_per_gpu, settings.accumulation_steps, settings.gradient_clip) == (16, 1, 0.5)
    assert settings.unread() == ["precision", "workload.width"]
    with pytest.raises(Unsupported, match=r"settings.precision, settings.workload.width: not used by this script"):
        settings.require_read()
    with pytest.raises(Unsupported, match="settings.precision: bf16 is not supported.*fp32, fp16"):
        settings.one_of("precision", "fp32", "fp16")
    assert settings.workload["width"] == 3 and settings.unread() == []
    with pytest.raises(AttributeError, match="sise: is not a setting"):
        _ = settings.sise
    with pytest.raises(InvalidPlan, match="batchsize: is not a setting"):
        Settings({}, {"batchsize": 3})


@pytest.mark.parametrize("name", [name for name, kind in TYPES.items() if kind is float])
def test_decimal_settings_are_numbers(name: str) -> None:
    value = getattr(Settings({name: "0.1"}), re.sub("([A-Z])", lambda found: "_" + found[0].lower(), name))
    assert isinstance(value, float) and value == 0.1


@pytest.mark.parametrize(
    ("given", "batches"),
    [({}, 0), ({"loaderWorkers": 3}, 6), ({"loaderPrefetch": 4}, 4), ({"loaderWorkers": 3, "loaderPrefetch": 4, "globalBatch": 2}, 6)],
)
def test_prepared_steps_are_counted_with_the_defaults_of_the_contract(given: dict[str, int], batches: int) -> None:
    assert Plan("job", "job-1", "launch", "Measure", given, {}, 1)._queue_steps(world_size=1) == batches


def plan(kind: str, **budget: int) -> Plan:
    return Plan("job", "job-1", "launch", kind, {}, {}, 1, **budget)  # type: ignore[arg-type]


def test_the_length_of_a_launch() -> None:
    position = Position()
    measure = Budget(plan("Measure", warmup_steps=3, window_steps=5), position, 2)
    assert (measure.steps(4), measure.warmup(8), measure.is_used_up()) == (8, 3, False)
    train = Budget(plan("Train", items=100, eval_every_items=30), position, 2)
    assert (train.steps(4), train.warmup(13)) == (13, 3)
    position.step, position.items = 4, 32
    assert train.evaluation_due(24, None) and not train.evaluation_due(31, None)
    assert train.steps(8) == 9, "the steps so far, and those for 68 items of 16 a step"
    position.items = 104
    assert train.is_used_up() and train.evaluation_due(96, 90) and not train.evaluation_due(96, 104)
    epochs = Budget(plan("Quality", epochs=2), position, 1)
    with pytest.raises(Unsupported, match="train.epochs: the length of an epoch is unknown"):
        epochs.items()
    epochs.items_per_epoch = 60
    assert (epochs.items(), epochs.is_used_up(), epochs.epochs) == (120, False, 2)


def policy(keep: int) -> CheckpointPolicy:
    return CheckpointPolicy(1.0, keep, True, None, None, None, False, Criterion())


def write(store: Store, step: int, **state: Any) -> Path:
    partial = store.begin(10 * step, "job-1")
    (partial / "state.bin").write_bytes(b"x" * step)
    return store.commit(partial, step, 10 * step, {"evaluationsSinceBest": step, **state}).path


def test_only_complete_checkpoints_are_found(tmp_path: Path) -> None:
    store = Store(tmp_path)
    assert store.newest() is None
    paths = [write(store, step) for step in (1, 2, 3)]
    newest = store.newest()
    assert newest is not None and (newest.path, newest.step, newest.items) == (paths[2], 3, 30)
    assert newest.state == {"evaluationsSinceBest": 3}
    (paths[2] / "state.bin").write_bytes(b"")
    store.begin(40, "job-1")
    newest = store.newest()
    assert newest is not None and newest.path == paths[1], "a torn checkpoint is skipped"
    assert store.newest(not_after=10).path == paths[0]  # type: ignore[union-attr]
    store.discard_after(10)
    assert [checkpoint.path for checkpoint in store.all()] == paths[:1]


def test_the_newest_and_the_best_checkpoints_are_kept(tmp_path: Path) -> None:
    store = Store(tmp_path)
    paths = [write(store, step) for step in range(1, 6)]
    for attempt in ("job-1", "job-9", "job-10", "job-11"):
        store.begin(90, attempt)
    store.prune(policy(2), paths[0].name, "job-10")
    assert [checkpoint.path for checkpoint in store.all()] == [paths[0], *paths[3:]]
    assert [path.name for path in tmp_path.glob(".*")] == [".000000000000090-job-11.partial"], "that of a later attempt"


def test_a_checkpoint_is_replaced_before_the_old_one_is_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, rename = Store(tmp_path), os.rename
    path = write(store, 1)
    partial = store.begin(10, "job-1")
    (partial / "state.bin").write_bytes(b"new")

    def fails(source: Path, target: Path) -> None:
        if source == partial:
            raise OSError("the storage is gone")
        rename(source, target)

    with monkeypatch.context() as context, pytest.raises(OSError, match="the storage is gone"):
        context.setattr(os, "rename", fails)
        store.commit(partial, 1, 10, {})
    old = [file for file in tmp_path.rglob("state.bin") if file.read_bytes() == b"x"]
    assert len(old) == 1 and (old[0].parent / MANIFEST).exists(), "the old checkpoint is whole"

    assert store.commit(partial, 1, 10, {}).path == path
    assert (path / "state.bin").read_bytes() == b"new"
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


def test_every_directory_of_a_checkpoint_is_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(checkpoints, "sync", synced.append)
    partial = Store(tmp_path).begin(10, "job-1")
    (partial / "model/shards").mkdir(parents=True)
    (partial / "model/shards/state.bin").write_bytes(b"x")
    Store(tmp_path).commit(partial, 1, 10, {})
    directories = {partial, partial / "model", partial / "model/shards", tmp_path}
    assert set(synced) == directories | {partial / "model/shards/state.bin"}


def test_a_later_format_is_never_taken_for_absent(tmp_path: Path) -> None:
    path = write(Store(tmp_path), 1)
    manifest = json.loads((path / MANIFEST).read_text())
    later = {**manifest, "format": 2}
    (path / MANIFEST).write_text(json.dumps({**later, "sha256": hashes.seal(later)}))
    with pytest.raises(CheckpointUnreadable, match="format 2.*install a newer one"):
        Store(tmp_path).newest()


def test_a_storage_that_cannot_be_read_is_not_an_empty_one(tmp_path: Path) -> None:
    store = Store(tmp_path / "checkpoints")
    assert store.all() == []
    path = write(store, 1)
    (store.directory / "notes.txt").write_text("not a checkpoint")
    assert [checkpoint.path for checkpoint in store.all()] == [path]
    (path / MANIFEST).unlink()
    assert store.all() == []
    (path / MANIFEST).symlink_to(MANIFEST)
    with pytest.raises(OSError, match="symbolic links"):
        store.all()


def keeper(directory: Path, **more: Any) -> tuple[Keeper, Reporter]:
    """The keeper of a training in ``directory``, and its reporter."""
    training = Plan("job", "job-2", "launch", "Train", {}, {}, 1, checkpoint=CheckpointPolicy.read(POLICY | more))
    rank = Rank(checkpoints=str(directory))
    reporter = Reporter(training, rank, Throughput(0), Position())
    return Keeper(training, rank, Gang(0, 1), reporter), reporter


POLICY: dict[str, Any] = {"everySeconds": 3600, "keep": 2, "resume": True}
BEST = {"checkpoint": {"name": "000000000000010-job-1", "step": 1, "items": 10}, "metric": "loss", "value": 0.5}


def test_the_best_checkpoint_of_another_job_is_not_that_of_this_job(tmp_path: Path) -> None:
    write(Store(tmp_path / "other"), 1, bestCheckpoint=BEST)
    found, reporter = keeper(tmp_path / "own", resumeFrom={"storage": str(tmp_path / "other")})
    assert (reporter.position.items, reporter.position.best_checkpoint) == (10, None)
    found.compare({"loss": 0.9})
    assert found.has_new_best, "the first of this job"
    own, reporter = keeper(tmp_path / "other")
    assert reporter.position.best_checkpoint == BEST
    own.compare({"loss": 0.9})
    assert not own.has_new_best


def test_values_of_different_metrics_are_not_compared(tmp_path: Path) -> None:
    write(Store(tmp_path), 1, bestCheckpoint=BEST)
    found, _ = keeper(tmp_path, best={"metric": "perplexity"})
    found.compare({"loss": 0.4, "perplexity": 20.0})
    assert found.has_new_best


class OutOfMemoryError(RuntimeError):
    """As that of PyTorch, which is recognized by its name."""


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (OutOfMemoryError("CUDA"), Outcome.OUT_OF_MEMORY),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED"), Outcome.OUT_OF_MEMORY),
        (MemoryError(), Outcome.HOST_OUT_OF_MEMORY),
        (RuntimeError("[enforce] DefaultCPUAllocator: can't allocate memory: 9 bytes"), Outcome.HOST_OUT_OF_MEMORY),
        (FloatingPointError("underflow"), Outcome.NON_FINITE),
        (NonFinite("loss"), Outcome.NON_FINITE),
        (ImportError("flash_attn"), Outcome.UNSUPPORTED),
        (RuntimeError("[gloo] Connection closed by peer"), Outcome.LOST_PEER),
        (KeyError("x"), Outcome.FAILED),
    ],
)
def test_exceptions(error: Exception, outcome: Outcome) -> None:
    assert classify(error) is outcome
    try:
        raise ValueError("raised by a framework") from error
    except ValueError as outer:
        expected = Outcome.FAILED if isinstance(error, ImportError) else outcome
        assert classify(outer) is expected, "the cause counts, but for an import that a library has only tried"


def test_the_versions_of_imported_libraries_and_the_gpu_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    def properties(index: int) -> Any:
        if broken:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        return SimpleNamespace(name=f"GPU {index}", total_memory=1 << 30)

    gpu = SimpleNamespace(
        is_available=lambda: True,
        is_initialized=lambda: True,
        current_device=lambda: 1,
        get_device_properties=properties,
    )
    torch = SimpleNamespace(__version__="2.8.0+cu128", version=SimpleNamespace(cuda="12.8"), cuda=gpu)
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setitem(sys.modules, "flash_attn", SimpleNamespace(__version__="2.7"))
    monkeypatch.delitem(sys.modules, "peft", raising=False)
    broken = False
    found = device.provenance()
    assert found["gpu"] == {"name": "GPU 1", "memoryBytes": 1 << 30} and found["cuda"] == "12.8"
    libraries = found["libraries"]
    assert libraries["torch"] == "2.8.0+cu128" and libraries["flash-attn"] == "2.7" and "peft" not in libraries
    assert libraries["python"] == platform.python_version()
    broken = True
    assert "gpu" not in device.provenance(), "the report is written all the same"


def test_data_are_those_that_the_library_names() -> None:
    info = SimpleNamespace(dataset_name="imdb", builder_name="parquet")
    named = SimpleNamespace(_fingerprint="0badcafe", info=info)
    data = {"from": "imdb", "hashed": "Fingerprint", "hash": "0badcafe"}
    assert source.of(SimpleNamespace(dataset=named)) == source.of(named) == data
    subset = SimpleNamespace(dataset=SimpleNamespace(dataset=named))
    assert source.of(subset) == data
    assert source.of(SimpleNamespace(dataset=SimpleNamespace(_fingerprint="1"))) == {"hashed": "Fingerprint", "hash": "1"}

    class Broken:
        @property
        def _fingerprint(self) -> str:
            raise RuntimeError

    for unknown in (None, [1, 2], SimpleNamespace(dataset=[1]), Broken()):
        assert source.of(unknown) is None


def test_a_hidden_context_does_not_count() -> None:
    try:
        try:
            raise MemoryError
        except MemoryError:
            raise KeyError("x") from None
    except KeyError as error:
        assert classify(error) is Outcome.FAILED


def test_the_examples_of_the_documentation() -> None:
    import doctest

    import pawl_launch
    from pawl_launch import settings

    results = [doctest.testmod(module) for module in (pawl_launch, settings)]
    assert [result.failed for result in results] == [0, 0]
    assert all(result.attempted for result in results)
