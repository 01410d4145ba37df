"""The position of a launch, and the files by which its rank reports: ``progress.json`` and ``report.json``."""

from __future__ import annotations

import logging
import math
import time
from dataclasses import dataclass, field
from typing import Any

from .device import provenance
from .files import replace
from .losses import Curve, SpikeWatch
from .outcome import Outcome
from .plan import CONTRACT, EarlyStopping, Plan, Rank
from .process import seconds_since_start
from .throughput import Throughput

_PERIOD = 0.3
_MESSAGE = 4096
_log = logging.getLogger("pawl_launch")


@dataclass
class Position:
    """Where a launch is. The fields after ``items`` are part of a checkpoint."""

    step: int = 0
    items: int = 0
    first_validation: dict[str, Any] | None = None
    best_validation: float | None = None
    evaluations_since_best: int = 0
    best_checkpoint: dict[str, Any] | None = None
    losses: SpikeWatch = field(default_factory=SpikeWatch)

    def improve(self, rule: EarlyStopping | None, metrics: dict[str, float]) -> None:
        """Updates the best value and the evaluations since then, for early stopping."""
        if rule is None:
            return
        value, best = metrics.get(rule.criterion.metric), self.best_validation
        better = value is not None and (best is None or rule.criterion.improves(value, best, rule.least))
        self.best_validation = value if better else best
        self.evaluations_since_best = 0 if better else self.evaluations_since_best + 1

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps besides step and items."""
        return {
            "firstValidation": self.first_validation,
            "bestValidation": self.best_validation,
            "evaluationsSinceBest": self.evaluations_since_best,
            "bestCheckpoint": self.best_checkpoint,
            **self.losses.state(),
        }

    def become(self, other: Position) -> None:
        """Takes the values of another position."""
        self.__dict__.update(other.__dict__)

    @classmethod
    def from_state(cls, step: int, items: int, state: dict[str, Any]) -> Position:
        """The position of a checkpoint."""
        return cls(
            step,
            items,
            state.get("firstValidation"),
            state.get("bestValidation"),
            int(state.get("evaluationsSinceBest", 0)),
            state.get("bestCheckpoint"),
            SpikeWatch.from_state(state),
        )


@dataclass
class Reporter:
    """Writes the progress of rank 0 a few times a second at most, and the report of any rank."""

    plan: Plan
    rank: Rank
    throughput: Throughput
    position: Position
    curve: Curve = field(default_factory=Curve)
    loss: float | None = None
    validation: dict[str, Any] | None = None
    last_checkpoint: dict[str, Any] | None = None
    items_per_epoch: int | None = None
    total_steps: int | None = None
    peak_memory: int | None = None
    cpus: int | None = None
    phase: str = "Starting"
    heartbeat: int = 0
    steady: bool = True
    longest_step: float = 0.0
    longest_save: float | None = None
    healthy: tuple[int, int] = (0, 0)
    resumed_items: int | None = None
    trained: list[dict[str, Any]] = field(default_factory=list)
    quarantined: list[str] = field(default_factory=list)
    data: dict[str, Any] | None = None
    _entered: float = field(default_factory=time.monotonic)
    _written: float = -math.inf

    def enter(self, phase: str) -> bool:
        """Notes what the rank does from now on, a ``RankPhase`` of the contract. Returns whether that is another phase."""
        changed = phase != self.phase
        if changed:
            self.phase, self._entered = phase, time.monotonic()
        return changed

    def saved(self) -> None:
        """Notes that the checkpoint of this phase is complete."""
        self.longest_save = max(self.longest_save or 0.0, time.monotonic() - self._entered)

    def _stop_seconds(self) -> float | None:
        """Estimated seconds from SIGTERM to the exit after a checkpoint; ``None`` before the first checkpoint."""
        return None if self.longest_save is None else self.longest_step + 2 * self.longest_save

    def publish(self, now: bool = False) -> None:
        """Writes ``progress.json`` if it is due, or ``now``. Failed writes are logged; training continues."""
        if self.rank.progress is None or self.rank.rank != 0 or (not now and time.monotonic() - self._written < _PERIOD):
            return
        self._written = time.monotonic()
        try:
            replace(self.rank.progress, _present(self._progress()))
        except OSError as error:
            _log.error("cannot write the progress: %s", error)

    def _progress(self) -> dict[str, Any]:
        position = self.position
        speed = self.throughput.newest or self.throughput.items_per_second()
        left = None if self.total_steps is None else max(0, self.total_steps - position.step)
        per_step = position.items / position.step if position.step else 0
        return {
            "launch": self.plan.launch,
            "kind": self.plan.kind,
            "phase": self.phase,
            "heartbeat": self.heartbeat,
            "step": position.step,
            "totalSteps": self.total_steps,
            "items": position.items,
            "resumedItems": self.resumed_items,
            "trained": self.trained or None,
            "quarantined": self.quarantined or None,
            "epoch": position.items // self.items_per_epoch if self.items_per_epoch else 0,
            "loss": self.loss,
            "itemsPerSecond": speed,
            "windows": self.throughput.windows,
            "etaSeconds": left * per_step / speed if left is not None and speed else None,
            "validation": self.validation,
            "lastCheckpoint": self.last_checkpoint,
            "stopSeconds": self._stop_seconds(),
        }

    def report(self, outcome: Outcome, message: str = "") -> None:
        """Writes ``report.json``, durably. A failed write is logged: the exit code still tells the outcome."""
        if self.rank.report is None:
            return
        position, failed = self.position, outcome is not Outcome.DONE
        # What was written after the last healthy loss of a divergence may be damaged.
        step, items = self.healthy if outcome.is_divergence else (position.step, position.items)
        content = {
            "contract": CONTRACT,
            "launch": self.plan.launch,
            "kind": self.plan.kind,
            "rank": self.rank.rank,
            "outcome": outcome.value,
            "message": message.encode()[:_MESSAGE].decode(errors="ignore"),
            **self._measured(),
            "provenance": _present(provenance() | {"data": self.data}) if self.rank.rank == 0 else None,
            "losses": self.curve.points(),
            "plannedItems": self.complete_items if outcome is Outcome.DONE and self._ended_by_time else None,
            "itemsPerEpoch": self.items_per_epoch,
            "lastCheckpoint": self.last_checkpoint,
            "bestCheckpoint": position.best_checkpoint,
            "stopSeconds": self._stop_seconds(),
            "failure": {"rank": self.rank.rank, "step": step, "items": items} if failed else None,
        }
        try:
            replace(self.rank.report, _present(content), durable=True)
        except OSError as error:
            _log.error("cannot write the report: %s", error)

    @property
    def complete_items(self) -> int:
        """Items of a complete measurement."""
        return self.plan.measured_steps * (self.position.items // max(1, self.position.step))

    @property
    def _ended_by_time(self) -> bool:
        plan = self.plan
        return plan.kind == "Measure" and self.position.step < plan.measured_steps

    def _measured(self) -> dict[str, Any]:
        return {
            "steps": self.position.step,
            "items": self.position.items,
            "wallSeconds": seconds_since_start(),
            "itemsPerSecond": self.throughput.items_per_second(),
            "steady": None if self.steady else False,
            "stepSeconds": self.throughput.step_seconds(),
            "firstValidation": self.position.first_validation,
            "validation": self.validation,
            "peakMemoryBytes": self.peak_memory,
            "loaderWaitShare": self.throughput.loader_share(),
            "collectiveWaitShare": self.throughput.collective_share(),
            "utilization": self.throughput.cpu_utilization(self.cpus) if self.cpus else None,
        }


def _present(content: dict[str, Any]) -> dict[str, Any]:
    """The fields that have a value."""
    return {name: value for name, value in content.items() if value is not None}
