"""The random number generators of this process: of Python, and of NumPy and PyTorch where the script has imported them."""

from __future__ import annotations

import random
import sys
from typing import Any


def states() -> dict[str, Any]:
    """The state of each generator, by its name."""
    found: dict[str, Any] = {"python": random.getstate()}
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        found["numpy"] = numpy.random.get_state(legacy=False)
    torch = sys.modules.get("torch")
    if torch is not None:
        found["torch"] = torch.get_rng_state()
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            found["cuda"] = torch.cuda.get_rng_state()
    return found


def restore(found: dict[str, Any]) -> None:
    """Gives each generator the state that :func:`states` has found; those that this process lacks are left out."""
    if "python" in found:
        random.setstate(found["python"])
    numpy = sys.modules.get("numpy")
    if numpy is not None and "numpy" in found:
        numpy.random.set_state(found["numpy"])
    torch = sys.modules.get("torch")
    if torch is not None and "torch" in found:
        torch.set_rng_state(found["torch"])
        if "cuda" in found and torch.cuda.is_available():
            torch.cuda.set_rng_state(found["cuda"])
