"""Measures the steps of a launch: their times, losses and memory, and the agreement of all ranks at step boundaries."""

from __future__ import annotations

import math
import os
import time
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from . import device
from .gang import Gang
from .losses import steps_before_quarters
from .outcome import LossSpike, NonFinite, Unsupported
from .progress import Reporter
from .waits import CollectiveWaits

_VOTE_SECONDS = 1.0
_MOST_STEPS = 1000


@dataclass(frozen=True)
class Agreement:
    """What all ranks have agreed on after a step."""

    stop: bool
    checkpoint: bool
    steady: bool = True
    lasted: bool = False
    """Whether the warm-up, or the window, of a measurement has lasted long enough on rank 0."""


class Meter:
    """Measures steps. The device is synchronized only at the edges of windows, and losses on it are read there.

    A window is at least 10 steps and 2 seconds long; the end of the warm-up and of the launch are edges too, and so is the
    step before each quarter of the losses, the means of which are compared between launches: otherwise they would be over a
    number of steps that depends on their speed. Ranks agree about once a second, at a step that all of them know in advance.
    """

    def __init__(self, gang: Gang, reporter: Reporter) -> None:
        self._gang = gang
        self._reporter = reporter
        self._throughput = reporter.throughput
        self._position = reporter.position
        self._waits = CollectiveWaits()
        self._pending: list[tuple[int, int, Any]] = []
        self._sum, self._count = 0.0, 0
        self._recorded: int | None = None
        self._next_vote = 0
        self._paused = True
        self._mark = 0.0
        self._busy_mark = 0.0
        self._waited = 0.0
        self.window_ended = False

    def watch_collectives(self) -> None:
        """Measures the waits for other ranks from now on, where there are any."""
        if self._gang.world_size > 1:
            self._waits.install()

    def pause(self) -> None:
        """Leaves out the time until :meth:`resume`: of evaluations and checkpoints."""
        if self._paused:
            return
        device.synchronize()
        # The device was still working on the last step.
        self._throughput.extend(time.perf_counter() - self._mark)
        self._throughput.waited_for_ranks(self._waits.take())
        self._paused = True

    def resume(self) -> None:
        """Measures again, if it was paused."""
        if not self._paused:
            return
        device.synchronize()
        # Evaluations wait for other ranks too.
        self._waits.take()
        self._mark, self._busy_mark, self._waited = time.perf_counter(), time.process_time(), 0.0
        self._paused = False

    def waited(self, seconds: float) -> None:
        """Adds time in which the current step waited for data."""
        if not self._paused:
            self._waited += seconds

    def waiting(self) -> AbstractContextManager[None]:
        """A wait for other ranks that no hook of PyTorch sees."""
        return self._waits.waiting()

    def end_window(self) -> None:
        """Ends the open window with the step just added."""
        self._end_window(self._throughput.is_full(self._throughput.open_seconds))

    def step(self, items: int, loss: Any, done: bool) -> None:
        """Ends a step of ``items`` items of the whole gang; the position is the one after it.

        Raises:
            NonFinite: A loss is NaN or infinite.
            LossSpike: The loss rose far above its recent level.
        """
        now, busy = time.perf_counter(), time.process_time()
        self._throughput.add(now - self._mark, items, self._waited, busy - self._busy_mark)
        self._reporter.longest_step = max(self._reporter.longest_step, now - self._mark)
        self._mark, self._busy_mark, self._waited = now, busy, 0.0
        self.window_ended = False
        if self._recorded is None:
            self._recorded = self._position.step - 1
            self._reporter.curve.begin(self._position.items - items)
        if loss is not None:
            self._pending.append((self._position.step, self._position.items, device.detached(loss)))
            if not device.is_pending(loss):
                self.read_losses()
        ends_block = self._throughput.at_end_of_block and not device.uses_cpu()
        if self._throughput.at_end_of_warmup or ends_block or self._ends_quarter() or done:
            self.end_window()

    def _ends_quarter(self) -> bool:
        steps = self._reporter.total_steps
        return steps is not None and self._position.step in (*steps_before_quarters(steps), steps)

    def record_mean(self, loss: float) -> None:
        """Records the mean training loss of all ranks since the last call.

        Raises:
            NonFinite: It is NaN or infinite.
            LossSpike: The loss rose far above its recent level.
        """
        position = self._position
        steps = max(1, position.step - (self._recorded or 0))
        self._recorded = position.step
        self._check(position.step, position.items, loss)
        self._reporter.loss = loss
        self._reporter.curve.add(position.items, loss, steps)

    def vote_is_due(self) -> bool:
        """Whether the ranks agree after this step; true or false on all of them."""
        return self._position.step >= self._next_vote or self._ends_quarter()

    def vote(self, stop: bool, checkpoint: bool) -> Agreement:
        """Agrees on stopping (any rank), on a checkpoint (rank 0), and on the end of the window. Collective.

        Raises:
            Unsupported: The ranks have seen different numbers of items.
        """
        peak = self._reporter.peak_memory or 0
        lasted = self._throughput.has_lasted()
        if lasted:
            # Whether it is steady is seen by closed windows.
            self.end_window()
        unsteady = self._throughput.is_steady() is False
        mine = [stop, checkpoint, self._throughput.open_seconds, self._position.items, self._sum, self._count, peak, unsteady, lasted]
        self._sum, self._count = 0.0, 0
        rows = self._gang.gather([float(value) for value in mine])
        stops, checkpoints, seconds, items, sums, counts, peaks, unsteadies, lasting = zip(*rows)
        if len(set(items)) > 1:
            raise Unsupported(
                f"the ranks have seen {', '.join(str(int(each)) for each in items)} items: each step must have equal items on "
                "all ranks: use a DistributedSampler and drop_last=True, and the same checkpoint on all ranks"
            )
        if peak:
            self._reporter.peak_memory = int(max(peaks))
        if self._gang.world_size > 1 and sum(counts):
            self._reporter.loss = sum(sums) / sum(counts)
            self._reporter.curve.add(self._position.items, self._reporter.loss, round(sum(counts) / len(counts)))
        if self._throughput.is_full(max(seconds)):
            self._end_window(full=True)
        self._next_vote = self._position.step + self._steps_until_vote(max(seconds))
        return Agreement(any(stops), bool(checkpoints[0]), not any(unsteadies), bool(lasting[0]))

    def _steps_until_vote(self, seconds: float) -> int:
        """Number of steps to the next vote, equal on all ranks. A single rank votes after every step."""
        if self._gang.world_size == 1 or seconds <= 0.0:
            return 1
        steps = max(1, self._throughput.open_steps)
        return max(1, min(_MOST_STEPS, int(_VOTE_SECONDS * steps / seconds)))

    def _end_window(self, full: bool) -> None:
        begun = time.perf_counter()
        device.synchronize()
        self._mark = time.perf_counter()
        self._throughput.extend(self._mark - begun)
        self._throughput.is_asynchronous = not device.uses_cpu()
        self._throughput.waited_for_ranks(self._waits.take())
        self._throughput.close(full)
        self.window_ended = True
        self.read_losses()
        self._reporter.peak_memory = max(device.peak_memory(), self._reporter.peak_memory or 0)
        if device.uses_cpu():
            self._reporter.cpus = len(os.sched_getaffinity(0))

    def read_losses(self) -> None:
        """Reads the losses that are still on the device.

        Raises:
            NonFinite: A loss is NaN or infinite.
            LossSpike: The loss rose far above its recent level.
        """
        pending, self._pending = self._pending, []
        for step, items, loss in pending:
            value = float(loss)
            self._check(step, items, value)
            self._sum, self._count = self._sum + value, self._count + 1
            if self._gang.world_size == 1:
                self._reporter.loss = value
                self._reporter.curve.add(items, value)

    def _check(self, step: int, items: int, loss: float) -> None:
        if not math.isfinite(loss):
            raise NonFinite(
                f"the training loss is {loss} at step {step}; lower settings.learningRate, set settings.gradientClip, or use a "
                "wider settings.precision"
            )
        watch = self._position.losses
        bound = watch.add(loss)
        if watch.is_healthy:
            self._reporter.healthy = (step, items)
        if bound is not None:
            raise LossSpike(
                f"the training loss spiked at step {step}: {loss:.4f}, three consecutive steps above {bound:.4f}; lower "
                "settings.learningRate, or set settings.gradientClip or warmupSteps"
            )
