"""Proof that the storage of checkpoints can be used, before a device is held."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from .files import sync
from .outcome import CheckpointUnreadable

_CONTENT = b"pawl"


def probe(storage: Path) -> None:
    """Creates, reads, lists, renames and deletes a small file: every operation that training uses. Leaves nothing there.

    Raises:
        CheckpointUnreadable: An operation failed; names the storage and the system's error.
    """
    name = f".probe-{secrets.token_hex(8)}"
    try:
        storage.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(storage / name, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
        try:
            os.write(descriptor, _CONTENT)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.rename(storage / name, storage / f"{name}.renamed")
        sync(storage)
        if (storage / f"{name}.renamed").read_bytes() != _CONTENT or f"{name}.renamed" not in os.listdir(storage):
            raise CheckpointUnreadable(f"checkpoint storage {storage}: what was written is not what is there: check the mount")
        (storage / f"{name}.renamed").unlink()
    except OSError as error:
        raise CheckpointUnreadable(
            f"checkpoint storage {storage}: {error.strerror or error}: give the trainer's user write permission there, mount it "
            "writable, and leave space on it"
        ) from error
