"""Files that are replaced as a whole or not at all."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


def replace(path: Path, content: dict[str, Any], durable: bool = False) -> None:
    """Replaces the JSON file ``path`` atomically; with ``durable``, it also survives a power failure."""
    partial = path.with_name(f".{path.name}.partial")
    with open(partial, "w", encoding="utf-8") as file:
        json.dump(content, file, allow_nan=False)
        if durable:
            file.flush()
            os.fsync(file.fileno())
    os.replace(partial, path)
    if durable:
        sync(path.parent)


def sync(path: Path) -> None:
    """Writes a file, or the entries of a directory, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
