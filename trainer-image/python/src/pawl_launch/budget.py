"""The length of a launch, and its evaluation schedule."""

from __future__ import annotations

import math

from .outcome import Unsupported
from .plan import Plan
from .progress import Position

_WARMUP = 10


class Budget:
    """The budget of a plan at the position of its launch."""

    def __init__(self, plan: Plan, position: Position, world_size: int) -> None:
        self._plan = plan
        self._position = position
        self._world_size = world_size
        self.items_per_epoch: int | None = None
        self._measured_steps = plan.measured_steps

    @property
    def epochs(self) -> int | None:
        """Length in epochs, where it is not given in items or steps."""
        return self._plan.epochs if self._plan.items is None else None

    @property
    def has_known_end(self) -> bool:
        """Whether :meth:`is_used_up` can be answered: the length of an epoch may not be known yet."""
        return self.epochs is None or self.items_per_epoch is not None or self.has_stopped_improving

    @property
    def has_stopped_improving(self) -> bool:
        """Whether early stopping ends the launch."""
        rule = self._plan.early_stopping if self._plan.kind == "Train" else None
        return rule is not None and self._position.evaluations_since_best >= rule.patience

    def begin_window(self) -> None:
        """Lets a measurement end a window after the position: the first one, or another one."""
        self._measured_steps = self._position.step + (self._plan.window_steps or 0)

    def end_window(self) -> None:
        """Ends a measurement at the position."""
        self._measured_steps = min(self._measured_steps, self._position.step)

    def items(self) -> int | None:
        """Items at which the launch ends; ``None``: it has another end.

        Raises:
            Unsupported: It is given in epochs, and their length is unknown.
        """
        if self._plan.items is not None:
            return self._plan.items
        if self._plan.epochs is None:
            return None
        if self.items_per_epoch is None:
            raise Unsupported(
                "train.epochs: the length of an epoch is unknown: give run.steps(items_per_epoch=...), or set train.items"
            )
        return self._plan.epochs * self.items_per_epoch

    def is_used_up(self) -> bool:
        """Whether the launch is at its end, or validation has stopped improving."""
        plan, position = self._plan, self._position
        if plan.kind == "Measure":
            return position.step >= self._measured_steps
        if self.has_stopped_improving:
            return True
        items = self.items()
        return items is not None and position.items >= items

    def evaluation_due(self, before: int, validated_at: int | None) -> bool:
        """Whether an evaluation falls on the step that began at ``before`` items; the last one was ``validated_at``."""
        plan, items = self._plan, self._position.items
        if not plan.evaluates:
            return False
        if self.is_used_up():
            return validated_at != items
        every = (plan.eval_every_items or self.items_per_epoch) if plan.kind == "Train" else None
        return every is not None and before // max(1, every) != items // max(1, every)

    def steps(self, items: int) -> int | None:
        """Steps of the whole launch, those before a resumed checkpoint included, with ``items`` per rank and step."""
        if self._plan.kind == "Measure":
            return self._plan.measured_steps
        budget = self.items()
        if budget is None or items == 0:
            return None
        left = max(0, budget - self._position.items)
        return self._position.step + math.ceil(left / (items * self._world_size))

    def most_steps(self, items: int) -> int | None:
        """As :meth:`steps`, but with all windows that a measurement may need: for a loop that is given its length before the first
        step, and ended earlier."""
        return self._plan.most_measured_steps if self._plan.kind == "Measure" else self.steps(items)

    def warmup(self, steps: int | None) -> int:
        """Steps that the throughput leaves out; at most a quarter of the ``steps`` of a training."""
        if self._plan.warmup_steps is not None:
            return int(self._plan.warmup_steps)
        return _WARMUP if steps is None else min(_WARMUP, steps // 4)
