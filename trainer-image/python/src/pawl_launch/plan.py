"""The plan of a launch, ``plan.json``, and the environment variables of a rank."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .contract_settings import DEFAULTS
from .outcome import InvalidPlan
from .steady import BLOCKS, EXTENSIONS

CONTRACT = 1
"""The version of the contract between Pawl and trainers."""

_WINDOW_SECONDS = 20.0

KINDS = ("Preflight", "Measure", "Quality", "Search", "Train")


@dataclass(frozen=True)
class Criterion:
    """A validation metric and its direction."""

    metric: str = "loss"
    larger_is_better: bool = False

    @classmethod
    def read(cls, content: Mapping[str, Any]) -> Criterion:
        return cls(content.get("metric", "loss"), content.get("better", "Smaller") == "Larger")

    def improves(self, value: float, reference: float, least: float) -> bool:
        """Whether ``value`` is better than ``reference`` by more than ``least``."""
        gain = value - reference if self.larger_is_better else reference - value
        return gain > least


@dataclass(frozen=True)
class EarlyStopping:
    """End training after ``patience`` evaluations without an improvement by more than ``least``."""

    criterion: Criterion
    patience: int
    least: float


@dataclass(frozen=True)
class CheckpointPolicy:
    """When checkpoints are written, and where training resumes."""

    every_seconds: float
    keep: int
    resume: bool
    resume_not_after_items: int | None
    known: str | None
    """The newest checkpoint that the job is known to have written, before or after that limit."""
    resume_from: str | None
    weights_only: bool
    best: Criterion

    @classmethod
    def read(cls, content: Mapping[str, Any]) -> CheckpointPolicy:
        other = content.get("resumeFrom") or {}
        return cls(
            every_seconds=float(content["everySeconds"]),
            keep=max(1, int(content["keep"])),
            resume=bool(content["resume"]),
            resume_not_after_items=content.get("resumeNotAfterItems"),
            known=(content.get("expected") or content.get("expectedAfterLimit") or {}).get("name"),
            resume_from=other.get("storage"),
            weights_only=bool(other.get("weightsOnly", False)),
            best=Criterion.read(content.get("best") or {}),
        )


@dataclass(frozen=True)
class WindowLimit:
    """The end of a measurement by time: the warm-up ends after ``seconds``, and so does the window, but neither before its least
    number of steps."""

    seconds: float
    warmup_steps: int
    window_steps: int


@dataclass(frozen=True)
class Plan:
    """One launch: its purpose, settings, seed and length."""

    job: str
    attempt: str
    launch: str
    kind: str
    settings: dict[str, Any]
    config: dict[str, Any]
    seed: int
    warmup_steps: int | None = None
    window_steps: int | None = None
    own_limit: WindowLimit | None = None
    items: int | None = None
    epochs: int | None = None
    eval_every_items: int | None = None
    early_stopping: EarlyStopping | None = None
    checkpoint: CheckpointPolicy | None = None
    workload: str = ""
    """Name of the workload."""

    def window_limit(self, world_size: int) -> WindowLimit | None:
        """When a measurement ends by time, as ``LaunchPlan::window_limit`` of ``pawl_contract::plan``."""
        if self.kind != "Measure" or self.window_steps is None or self.own_limit is not None:
            return self.own_limit
        least = 2 * self._queue_steps(world_size)
        warmup = max(math.ceil((self.warmup_steps or 0) / 4), least)
        return WindowLimit(_WINDOW_SECONDS, warmup, min(self.window_steps, max(math.ceil(self.window_steps / 4), BLOCKS, least)))

    def _queue_steps(self, world_size: int) -> int:
        """Steps whose batches the loader of a rank prepares ahead."""
        given = {**DEFAULTS, **self.settings}
        # Without workers batches are prepared inside the step, unless a prefetch is given.
        batches: int = max(given["loaderWorkers"], int("loaderPrefetch" in self.settings)) * given["loaderPrefetch"]
        accumulation: int = given["accumulationSteps"]
        if given["globalBatch"]:
            accumulation = given["globalBatch"] // (given["batchPerGpu"] * world_size)
        return math.ceil(batches / max(1, accumulation))

    @property
    def measured_steps(self) -> int:
        """Steps of a complete measurement."""
        return (self.warmup_steps or 0) + (self.window_steps or 0)

    @property
    def most_measured_steps(self) -> int:
        """Steps of a measurement whose window is replaced as often as it may be."""
        return self.measured_steps + EXTENSIONS * (self.window_steps or 0)

    @property
    def evaluates(self) -> bool:
        """Whether the launch reports validation metrics before its first step and at its end."""
        return self.kind in ("Quality", "Search", "Train")


def _local_world_size(environment: Mapping[str, str], world_size: int) -> int:
    """Ranks on this node: as ``torchrun`` reports it, else the GPUs that the agent gives this node, else all ranks."""
    given = environment.get("LOCAL_WORLD_SIZE")
    if given is not None and given.isdigit():
        return max(1, min(int(given), world_size))
    gpus = [gpu for gpu in environment.get("CUDA_VISIBLE_DEVICES", "").split(",") if gpu]
    return min(len(gpus), world_size) if gpus else world_size


def read_plan(path: Path) -> Plan:
    """The plan in ``path``.

    Raises:
        InvalidPlan: The file cannot be read, or is of another version of the contract.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["contract"] != CONTRACT:
            raise InvalidPlan(f"{path}: contract {content['contract']}: this package supports contract {CONTRACT}")
        if content["kind"] not in KINDS:
            raise InvalidPlan(f"{path}: kind: {content['kind']} is not one of {', '.join(KINDS)}")
        return _parse(content)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InvalidPlan(f"{path}: {type(error).__name__}: {error}") from error


