"""Whose a checkpoint is, and what trained it: in its manifest, as in those of Pawl's own trainer (``author.rs``)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from .plan import Plan, Rank

# The oldest parts of a training are dropped.
_MOST_PARTS = 64


def author(plan: Plan, rank: Rank) -> dict[str, Any]:
    """The author of the checkpoints of a launch."""
    part = {"fromItems": 0, "attempt": plan.attempt, "launch": plan.launch}
    own = {"job": plan.job, "attempt": plan.attempt, "launch": plan.launch, "trains": _trains(plan), "trained": [part]}
    return {**rank.identity, **own}


def _trains(plan: Plan) -> str:
    """Hash of the workload, its configuration and the seed, which are the same for all launches of a training."""
    what = json.dumps([plan.workload, plan.config, plan.seed], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(what.encode()).hexdigest()[:16]


def trains_as(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two authors write checkpoints of the same training, as far as both say what they train."""
    return not one.get("trains") or not other.get("trains") or one["trains"] == other["trains"]


def resumed(own: Mapping[str, Any], before: Mapping[str, Any], items: int) -> dict[str, Any]:
    """``own``, which continues a checkpoint of ``before`` at ``items``: the launches that trained the model, the oldest first. The
    names of launches end in a hash of all their inputs."""
    trained = list(before.get("trained") or [])
    if not trained or trained[-1].get("launch") != own["launch"]:
        trained += [part | {"fromItems": items} for part in own["trained"]]
    return {**own, "trained": trained[-_MOST_PARTS:]}
