"""The training loss: its curve for the report, and the detection of spikes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_POINTS = 64
_RECENT = 64
_NEWEST = 32
_LEAST = 24
_IN_A_ROW = 3
_SIGMAS = 6.0
_SHARE = 0.2
_OF_MEDIAN = 1.4826
_TO_90 = 1.2816


def steps_before_quarters(steps: int) -> tuple[int, ...]:
    """Steps of a launch of ``steps`` that come before each quarter of its curve but the first. Their means are compared between
    launches; that of the last one is the loss of the launch.

    >>> [steps_before_quarters(steps) for steps in (1, 8, 60, 100)]
    [(0, 0, 0), (2, 4, 6), (15, 30, 45), (24, 50, 74)]
    """
    stride = 1
    while steps // stride >= _POINTS:
        stride *= 2
    points = math.ceil(steps / stride)
    return tuple(points * quarter // 4 * stride for quarter in (1, 2, 3))


class Curve:
    """The loss curve with fewer than 64 points, each the mean of an equal number of steps (the last of fewer)."""

    def __init__(self) -> None:
        self._points: list[tuple[int, float]] = []
        self._stride = 1
        self._sum = 0.0
        self._count = 0
        self._items = 0
        self._end: int | None = None

    def end(self, items: int) -> None:
        """Leaves out losses after so many items: launches are compared by those of the same steps."""
        self._end = items if self._end is None else self._end

    def begin(self, items: int) -> None:
        """Sets the items at which the first step begins."""
        self._items = items

    def add(self, items: int, loss: float, steps: int = 1) -> None:
        """Adds the mean loss of the last ``steps`` steps, the last of which ended at ``items`` items."""
        if self._end is not None and items > self._end:
            return
        before = self._items
        for step in range(1, steps + 1):
            self._add(before + (items - before) * step // steps, loss)

    def _add(self, items: int, loss: float) -> None:
        self._sum, self._count, self._items = self._sum + loss, self._count + 1, items
        if self._count < self._stride:
            return
        self._points.append((items, self._sum / self._count))
        self._sum, self._count = 0.0, 0
        if len(self._points) == _POINTS:
            pairs = zip(self._points[::2], self._points[1::2])
            self._points = [(second[0], (first[1] + second[1]) / 2) for first, second in pairs]
            self._stride *= 2

    def points(self) -> list[dict[str, Any]]:
        """The curve so far, as in ``report.json``."""
        rest = [(self._items, self._sum / self._count)] if self._count else []
        return [{"items": items, "loss": loss} for items, loss in self._points + rest]


@dataclass
class SpikeWatch:
    """Detects loss spikes with the rule of ``pawl_contract::losses``: ``tests/losses.json`` holds both to the same verdicts.

    Three consecutive losses that exceed the recent level by more than six standard deviations of the noise, and by more than a
    fifth of the level, are a spike. Detection starts after 24 losses. Its fields are part of every checkpoint: a resumed training
    is judged by the losses before the interruption.
    """

    first: float | None = None
    recent: list[float] = field(default_factory=list)
    above: int = 0

    def add(self, loss: float) -> float | None:
        """Adds a finite loss; returns the bound if this is a spike."""
        bound = self._bound()
        if bound is not None and loss > bound:
            self.above += 1
            return bound if self.above >= _IN_A_ROW else None
        self.above = 0
        self.recent = [*self.recent[1 - _RECENT :], loss]
        if len(self.recent) == _LEAST and self.first is None:
            self.first = _median(self.recent)
        return None

    @property
    def is_healthy(self) -> bool:
        """Whether the last loss shows a healthy training: it was not above the bound."""
        return self.above == 0

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {"firstLoss": self.first, "recentLosses": self.recent, "lossesAbove": self.above}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> SpikeWatch:
        """That of a checkpoint; of one that was written by an earlier version, an empty one."""
        return cls(state.get("firstLoss"), list(state.get("recentLosses") or []), int(state.get("lossesAbove") or 0))

    def _bound(self) -> float | None:
        losses = self.recent
        if len(losses) < _LEAST:
            return None
        middle = _median(losses)
        level = max(middle, _median(losses[-_NEWEST:]))
        noise = max(
            _OF_MEDIAN * _median([abs(loss - middle) for loss in losses]),
            (sorted(losses)[len(losses) * 9 // 10] - middle) / _TO_90,
            _OF_MEDIAN * _median([abs(after - before) for before, after in zip(losses, losses[1:])]) / math.sqrt(2),
        )
        floor = _SHARE * max(abs(level), abs(self.first or 0.0) / 4 - abs(level))
        return level + max(_SIGMAS * noise, floor)


def _median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]
