"""Throughput: step times, waits for data and for other ranks, and the CPU's utilization, over the measurement window and its
sub-windows."""

from __future__ import annotations

from dataclasses import dataclass, field

from .plan import WindowLimit
from .steady import BLOCKS, EXTENSIONS, is_steady

_LEAST_SECONDS = 2.0
_LEAST_STEPS = 10


@dataclass
class Throughput:
    """Times of the steps after the warm-up.

    Work on a device is asynchronous: the time of a step is only exact over a *window*, at whose edges the device was
    synchronized. ``items_per_second`` therefore counts complete windows only.
    """

    warmup: int
    measured: int | None = None
    """Steps of the window of a measurement."""
    limit: WindowLimit | None = None
    """When a measurement ends by time."""
    steps: list[float] = field(default_factory=list)
    spans: list[tuple[int, float]] = field(default_factory=list)
    """Steps that were timed together, and their seconds."""
    extensions: int = 0
    is_asynchronous: bool = False
    """Whether the times of single steps are not those of the device."""
    items: int = 0
    seconds: float = 0.0
    loader: float = 0.0
    busy: float = 0.0
    collective: float | None = None
    windows: int = 0
    newest: float | None = None
    _open: list[float] = field(default_factory=list)
    _seconds: float = 0.0
    _items: int = 0
    _loader: float = 0.0
    _busy: float = 0.0
    _collective: float | None = None
    _seen: int = 0
    _stage: tuple[int, float] = (0, 0.0)

    def add(self, seconds: float, items: int, loader: float, busy: float) -> None:
        """Adds a step of ``items`` items of the whole gang that took ``seconds``, of which ``loader`` waiting for data."""
        self._seen += 1
        steps, elapsed = self._stage
        self._stage = (0, 0.0) if self.at_end_of_warmup else (steps + 1, elapsed + seconds)
        self._open.append(seconds)
        self._seconds += seconds
        self._items += items
        self._loader += loader
        self._busy += busy

    @property
    def at_end_of_warmup(self) -> bool:
        """Whether the step just added was the last one of the warm-up."""
        return self._seen == self.warmup

    @property
    def at_end_of_block(self) -> bool:
        """Whether the step just added ends a block of a measurement: with that many times it can be seen to be steady."""
        after = self._seen - self.warmup
        if self.measured is None or after <= 0:
            return False
        slow = self.limit is not None and self._seconds >= self.limit.seconds / BLOCKS
        return slow or after % max(1, self.measured // BLOCKS) == 0

    @property
    def is_warming_up(self) -> bool:
        """Whether the steps are still those of the warm-up."""
        return self._seen < self.warmup

    def has_lasted(self) -> bool:
        """Whether the warm-up, or else the window, of a measurement has lasted as long as its limit says."""
        if self.limit is None or self.measured is None:
            return False
        least = self.limit.warmup_steps if self.is_warming_up else self.limit.window_steps
        return self._stage[0] >= max(1, least) and self._stage[1] >= self.limit.seconds

    @property
    def open_seconds(self) -> float:
        """Seconds of the steps of the open window."""
        return self._seconds

    @property
    def open_steps(self) -> int:
        """Number of steps of the open window."""
        return len(self._open)

    def is_full(self, seconds: float) -> bool:
        """Whether the open window is long enough when it took the slowest rank ``seconds``: 10 steps and 2 seconds."""
        return len(self._open) >= _LEAST_STEPS and seconds >= _LEAST_SECONDS and not self.is_warming_up

    def extend(self, seconds: float) -> None:
        """Adds the time of a synchronization to the last step: the device was still working on it."""
        if self._open:
            self._open[-1] += seconds
            self._seconds += seconds
            self._stage = (self._stage[0], self._stage[1] + seconds)

    def waited_for_ranks(self, seconds: float | None) -> None:
        """Adds time in which steps of the open window waited for collectives; ``None``: it is unknown."""
        if seconds is not None:
            self._collective = (self._collective or 0.0) + seconds

    def close(self, full: bool) -> None:
        """Ends the open window; the device is synchronized. A window within the warm-up is discarded; only ``full`` ones
        count as windows of the guard."""
        if self._open and self._seen > self.warmup:
            self.steps += self._open
            if self.measured is not None:
                together = [(len(self._open), self._seconds)]
                self.spans += together if self.is_asynchronous else [(1, seconds) for seconds in self._open]
            self.items += self._items
            self.seconds += self._seconds
            self.loader += self._loader
            self.busy += self._busy
            if self._collective is not None:
                self.collective = (self.collective or 0.0) + self._collective
            if full:
                self.windows += 1
                self.newest = self._items / self._seconds
        self._open, self._seconds, self._items, self._loader, self._busy = [], 0.0, 0, 0.0, 0.0
        self._collective = None

    def is_steady(self) -> bool | None:
        """Whether the speed of a measurement is that of a steady state; ``None`` where that cannot be told."""
        return is_steady(self.spans)

    def may_extend(self) -> bool:
        """Whether another window may follow one that was not steady."""
        return self.extensions < EXTENSIONS

    def extend_warmup(self) -> None:
        """Counts the steps so far as warm-up, too: another window follows."""
        self.extensions += 1
        self.end_warmup()

    def end_warmup(self) -> None:
        """Ends the warm-up with the step just added."""
        self.warmup, self._stage = self._seen, (0, 0.0)
        self.steps, self.spans, self.collective = [], [], None
        self.items, self.seconds, self.loader, self.busy = 0, 0.0, 0.0, 0.0

    def items_per_second(self) -> float | None:
        """Items per second of the gang since the end of the warm-up."""
        return self.items / self.seconds if self.seconds > 0 else None

    def step_seconds(self) -> dict[str, float] | None:
        """10th percentile, median and 90th percentile of the seconds of a step."""
        if not self.steps:
            return None
        ordered = sorted(self.steps)

        def at(quantile: float) -> float:
            return ordered[round(quantile * (len(ordered) - 1))]

        return {"p10": at(0.1), "median": at(0.5), "p90": at(0.9)}

    def loader_share(self) -> float | None:
        """Share of the time in which steps waited for data."""
        return min(1.0, self.loader / self.seconds) if self.seconds > 0 else None

    def collective_share(self) -> float | None:
        """Share of the time in which steps waited for collectives; ``None`` if it is unknown."""
        return min(1.0, self.collective / self.seconds) if self.collective is not None and self.seconds > 0 else None

    def cpu_utilization(self, cpus: int) -> float | None:
        """Share of the time of ``cpus`` CPUs in which this process was running."""
        return min(1.0, self.busy / self.seconds / cpus) if self.seconds > 0 else None
