"""The device of this process, through PyTorch if the script has imported it. No library is imported here."""

from __future__ import annotations

import sys
from typing import Any


def cuda() -> Any:
    """``torch.cuda`` once it has been initialized, else ``None``."""
    torch = sys.modules.get("torch")
    found = getattr(torch, "cuda", None)
    return found if found is not None and found.is_available() and found.is_initialized() else None


def synchronize() -> None:
    """Waits for all work on the device."""
    found = cuda()
    if found is not None:
        found.synchronize()


def peak_memory() -> int:
    """Peak memory of tensors on the device, bytes; on the CPU, the peak resident memory of this process."""
    found = cuda()
    if found is not None:
        return int(found.max_memory_allocated())
    # Not on Windows, where scripts run by hand only.
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def uses_cpu() -> bool:
    """Whether the script computes on the CPU, as far as can be seen."""
    return cuda() is None


def is_pending(loss: Any) -> bool:
    """Whether reading the number would wait for the device."""
    device = getattr(loss, "device", None)
    return getattr(device, "type", "cpu") != "cpu"


def detached(loss: Any) -> Any:
    """The loss without the graph that computed it, which would stay in memory."""
    detach = getattr(loss, "detach", None)
    return loss if detach is None else detach()
