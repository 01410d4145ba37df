"""SHA-256 of files, read in pieces."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

_PIECE = 1 << 20
_THREADS = 8


def of_files(directory: Path, names: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Name and hash of each file, in order. Several are read at a time.

    Raises:
        OSError: One cannot be read.
    """
    names = list(names)
    with ThreadPoolExecutor(min(_THREADS, os.cpu_count() or 1)) as pool:
        yield from zip(names, pool.map(lambda name: _of_file(directory / name), names))


def _of_file(path: Path) -> str:
    digest, piece = hashlib.sha256(), bytearray(_PIECE)
    with open(path, "rb", buffering=0) as file:
        while read := file.readinto(piece):
            digest.update(memoryview(piece)[:read])
    return digest.hexdigest()


def seal(manifest: dict[str, Any]) -> str:
    """The hash of a manifest: of its compact JSON with sorted keys, without ``sha256``."""
    content = {name: value for name, value in manifest.items() if name != "sha256"}
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
