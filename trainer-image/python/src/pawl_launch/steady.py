"""Whether the speed of a measurement window is that of a steady state: the rule of ``crds/contract/src/steady.rs``, which explains
it. Both are tested with ``crds/contract/tests/steady.json``."""

from __future__ import annotations

import math
from collections.abc import Sequence

EXTENSIONS = 4
"""Number of times that a launch is extended by another window."""
BLOCKS = 10
"""Number of blocks of a window."""
_LIMIT = 3.5
_IMMATERIAL = 0.01


def is_steady(spans: Sequence[tuple[int, float]]) -> bool | None:
    """Whether the halves of a window agree, from consecutive numbers of steps and the seconds that they took together.

    >>> is_steady([(1, 0.1)] * 50), is_steady([(1, 0.1 + 0.001 * step) for step in range(50)]), is_steady([(25, 2.5)] * 2)
    (True, False, None)
    """
    blocks = _blocks(spans)
    if blocks is None:
        return None
    half = BLOCKS // 2
    first, second = sum(blocks[:half]) / half, sum(blocks[half:]) / half
    squares = [(after - before) ** 2 for before, after in zip(blocks, blocks[1:])]
    variance = max(0.0, sum(squares) - max(squares)) / (2 * (BLOCKS - 2))
    error = math.sqrt(variance * 4 / BLOCKS)
    apart = abs(second - first)
    return apart <= _LIMIT * error or apart <= _IMMATERIAL * (first + second) / 2


def _blocks(spans: Sequence[tuple[int, float]]) -> list[float] | None:
    """Seconds of a step in each block; a span belongs to the block of its middle."""
    total, done = sum(steps for steps, _ in spans), 0
    sums = [(0, 0.0)] * BLOCKS
    for steps, seconds in spans:
        place = min(BLOCKS - 1, (2 * done + steps) * BLOCKS // (2 * max(1, total)))
        before = sums[place]
        sums[place] = (before[0] + steps, before[1] + seconds)
        done += steps
    return [seconds / steps for steps, seconds in sums] if all(steps for steps, _ in sums) else None