def _parse(content: Mapping[str, Any]) -> Plan:
    budget = content["budget"]
    stopping = budget.get("earlyStopping")
    policy = content.get("checkpoint")
    limit = budget.get("windowLimit")
    return Plan(
        job=content["job"],
        attempt=content["attempt"],
        launch=content["launch"],
        kind=content["kind"],
        settings=dict(content["settings"]),
        config=dict(content["workload"].get("config") or {}),
        seed=int(content["seed"]),
        warmup_steps=budget.get("warmupSteps"),
        window_steps=budget.get("windowSteps"),
        own_limit=limit and WindowLimit(float(limit["seconds"]), int(limit["warmupSteps"]), int(limit["windowSteps"])),
        items=budget.get("items"),
        epochs=budget.get("epochs"),
        eval_every_items=budget.get("evalEveryItems"),
        early_stopping=stopping
        and EarlyStopping(Criterion.read(stopping), int(stopping["patience"]), float(stopping["minDelta"])),
        checkpoint=policy and CheckpointPolicy.read(policy),
        workload=content["workload"].get("name") or "",
    )


@dataclass(frozen=True)
class Rank:
    """This process among the processes of the launch, and the paths that the agent gives it."""

    rank: int = 0
    local_rank: int = 0
    world_size: int = 1
    local_world_size: int = 1
    device: str = "cpu"
    report: Path | None = None
    progress: Path | None = None
    checkpoints: str | None = None
    resume_from: str | None = None
    data: Path | None = None
    identity: dict[str, str] = field(default_factory=dict)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Rank:
        """The rank that the environment describes; outside of Pawl, that of ``torchrun`` or a single process.

        Raises:
            InvalidPlan: A rank is not a number.
        """
        prefix = "PAWL_" if "PAWL_PLAN" in environment else ""

        def number(name: str, default: int) -> int:
            text = environment.get(prefix + name, str(default))
            try:
                return int(text)
            except ValueError:
                raise InvalidPlan(f"{prefix}{name}: {text!r} is not a number") from None

        def path(name: str) -> Path | None:
            text = environment.get(name)
            return Path(text) if text else None

        return cls(
            rank=number("RANK", 0),
            local_rank=number("LOCAL_RANK", 0),
            world_size=number("WORLD_SIZE", 1),
            local_world_size=_local_world_size(environment, number("WORLD_SIZE", 1)),
            device=environment.get("PAWL_DEVICE", "cpu"),
            report=path("PAWL_REPORT"),
            progress=path("PAWL_PROGRESS"),
            checkpoints=environment.get("PAWL_CHECKPOINTS") or None,
            resume_from=environment.get("PAWL_RESUME_FROM") or None,
            data=path("PAWL_DATA"),
            identity={
                name: environment[variable]
                for name, variable in (("namespace", "PAWL_JOB_NAMESPACE"), ("uid", "PAWL_JOB_UID"))
                if environment.get(variable)
            },
        )
