"""A launch as the script sees it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from . import device, source
from .advice import advice
from .budget import Budget
from .gang import Gang
from .identity import Identity
from .keeper import Keeper
from .meter import Agreement, Meter
from .outcome import InvalidPlan, LaunchEnd, LaunchError, NonFinite, Outcome, Unsupported, classify
from .place import DataPlace
from .plan import Plan, Rank
from .progress import Position, Reporter
from .throughput import Throughput

Batch = TypeVar("Batch")
Evaluate = Callable[[], Mapping[str, float]]


class Run(Identity):
    """A launch: its settings, its length, and what it reports. Made by :func:`pawl_launch.init`.

    Outside of Pawl, nothing is measured or written, and :meth:`steps` iterates over the loader for the given epochs.
    """

    def __init__(self, plan: Plan | None, rank: Rank, defaults: Mapping[str, Any]) -> None:
        super().__init__(plan, rank, defaults)
        self.should_evaluate = False
        """Whether validation is due: evaluate, then call :meth:`report`. Handled by ``steps(evaluate=...)``."""
        self.should_checkpoint = False
        """Whether a checkpoint is due: write it into the directory of :meth:`checkpoint`."""
        self._evaluate: Evaluate | None = None
        self._position = Position()
        self._budget = Budget(self._plan, self._position, rank.world_size)
        self._throughput = Throughput(self._budget.warmup(None))
        if self.kind == "Measure":
            self._throughput.measured = self._plan.window_steps
        self._reporter = Reporter(self._plan, rank, self._throughput, self._position)
        self._gang = Gang(rank.rank, rank.world_size)
        self._meter = Meter(self._gang, self._reporter)
        self._keeper = Keeper(self._plan, rank, self._gang, self._reporter)
        resumed = None if self._keeper.weights_only else self._keeper.resumed
        self._place = DataPlace(rank, resumed, self._keeper.keeps)
        self._checkpoint_read = False
        self._started = False
        self._ended = False
        self._stop_requested = False
        self._stopping = False
        self._extends = False

    # Where the launch is.

    @property
    def step_count(self) -> int:
        """Optimizer steps done, those before a resumed checkpoint included."""
        return self._position.step

    @property
    def items(self) -> int:
        """Items seen by all ranks, those before a resumed checkpoint included."""
        return self._position.items

    @property
    def is_done(self) -> bool:
        """Whether the budget of the launch is used up, or validation has stopped improving. Always false by hand."""
        return not self.by_hand and self._budget.is_used_up()

    @property
    def total_steps(self) -> int | None:
        """Optimizer steps of the whole launch; ``None`` by hand, and before they can be known."""
        return self._reporter.total_steps

    @property
    def budget(self) -> Budget:
        """The length of the launch, for frameworks that need it in advance."""
        return self._budget

    @property
    def validates_first(self) -> bool:
        """Whether validation before the first step is due: there was none yet, or the checkpoint is at the end of the launch."""
        at_end = self._budget.has_known_end and self.is_done and self._validated_at() != self.items
        return self._plan.evaluates and (self._position.first_validation is None or at_end)

    # The loop.

    def steps(
        self,
        loader: Iterable[Batch],
        *,
        evaluate: Evaluate | None = None,
        epochs: int = 1,
        items_per_epoch: int | None = None,
    ) -> Iterator[Batch]:
        """The batches of ``loader``, from the position of the checkpoint to the end of the launch.

        The loader is iterated again until the budget of the launch is used up; outside of Pawl, ``epochs`` times. Call
        :meth:`step` after each optimizer step. ``evaluate`` returns the validation metrics, ``loss`` among them; it is called
        when the plan requires it, and the result is reported. ``items_per_epoch`` is needed for a loader whose dataset has
        no length.

        A checkpoint contains the place in the data: the epoch, the batches of it that were seen, and the states of the random
        number generators. A resumed launch passes over the batches that were seen, whatever the loader; one with
        ``state_dict`` and ``load_state_dict`` (torchdata's ``StatefulDataLoader``) is restored without reading them.

        Raises:
            LaunchEnd: The launch is a preflight, or was requested to stop; it exits the process.
            Unsupported: A setting of the plan was not read.
        """
        if not self.by_hand and self.kind == "Measure":
            # Not in the loops of frameworks: a Trainer logs where a window ends, which the ranks must agree on, and each has its own time.
            self._throughput.limit = self._plan.window_limit(self.world_size)
        self.start(evaluate=evaluate, items_per_epoch=items_per_epoch or _length(getattr(loader, "dataset", None)), until_done=True)
        self.reads(loader)
        place = self.place_in(loader)
        while not self.is_done:
            for batch in self._timed(place.begin(self.seed)):
                place.see(batch)
                yield batch
                self.end_if_stopped()
                if self.is_done:
                    return
            if not place.batches:
                raise InvalidPlan("run.steps: the loader yields no batch: use a smaller batch, or more data")
            place.end_epoch()
            if self.by_hand and place.epoch >= epochs:
                self._validate()
                return

    def start(self, *, evaluate: Evaluate | None = None, items_per_epoch: int | None = None, until_done: bool = False) -> None:
        """Begins the launch; :meth:`steps` calls it. Ends a preflight.

        ``until_done``: the loop ends when :attr:`is_done` is true, and not before. Only then may a measurement have further windows.
        """
        if self._started:
            return
        self._extends = until_done and not self.by_hand and self.kind == "Measure"
        self.settings.require_read()
        self._budget.items_per_epoch = self._reporter.items_per_epoch = items_per_epoch
        self._evaluate = evaluate
        if self.kind == "Preflight":
            self._keeper.probe()
            self._end(Outcome.DONE)
        if self._keeper.resumed is not None and not self._checkpoint_read:
            raise Unsupported(
                f"checkpoint {self._keeper.resumed.path.name}: this script does not resume: {advice().resume}"
            )
        self._started = True
        self._meter.watch_collectives()
        if self.validates_first:
            self.should_evaluate = True
        self._enter_phase()
        self._reporter.publish(now=True)
        if self.should_evaluate:
            self._validate()
        if not self.should_evaluate:
            self._meter.resume()

    def begin_step(self, waited: float) -> None:
        """For frameworks with their own loop: the batches of the next step were fetched, in ``waited`` seconds."""
        self._meter.waited(waited)
        self._meter.resume()

    def waiting(self) -> AbstractContextManager[None]:
        """For frameworks with their own loop: times a wait for other ranks that no hook of PyTorch sees."""
        return nullcontext() if self.by_hand else self._meter.waiting()

    def step(self, *, items: int | None = None, loss: Any = None, processed: int | None = None) -> None:
        """Ends an optimizer step of ``items`` items of this rank (default: ``batchPerGpu`` x accumulation).

        ``loss`` is the mean training loss of the step: a number or a tensor; one on a device is read at the end of a
        measurement window and before a checkpoint only, so that the device does not wait. ``processed`` is the number of
        items for the throughput, where a step counts more towards the budget.

        Raises:
            NonFinite: A loss is NaN or infinite.
            LossSpike: The loss rose far above its recent level.
        """
        if not self.by_hand:
            self.start()
        mine = items if items is not None else self.batch_size * self.accumulation_steps
        before, first = self._position.items, self._position.step
        if self.by_hand:
            self._position.step += 1
            self._position.items += mine * self.world_size
            return
        self._meter.resume()
        self._position.step += 1
        self._position.items += mine * self.world_size
        first_of_process = self._reporter.total_steps is None
        self._reporter.total_steps = self._budget.steps(mine)
        if first_of_process:
            total = self._reporter.total_steps
            self._throughput.warmup = self._budget.warmup(None if total is None else total - first)
        self._meter.step((mine if processed is None else processed) * self.world_size, loss, self.is_done)
        if self._meter.vote_is_due() or self.is_done:
            self._agree()
        self._after_step(before)
        # The agent counts the time without a step from the first one on.
        self._reporter.publish(now=self._enter_phase() or first_of_process)

    def _agree(self) -> None:
        agreed = self._meter.vote(self._stop_requested, self._keeper.is_due())
        self._keeper.agreed()
        self._stopping = self._stopping or agreed.stop
        if self._keeper.keeps and (agreed.checkpoint or self._stopping):
            self.should_checkpoint = True
        if self.kind == "Measure":
            self._end_measurement(agreed)

    def _end_measurement(self, agreed: Agreement) -> None:
        """Ends the warm-up or the window of a measurement, by its steps or by time; one that is not steady on some rank is replaced
        by another one."""
        if agreed.lasted and not self.is_done:
            if self._throughput.open_steps:
                self._meter.end_window()
            if self._throughput.is_warming_up:
                self._throughput.end_warmup()
                self._budget.begin_window()
                return
            self._budget.end_window()
        if not self.is_done:
            return
        self._reporter.steady = agreed.steady
        if not agreed.steady and self._extends and not self._stopping and self._throughput.may_extend():
            self._reporter.curve.end(self._reporter.complete_items)
            self._throughput.extend_warmup()
            self._budget.begin_window()

    def _after_step(self, before: int) -> None:
        """Evaluation and checkpoint that are due after a step."""
        if self._budget.evaluation_due(before, self._validated_at()):
            self.should_evaluate = True
            self._meter.pause()
            self._enter_phase()
            self._reporter.publish(now=True)
            self._validate()
        if self._keeper.keeps and self.is_done:
            self.should_checkpoint = True
        if self.should_evaluate or self.should_checkpoint:
            self._meter.pause()

    def _enter_phase(self) -> bool:
        """Notes what follows: the script evaluates, saves or trains."""
        phase = "Validating" if self.should_evaluate else "Saving" if self.should_checkpoint else "Training"
        return self._reporter.enter(phase)

    def heartbeat(self) -> None:
        """Reports that an evaluation or a checkpoint advances. Where one is longer than ``lifecycle.hangTimeout``, call it
        after each batch or file, never from a timer."""
        self._reporter.heartbeat += 1
        self._reporter.publish()

    @property
    def window_ended(self) -> bool:
        """Whether the last step ended a measurement window: reading the loss from the device costs nothing now."""
        return self._meter.window_ended

    def record_loss(self, loss: float) -> None:
        """Records the training loss that a framework has computed: the mean of all ranks and of the steps since the last call.

        Raises:
            NonFinite: It is NaN or infinite.
            LossSpike: The loss rose far above its recent level.
        """
        self._meter.record_mean(loss)

    def barrier(self) -> None:
        """Waits for all ranks."""
        self._gang.barrier()

    def _timed(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """The batches, with the time of waiting for each one."""
        while True:
            if not self.by_hand:
                self._meter.resume()
            begun = time.perf_counter()
            try:
                batch = next(batches)
            except StopIteration:
                return
            finally:
                self._meter.waited(time.perf_counter() - begun)
            yield batch

    @property
    def keeps_checkpoints(self) -> bool:
        """Whether the launch keeps checkpoints: it is a training."""
        return self._keeper.keeps

    def place_in(self, loader: Iterable[Any]) -> DataPlace:
        """The place in the batches of ``loader`` at which the launch begins. For frameworks with their own loop."""
        size = getattr(loader, "batch_size", None)
        # Not the property: only what the script reads counts as used.
        items = (size if isinstance(size, int) else self._plan.settings.get("batchPerGpu") or 0) * self.world_size
        place, epoch = self._place.of(loader, items), self._budget.items_per_epoch
        if not place.is_known and self.items and epoch and items:
            # The checkpoint is of another job's position, or of an earlier version of this package.
            place.epoch, place.batches = self.items // epoch, self.items % epoch // items
        return place

    def reads(self, loader: Any) -> None:
        """Reports which data the launch reads: those of ``loader``, as far as its library names them. For frameworks with
        their own loop; :meth:`steps` does so itself."""
        self._reporter.data = source.of(loader)

    # Evaluation.

    def report(self, metrics: Mapping[str, float]) -> None:
        """Reports validation metrics at the present number of items; the mean over the ranks is used. ``loss`` is required.

        Raises:
            NonFinite: The validation loss is NaN or infinite.
        """
        if self.by_hand:
            if self.rank == 0:
                print("validation: " + ", ".join(f"{name} {float(value):.6g}" for name, value in metrics.items()), flush=True)
            return
        if "loss" not in metrics:
            raise InvalidPlan(f"run.report: {_reported(metrics)}: report the validation loss as 'loss'")
        names = sorted(metrics)
        rows = self._gang.gather([float(metrics[name]) for name in names])
        means = {name: sum(row[index] for row in rows) / len(rows) for index, name in enumerate(names)}
        if not math.isfinite(means["loss"]):
            raise NonFinite(
                f"the validation loss is {means['loss']} after step {self.step_count}; lower settings.learningRate or set "
                "settings.gradientClip"
            )
        finite = {name: value for name, value in means.items() if math.isfinite(value)}
        validation = {"items": self.items, "metrics": finite}
        self._reporter.validation = validation
        if self._position.first_validation is None:
            self._position.first_validation = validation
        if self.step_count > 0:
            self._position.improve(self._plan.early_stopping if self.kind == "Train" else None, finite)
            self._keeper.compare(finite)
            # Early stopping may have ended the launch.
            self.should_checkpoint |= self._keeper.has_new_best or (self.is_done and self._keeper.has_unsaved_steps)
        self.should_evaluate = False
        self._enter_phase()
        self._reporter.publish(now=True)

    def _validated_at(self) -> int | None:
        validation = self._reporter.validation
        return None if validation is None else int(validation["items"])

    def _validate(self) -> None:
        if self._evaluate is None:
            return
        metrics = self._evaluate()
        if not isinstance(metrics, Mapping) or not self.by_hand and "loss" not in metrics:
            returned = _reported(metrics) if isinstance(metrics, Mapping) else f"returned {metrics!r:.80}, not a dictionary"
            raise InvalidPlan(f"run.steps(evaluate=...): {returned}: return the validation loss as {{'loss': value}}")
        self.report(metrics)

    # Checkpoints.

    def get_checkpoint(self) -> Path | None:
        """The directory of the checkpoint from which this launch resumes; ``None``: it starts from the beginning."""
        self._checkpoint_read = True
        return None if self._keeper.resumed is None else self._keeper.resumed.path

    @property
    def resumes_weights_only(self) -> bool:
        """Whether only the weights of the checkpoint are wanted: it is of another job (``train.resumeFrom``)."""
        return self._keeper.weights_only

    @contextmanager
    def checkpoint(self) -> Iterator[Path]:
        """A directory for the files of a checkpoint, which is complete after the ``with`` block. All ranks must enter it;
        what is equal on all ranks is written by rank 0 only. Where none is kept, the directory is temporary.

        Raises:
            NonFinite: A training loss since the last measurement window is NaN or infinite: so are the weights.
            LossSpike: The loss rose far above its recent level.
        """
        self._meter.pause()
        self._meter.read_losses()
        if self._reporter.enter("Saving"):
            self._reporter.publish(now=True)
        with self._keeper.write(self._place.state()) as directory:
            yield directory
            if self._keeper.keeps:
                self._place.save(directory)
        self._reporter.saved()
        self.should_checkpoint = False
        self._enter_phase()
        self._reporter.publish(now=True)

    # The end.

    def finish(self) -> None:
        """Reports the end of the launch. Called by itself at the end of the script.

        Raises:
            Unsupported: The budget of the launch is not used up, or validation was not reported, or the last checkpoint was
                not written.
        """
        if self.by_hand or self._ended:
            return
        self.end_if_stopped()
        if not self._started or not self.is_done:
            total = "" if self.total_steps is None else f" of {self.total_steps}"
            remedy = advice().go_on if self.step_count else advice().begin
            raise Unsupported(f"the script ended after step {self.step_count}{total}: {remedy}")
        if self._plan.evaluates and self._validated_at() != self.items:
            raise Unsupported(f"no validation was reported after {self.items} items: {advice().validate}")
        self._require_saved()
        self._report_end(Outcome.DONE)

    def _is_complete(self) -> bool:
        """Whether :meth:`finish` would report that the launch is done."""
        if self.by_hand or self._ended or self._stopping or not self._started or not self.is_done:
            return False
        return not (self._plan.evaluates and self._validated_at() != self.items) and not self._keeper.has_unsaved_steps

    def leave(self) -> None:
        """Ends what this rank shares with the others, after :meth:`finish`. Called by itself at the end of the interpreter."""
        self._gang.leave()

    def end_if_stopped(self) -> None:
        """Ends the launch if all ranks have agreed to stop; a checkpoint was written before.

        Raises:
            LaunchEnd: It exits the process.
            Unsupported: The script has not written the checkpoint.
        """
        if self._stopping:
            self._require_saved()
            self._end(Outcome.STOPPED)

    def _require_saved(self) -> None:
        if self._keeper.has_unsaved_steps:
            raise Unsupported(
                f"no checkpoint was written after step {self.step_count}: this script does not save: {advice().save}"
            )

    def request_stop(self) -> None:
        """Asks all ranks to stop after the present step, with a checkpoint."""
        self._stop_requested = True
        if not self._started and not self._ended:
            # There is nothing to save yet, and the first step may be far.
            self._end(Outcome.STOPPED)

    def fail(self, error: BaseException) -> int:
        """Reports that ``error`` ends the launch. Returns the exit code."""
        if isinstance(error, LaunchEnd):
            return error.outcome.exit_code
        if not isinstance(error, LaunchError) and self._is_complete():
            # What the script does after its last step is not part of the launch.
            self._report_end(Outcome.DONE, f"all steps were done; after them, the script ended with {type(error).__name__}: {error}")
            return 0
        outcome = classify(error)
        self._ended = True
        if outcome.is_divergence:
            self._keeper.discard_after(self._reporter.healthy[1])
        self._reporter.peak_memory = self._reporter.peak_memory or device.peak_memory()
        self._reporter.report(outcome, f"{error}" if isinstance(error, LaunchError) else f"{type(error).__name__}: {error}")
        return outcome.exit_code

    def _end(self, outcome: Outcome) -> NoReturn:
        self._report_end(outcome)
        raise LaunchEnd(outcome)

    def _report_end(self, outcome: Outcome, message: str = "") -> None:
        self._ended = True
        if outcome is Outcome.STOPPED:
            message = f"stopped on request at step {self.step_count}"
        self._reporter.publish(now=True)
        if self.rank == 0 or outcome is not Outcome.DONE:
            self._reporter.report(outcome, message)


def _reported(metrics: Mapping[str, float]) -> str:
    return f"no metric 'loss', only {', '.join(metrics)}" if metrics else "no metrics"


def _length(dataset: Any) -> int | None:
    try:
        return len(dataset)
    except TypeError:
        return None
