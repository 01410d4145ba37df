"""Proof that the storage of checkpoints can be used, before a device is held."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from .files import sync
from .outcome import CheckpointUnreadable, StorageFull, is_full

LESS_SPACE = "free some space there, or keep fewer checkpoints (train.checkpoint.keep)"
_CONTENT = b"pawl"
# Bytes that are written to see whether there is space: less than any checkpoint.
_TRIED = 1 << 20


def probe(storage: Path) -> None:
    """Creates, reads, lists, renames and deletes a small file: every operation that training uses. Leaves nothing there.

    Raises:
        CheckpointUnreadable: An operation failed; names the storage and the system's error.
        StorageFull: There is no space or no quota left.
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
        if is_full(error):
            raise full(storage, error, LESS_SPACE) from error
        raise CheckpointUnreadable(
            f"checkpoint storage {storage}: {error.strerror or error}: give the trainer's user write permission there, and mount it "
            "writable"
        ) from error


def full(storage: Path, error: OSError, remedy: str) -> StorageFull:
    """The error of a storage that is full."""
    return StorageFull(f"checkpoint storage {storage}: {error.strerror or error}: {remedy}")


def has_no_space(directory: Path) -> OSError | None:
    """The system's error if not even a small file can be written. Frameworks raise errors of their own, which do not say why a file
    could not be written."""
    path = directory / f".probe-{secrets.token_hex(8)}"
    try:
        try:
            with open(path, "xb") as file:
                file.write(bytes(_TRIED))
                file.flush()
                os.fsync(file.fileno())
        finally:
            path.unlink(missing_ok=True)
    except OSError as error:
        return error if is_full(error) else None
    return None
