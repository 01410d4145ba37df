"""Whether two batches are the same, without keeping one."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping
from itertools import islice
from typing import Any

# Of each container and array: enough to tell two batches apart, and little to read from a device.
_MOST = 1024


def fingerprint(batch: Any) -> str | None:
    """A hash of the beginning of the values in ``batch``; ``None`` where it contains none that can be compared."""
    digest = hashlib.sha256()
    try:
        found = _add(digest, batch)
    except (RuntimeError, TypeError, ValueError, NotImplementedError):
        # Of an exotic tensor, such as a sparse one: training does not depend on it.
        return None
    return digest.hexdigest()[:16] if found else None


def _add(digest: Any, value: Any) -> bool:
    """Adds a value. Returns whether it can be compared: another object with the same content has the same hash."""
    if value is None or isinstance(value, (bool, int, float, str, bytes)):
        digest.update(f"{type(value).__name__} {value!r:.{_MOST}}\n".encode())
        return value is not None
    if isinstance(value, Mapping):
        return any([_add(digest, key) and _add(digest, each) for key, each in islice(value.items(), _MOST)])
    if isinstance(value, (list, tuple)):
        return any([_add(digest, each) for each in islice(value, _MOST)])
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    tensor = torch is not None and isinstance(value, torch.Tensor)
    if tensor or numpy is not None and isinstance(value, (numpy.ndarray, numpy.generic)):
        part = value.detach() if tensor else value
        digest.update(f"{value.dtype} {tuple(value.shape)} {part.reshape(-1)[:_MOST].tolist()}\n".encode())
        return True
    return False
