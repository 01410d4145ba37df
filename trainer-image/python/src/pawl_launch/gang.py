"""Agreement of all ranks at a step boundary, through PyTorch's process group, on the CPU: the device does not wait."""

from __future__ import annotations

import gc
import sys
import time
from contextlib import suppress
from datetime import timedelta
from typing import Any

from .outcome import Unsupported

# In which the threads of Gloo release their tensors, for which they need the interpreter's lock.
RELEASE_SECONDS = 0.1
# As long as a launch may be Resuming or Saving (RankPhase of the contract): ranks wait for the transfers of others.
_LONGEST = timedelta(hours=6)


class Gang:
    """The ranks of the launch. A single rank agrees with itself."""

    def __init__(self, rank: int, world_size: int) -> None:
        self.rank = rank
        self.world_size = world_size
        self._group: Any = None

    def gather(self, values: list[float]) -> list[list[float]]:
        """The values of every rank, in the order of the ranks. All ranks must call it at the same step.

        Raises:
            Unsupported: The launch has several ranks, and the script has not initialized ``torch.distributed``.
        """
        if self.world_size == 1:
            return [values]
        torch, group = self._connect()
        mine = torch.tensor(values, dtype=torch.float64)
        gathered = [torch.empty_like(mine) for _ in range(self.world_size)]
        torch.distributed.all_gather(gathered, mine, group=group)
        return [row.tolist() for row in gathered]

    def barrier(self) -> None:
        """Waits for all ranks."""
        self.gather([0.0])

    def leave(self) -> None:
        """Destroys the group of the launch, and all groups of the script where its default one is of Gloo.

        At the end of the interpreter, the threads of Gloo may release a tensor, which aborts the process (described in PyTorch's
        pull request 179291, closed unmerged). A group that something still refers to, such as a model, keeps its threads: they get
        time to release what they hold. Groups of NCCL stay: destroying one waits for ranks that may be gone.
        """
        distributed = _distributed()
        if distributed is None:
            return
        everything = distributed.get_backend() == "gloo"
        if everything or self._group is not None:
            # The script may have destroyed it.
            with suppress(ValueError, RuntimeError):
                distributed.destroy_process_group(None if everything else self._group)
            gc.collect()
            time.sleep(RELEASE_SECONDS)

    def _connect(self) -> tuple[Any, Any]:
        distributed = _distributed()
        if distributed is None:
            raise Unsupported(
                f"trainer: {self.world_size} ranks, but this script trains on one: call "
                "torch.distributed.init_process_group() before the first step, or set trainer.replicas and gpusPerReplica to 1"
            )
        if self._group is None:
            # Gloo works on tensors of the CPU: a vote does not wait for the device.
            self._group = distributed.new_group(backend="gloo", timeout=_LONGEST)
        return sys.modules["torch"], self._group


def _distributed() -> Any:
    """``torch.distributed`` with a default process group; ``None`` where the script has none."""
    distributed: Any = getattr(sys.modules.get("torch"), "distributed", None)
    usable = distributed is not None and distributed.is_available() and distributed.is_initialized()
    return distributed if usable else None
