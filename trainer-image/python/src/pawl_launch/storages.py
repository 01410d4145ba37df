"""Where the checkpoints of a launch are: a directory, or an object storage."""

from __future__ import annotations

import atexit
import hashlib
import os
import secrets
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .bucket import SCHEMES, Bucket, BucketError
from .checkpoints import Store
from .decision import Board, gang_key
from .fence import Epoch, Fence
from .objects import ObjectBoard, ObjectFence, ObjectStore
from .outcome import CheckpointUnreadable, InvalidPlan, Unsupported
from .plan import Plan, Rank
from .probe import probe


@dataclass(frozen=True)
class Directory:
    """A directory that all ranks reach."""

    path: Path

    def store(self, fence: Fence | None = None, author: Mapping[str, Any] | None = None) -> Store:
        """The checkpoints there."""
        return Store(self.path, fence, author)

    def fence(self, attempt: str, epoch: Epoch = Epoch()) -> Fence:
        """The right of a gang to write there."""
        return Fence(self.path, attempt, epoch)

    def board(self, plan: Plan) -> Board:
        """Where rank 0 writes its decision."""
        return Board(self.path, plan)

    def probe(self) -> None:
        """Proves that it can be used.

        Raises:
            CheckpointUnreadable: It cannot.
        """
        probe(self.path)


@dataclass(frozen=True)
class Objects:
    """A directory of an object storage."""

    bucket: Bucket
    plan: Plan
    rank: Rank
    beat: Callable[[], None]

    def store(self, fence: Fence | None = None, author: Mapping[str, Any] | None = None) -> ObjectStore:
        return ObjectStore(self.bucket, self._staging(), self.rank, self.beat, fence, author)

    def fence(self, attempt: str, epoch: Epoch = Epoch()) -> ObjectFence:
        return ObjectFence(self.bucket, attempt, epoch)

    def board(self, plan: Plan) -> ObjectBoard:
        return ObjectBoard(self.bucket, plan)

    def probe(self) -> None:
        try:
            probe_objects(self.bucket)
        except BucketError as error:
            raise CheckpointUnreadable(str(error)) from error

    def _staging(self) -> Path:
        """The directory of this node, with the same path on all nodes; deleted at the end of the process."""
        if self.rank.world_size == 1:
            path = Path(tempfile.mkdtemp(prefix="pawl-"))
        else:
            key = hashlib.sha256(f"{gang_key(self.plan)} {self.bucket.url}".encode()).hexdigest()[:16]
            path = Path(tempfile.gettempdir(), f"pawl-{key}")
            path.mkdir(mode=0o700, exist_ok=True)
            if path.is_symlink() or path.stat().st_uid != os.geteuid():
                raise InvalidPlan(f"{path}: is not of this user: delete it, or set TMPDIR to a directory of this user's own")
        if self.rank.local_rank == 0:
            atexit.register(shutil.rmtree, path, ignore_errors=True)
        return path


Storage = Directory | Objects


def open_storage(storage: str, field_name: str, plan: Plan, rank: Rank, beat: Callable[[], None]) -> Storage:
    """The storage that a path or a URL names. ``beat`` is called while bytes of an object storage move.

    Raises:
        Unsupported: This package has no access to such a storage.
        InvalidPlan: The URL, or what the environment says of it, is invalid.
    """
    scheme, separator, path = storage.partition("://")
    if not separator:
        return Directory(Path(storage))
    if scheme == "file":
        return Directory(Path(path))
    if scheme not in SCHEMES:
        known = ", ".join(f"{known}://" for known in SCHEMES)
        raise Unsupported(f"{field_name}: {storage}: is not known: use pvc://, file://, {known}")
    return Objects(Bucket(storage, field_name), plan, rank, beat)


def probe_objects(bucket: Bucket) -> None:
    """Creates, replaces, reads, lists and deletes a small object: every operation that training uses. Leaves nothing there.

    Raises:
        BucketError: An operation failed.
        CheckpointUnreadable: One has no effect.
    """
    folder, name, content = ".pawl/probes", secrets.token_hex(8), b"pawl"
    key = f"{folder}/{name}"
    if not bucket.create(key) or bucket.create(key):
        bucket.delete(key)
        raise CheckpointUnreadable(
            f"checkpoint storage {bucket.url}: cannot create {key}: an object that exists was created again: use a store that "
            "supports conditional writes (If-None-Match), which keep two gangs of a job apart"
        )
    bucket.write(key, content)
    is_there = bucket.read(key) == content and name in bucket.names(folder)
    bucket.delete(key)
    if not is_there or bucket.read(key) is not None:
        raise CheckpointUnreadable(f"checkpoint storage {bucket.url}: what was written, or deleted, is not what is there: check the store")
