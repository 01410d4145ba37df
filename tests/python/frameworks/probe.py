"""Runs a script; each rank prints what it is and how its model is distributed before its first optimizer step: probe.py SCRIPT."""

import os
import runpy
import sys
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.optim.optimizer import register_optimizer_step_pre_hook


def describe(optimizer: Any, *_: Any) -> None:
    # PyTorch iterates over its hooks while it calls them: it is not removed.
    if described:
        return
    described.append(True)
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    sharded = {isinstance(parameter, DTensor) for parameter in parameters}
    own = [int(os.environ[name]) for name in ("RANK", "LOCAL_RANK", "NODE_RANK")]
    gang = torch.distributed
    print("ranks", own + [gang.get_rank(), gang.get_world_size()], "sharded", sorted(sharded), flush=True)


described: list[bool] = []
register_optimizer_step_pre_hook(describe)
sys.argv = sys.argv[1:]
sys.path[0] = os.path.dirname(sys.argv[0])
runpy.run_path(sys.argv[0], run_name="__main__")
