"""The training loss: its curve for the report, and the detection of spikes."""

from __future__ import annotations

import math
from collections import deque
from statistics import median
from typing import Any

_POINTS = 64
_RECENT = 64
_LEAST = 24
_IN_A_ROW = 3


def steps_before_last_quarter(steps: int) -> int:
    """Steps of a launch of ``steps`` that come before the last quarter of its curve, the mean of which is the loss of the launch.

    >>> [steps_before_last_quarter(steps) for steps in (1, 8, 60, 100)]
    [0, 6, 45, 74]
    """
    stride = 1
    while steps // stride >= _POINTS:
        stride *= 2
    points = math.ceil(steps / stride)
    return (points - math.ceil(points / 4)) * stride


class Curve:
    """The loss curve with fewer than 64 points, each the mean of an equal number of steps (the last of fewer)."""

    def __init__(self) -> None:
        self._points: list[tuple[int, float]] = []
        self._stride = 1
        self._sum = 0.0
        self._count = 0
        self._items = 0

    def begin(self, items: int) -> None:
        """Sets the items at which the first step begins."""
        self._items = items

    def add(self, items: int, loss: float, steps: int = 1) -> None:
        """Adds the mean loss of the last ``steps`` steps, the last of which ended at ``items`` items."""
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


class SpikeWatch:
    """Detects loss spikes with the same rule as Pawl's own trainer.

    The recent level is the median ``m`` of the last 64 losses, their spread ``s`` is 1.4826 times the median absolute
    deviation, and the first level ``f`` is the median of the first 24. Three consecutive losses above
    ``m + max(10 s, 2 |m|, |f| / 20)`` are a spike. Detection starts after 24 steps.
    """

    def __init__(self) -> None:
        self._recent: deque[float] = deque(maxlen=_RECENT)
        self._above = 0
        self._first = 0.0

    def add(self, loss: float) -> float | None:
        """Adds the loss of a step; returns the bound if this is a spike."""
        bound = self._bound()
        if bound is None or loss <= bound:
            self._above = 0
            self._recent.append(loss)
            if len(self._recent) == _LEAST:
                self._first = median(self._recent)
            return None
        self._above += 1
        return bound if self._above >= _IN_A_ROW else None

    def _bound(self) -> float | None:
        if len(self._recent) < _LEAST:
            return None
        middle = median(self._recent)
        spread = 1.4826 * median(abs(loss - middle) for loss in self._recent)
        return middle + max(10 * spread, 2 * abs(middle), abs(self._first) / 20)
