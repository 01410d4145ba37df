"""What a launch is: its purpose, settings and ranks."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from .outcome import InvalidPlan, Unsupported
from .plan import Plan, Rank
from .settings import Settings

_BY_HAND = Plan("", "", "", "ByHand", {}, {}, seed=42)


class Identity:
    """The constant part of a launch."""

    def __init__(self, plan: Plan | None, rank: Rank, defaults: Mapping[str, Any]) -> None:
        self.by_hand = plan is None
        """Whether the script was started without Pawl."""
        self._plan = plan or _BY_HAND
        self._rank = rank
        self.settings = Settings(self._plan.settings, defaults)
        """The settings. All that the plan gives must be read before the first step."""

    @property
    def kind(self) -> str:
        """Purpose of the launch: Preflight, Measure, Quality, Search or Train; ``ByHand`` outside of Pawl."""
        return self._plan.kind

    @property
    def tracks(self) -> bool:
        """Whether the script's own trackers, such as W&B or MLflow, report: in the training and outside of Pawl. Launches that
        measure or check are many and short, and in no tracker."""
        return self.kind in ("Train", "ByHand")

    @property
    def seed(self) -> int:
        """Seed of weights and data order; 42 outside of Pawl."""
        return self._plan.seed

    @property
    def config(self) -> dict[str, Any]:
        """``workload.config`` of the manifest."""
        return self._plan.config

    @property
    def validates(self) -> bool:
        """Whether the launch reports validation metrics before its first step and at its end."""
        return self._plan.evaluates

    @property
    def rank(self) -> int:
        """Rank of this process."""
        return self._rank.rank

    @property
    def local_rank(self) -> int:
        """Rank of this process on its node."""
        return self._rank.local_rank

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self._rank.world_size

    @property
    def local_world_size(self) -> int:
        """Number of ranks on this node."""
        return self._rank.local_world_size

    @property
    def device(self) -> str:
        """Device of this rank: ``cpu`` or ``cuda:N``."""
        return self._rank.device

    @property
    def data(self) -> Path | None:
        """Directory in which the script may keep generated data; ``None`` outside of Pawl."""
        return self._rank.data

    @property
    def batch_size(self) -> int:
        """Items per rank and micro-step: the setting ``batchPerGpu``."""
        return int(self.settings.batch_per_gpu)

    @property
    def accumulation_steps(self) -> int:
        """Micro-steps per optimizer step: ``accumulationSteps``, or derived from ``globalBatch`` where that is set.

        Raises:
            InvalidPlan: ``globalBatch`` is not divisible by ``batchPerGpu`` x ranks.
        """
        whole, steps = self.settings.global_batch, int(self.settings.accumulation_steps)
        if whole is None:
            return steps
        micro = self.batch_size * self.world_size
        if int(whole) % micro:
            raise InvalidPlan(
                f"settings.globalBatch: {whole} is not a multiple of batchPerGpu x ranks = {self.batch_size} x "
                f"{self.world_size}: choose a multiple of {micro}"
            )
        return int(whole) // micro

    def unsupported(self, message: str) -> NoReturn:
        """Ends the launch with the outcome Unsupported: these settings cannot be measured with this script.

        Raises:
            Unsupported: Always.
        """
        raise Unsupported(message)

    def hide_single_rank(self) -> None:
        """For Accelerate, which takes ``LOCAL_RANK`` for a sign of several ranks: a single one is not wrapped for data
        parallelism, as it is not by hand."""
        if self.world_size == 1:
            os.environ.pop("LOCAL_RANK", None)
