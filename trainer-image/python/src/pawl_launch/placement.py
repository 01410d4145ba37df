"""Where a launch computes, for frameworks that choose a device by themselves."""

from __future__ import annotations

from .outcome import Unsupported
from .run import Run


def is_cpu(run: Run) -> bool:
    """Whether the launch is on CPUs.

    Raises:
        Unsupported: The launch has a GPU that PyTorch does not see: Transformers and Accelerate would train on the CPU without a word.
    """
    if run.device == "cpu":
        return True
    import torch

    # Since PyTorch 2.6; it knows accelerators of other makers, too.
    accelerator = getattr(torch, "accelerator", None)
    if not torch.cuda.is_available() and not (accelerator is not None and accelerator.is_available()):
        raise Unsupported(
            f"trainer.gpusPerReplica: the launch has a GPU, but PyTorch {torch.__version__} sees none: its build is for CPUs, the driver of the "
            "node is older than its CUDA, or the driver's libraries are not in the pod (runtimeClassName, LD_LIBRARY_PATH)"
        )
    return False
