"""The setting ``sharding``: None is data parallelism (DDP), Zero2 and Full are FSDP2."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from .outcome import Unsupported
from .run import Run


def resharding(run: Run) -> bool | None:
    """Whether FSDP2 frees the whole parameters of a block between its forward and its backward pass: with Full, not with Zero2.
    ``None``: nothing is sharded.

    Raises:
        Unsupported: The setting is Zero1, which PyTorch's FSDP2 has not, or the launch has one rank.
    """
    sharding = run.settings.one_of("sharding", "None", "Zero2", "Full")
    if sharding == "None":
        return None
    if run.world_size == 1:
        raise Unsupported(f"settings.sharding: {sharding} needs several ranks: set trainer.gpusPerReplica or trainer.replicas")
    return bool(sharding == "Full")


def require_gpus(run: Run) -> None:
    """For Accelerate, which ignores FSDP on CPUs.

    Raises:
        Unsupported: The launch is on CPUs.
    """
    if run.device == "cpu":
        raise Unsupported("settings.sharding: Accelerate shards on GPUs only: set trainer.gpusPerReplica, or use None")


def require_same_format(checkpoint: Path) -> None:
    """For Accelerate, whose checkpoints with FSDP have a format of their own. The ``Accelerator`` has been made.

    Raises:
        Unsupported: The checkpoint is of the other format.
    """
    was, now = any(checkpoint.glob("pytorch_model_fsdp*")), os.environ.get("ACCELERATE_USE_FSDP", "").lower() == "true"
    if was != now:
        with_or_without = "with" if was else "without"
        raise Unsupported(
            f"settings.sharding: checkpoint {checkpoint.name} was written {with_or_without} FSDP2, and Accelerate resumes it only "
            f"{with_or_without} it: set sharding as it was"
        )


def shard(run: Run, model: Any, mesh: Any, reshard: bool, blocks: Iterable[Any] | None = None) -> None:
    """Shards the parameters of ``model`` in place over the ranks of ``mesh``: first each block, the members of its
    ``ModuleList`` s by default, then the rest. With ``precision: bf16``, blocks are gathered in bfloat16.

    Raises:
        Unsupported: The model contains a recurrent layer.
    """
    import torch
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    for name, module in model.named_modules():
        # It keeps a second list of its parameters, which would not be those that are trained.
        if isinstance(module, torch.nn.RNNBase):
            raise Unsupported(f"settings.sharding: FSDP2 cannot shard {type(module).__name__} ({name or 'the model'}): use None")
    policy = MixedPrecisionPolicy()
    if run.settings.precision == "bf16":
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32, output_dtype=torch.float32)
    for block in _blocks(model) if blocks is None else blocks:
        fully_shard(block, mesh=mesh, reshard_after_forward=reshard, mp_policy=policy)
    fully_shard(model, mesh=mesh, reshard_after_forward=reshard, mp_policy=policy)


def _blocks(model: Any) -> Iterator[Any]:
    import torch

    for module in model.modules():
        if isinstance(module, torch.nn.ModuleList):
            yield from (block for block in module if any(True for _ in block.parameters()))
