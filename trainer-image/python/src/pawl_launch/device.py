"""The device of this process, through PyTorch if the script has imported it. No library is imported here."""

from __future__ import annotations

import platform
import sys
from contextlib import suppress
from typing import Any

_LIBRARIES = (
    "torch",
    "transformers",
    "accelerate",
    "lightning",
    "pytorch_lightning",
    "numpy",
    "datasets",
    "tokenizers",
    "safetensors",
    "peft",
    "trl",
    "deepspeed",
    "triton",
    "flash_attn",
    "bitsandbytes",
    "torchvision",
)


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


def provenance() -> dict[str, Any]:
    """What this process knows of what is measured with, as the contract's ``Provenance``: the versions of the libraries
    that the script has imported, that of CUDA, and the GPU."""
    known = {name.replace("_", "-"): getattr(sys.modules.get(name), "__version__", None) for name in _LIBRARIES}
    libraries = {name: str(version) for name, version in known.items() if version is not None}
    found: dict[str, Any] = {"libraries": {"python": platform.python_version(), **libraries}}
    gpu = cuda()
    # After an error of the device, each call of it fails: the report is needed then, and this is not.
    with suppress(Exception):
        if gpu is not None:
            found["cuda"] = sys.modules["torch"].version.cuda
            properties = gpu.get_device_properties(gpu.current_device())
            found["gpu"] = {"name": str(properties.name), "memoryBytes": int(properties.total_memory)}
    return found


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
