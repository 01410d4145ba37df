"""Checkpoints in an object storage: the files, names, hashes and fencing of a directory (``checkpoints.py``, ``fence.py``), without
renaming.

Scripts write and read directories, so each node has one, in ``$TMPDIR``: a new checkpoint is written there and uploaded, its manifest
last; the one that is resumed is downloaded to it and compared with its hashes. Its path is the same on all nodes, because frameworks
broadcast that of rank 0. The first rank of each node transfers the files of its node.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from . import hashes
from .bucket import Bucket, BucketError
from .checkpoints import (
    DIVERGED,
    KEEP_DAMAGED,
    MANIFEST,
    QUARANTINE,
    Checkpoint,
    Damage,
    Store,
    log,
    manifest_of,
    order,
    parsed,
    require_files,
    require_hash,
    require_short,
    require_size,
)
from .decision import LONGEST_SECONDS, Board, Decision
from .fence import FOLDER, Epoch, Fence
from .gang import Gang
from .outcome import CheckpointUnreadable, InvalidPlan, LostPeer, is_full
from .plan import CheckpointPolicy, Plan, Rank
from .probe import full

_POLL_SECONDS = 0.2
# What each node has uploaded of a checkpoint that is not complete yet.
_UPLOADS = ".pawl/uploads"
# The names that begin() gives. Nothing else is read or deleted: people and other trainers have folders of their own there.
_NAME = re.compile(r"\d{15,}-.+-\d+(\.\d+)?", re.ASCII)


class ObjectFence(Fence):
    """The epoch of this gang in an object storage."""

    def __init__(self, bucket: Bucket, attempt: str, epoch: Epoch = Epoch()) -> None:
        super().__init__(Path(), attempt, epoch)
        self._bucket = bucket

    def _names(self) -> list[str]:
        return self._bucket.names(FOLDER)

    def _create(self, name: str) -> bool:
        return self._bucket.create(f"{FOLDER}/{name}")

    def _delete(self, name: str) -> None:
        self._bucket.delete(f"{FOLDER}/{name}")


class ObjectBoard(Board):
    """Where rank 0 writes its decision in an object storage."""

    poll_seconds = 1.0

    def __init__(self, bucket: Bucket, plan: Plan) -> None:
        super().__init__(Path(), plan)
        self._bucket = bucket
        self._place = bucket.url

    def write(self, decision: Decision) -> None:
        self._bucket.write(self._name, json.dumps(asdict(decision)).encode())

    def _content(self) -> bytes:
        content = self._bucket.read(self._name)
        if content is None:
            raise FileNotFoundError(self._name)
        return content

    def clear(self) -> None:
        self._bucket.delete(self._name)


class ObjectStore(Store):
    """The checkpoints of one job in an object storage. ``beat`` is called while bytes move."""

    remedy = "set TMPDIR to a volume with space for two checkpoints"

    def __init__(
        self,
        bucket: Bucket,
        directory: Path,
        rank: Rank,
        beat: Callable[[], None],
        fence: Fence | None = None,
        author: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(directory, fence, author)
        self.name = bucket.url
        self._bucket = bucket
        self._rank = rank
        self._beat = beat
        self._files: dict[str, list[str]] = {}
        self._fetched: list[Path] = []

    def named(self, name: str) -> Checkpoint:
        found = super().named(name)
        if self._rank.local_rank == 0:
            try:
                self._verify(found)
            except Damage as damage:
                raise CheckpointUnreadable(f"{self.name}/{name}: {damage}, but rank 0 has read it") from damage
            return found
        end = time.monotonic() + LONGEST_SECONDS
        while not found.path.is_dir():
            if time.monotonic() > end:
                hours = LONGEST_SECONDS / 3600
                raise LostPeer(f"the first rank of this node has not downloaded {self.name}/{name} to {found.path} in {hours:.0f} h")
            time.sleep(_POLL_SECONDS)
        return found

    def damaged(self) -> list[Path]:
        return [Path(name) for name in self._bucket.names(QUARANTINE.as_posix())]

    def gather(self, partial: Path, gang: Gang) -> None:
        """Uploads what the ranks of this node have written. Collective.

        A checkpoint that is written again at the same position stays complete if its files are the same; otherwise it is incomplete
        until it is complete again.
        """
        name = self.name_of(partial)
        sizes: dict[str, int] = {}
        found: dict[str, str] = {}
        self.check()
        gang.barrier()
        if self._rank.local_rank == 0:
            paths = (file for file in sorted(partial.rglob("*")) if file.is_file())
            sizes = {str(file.relative_to(partial)): file.stat().st_size for file in paths}
            sizes.pop(MANIFEST, None)
            found = self._unchanged(partial, sizes)
            if found.keys() != sizes.keys():
                self.check()
                self._bucket.delete(f"{name}/{MANIFEST}")
        # Until all nodes have compared their files, none is replaced.
        gang.barrier()
        if self._rank.local_rank == 0:
            sent = self._bucket.upload({f"{name}/{file}": partial / file for file in sizes if file not in found}, self._beat)
            found |= {key.removeprefix(f"{name}/"): sha256 for key, sha256 in sent.items()}
            upload = {"files": sizes, "hashes": found}
            self._bucket.write(f"{_UPLOADS}/{name}/{self._rank.rank}", json.dumps(upload).encode())
        gang.barrier()

    def _unchanged(self, partial: Path, sizes: Mapping[str, int]) -> dict[str, str]:
        """The hashes of those files of this node that the complete checkpoint of the same name has already."""
        try:
            complete = self._read(self.name_of(partial))
        except Damage:
            return {}
        known = {} if complete is None else complete.hashes
        found = dict(hashes.of_files(partial, [file for file in sizes if file in known]))
        return {file: sha256 for file, sha256 in found.items() if sha256 == known[file]}

    def commit(self, partial: Path, step: int, items: int, state: Mapping[str, Any]) -> Checkpoint:
        """Completes the checkpoint whose files all nodes have uploaded.

        Raises:
            InvalidPlan: The script has written no file, or nodes have written different ones under one name.
            BucketError: The store does not list what a node has uploaded.
            Superseded: A later gang writes.
        """
        name = self.name_of(partial)
        sizes, found = self._uploads(name, partial)
        require_files(sizes)
        checkpoint = Checkpoint(self.directory / name, step, items, dict(state), self._epoch, self._author, found)
        content = json.dumps(manifest_of(checkpoint, sizes), allow_nan=False).encode()
        self.check()
        self._bucket.write(f"{name}/{MANIFEST}", content)
        self._forgive(name)
        return checkpoint

    def _uploads(self, name: str, partial: Path) -> tuple[dict[str, int], dict[str, str]]:
        """Sizes, bytes, and hashes of the files that all nodes have uploaded. Of a file that several have, rank 0's counts."""
        sizes: dict[str, int] = {}
        found: dict[str, str] = {}
        differ: set[str] = set()
        ranks = sorted(self._bucket.names(f"{_UPLOADS}/{name}"), key=int)
        nodes = self._rank.world_size // self._rank.local_world_size
        if len(ranks) != nodes:
            raise BucketError(
                f"checkpoint storage {self.name}: {_UPLOADS}/{name} names the uploads of {len(ranks)} nodes, not of {nodes}: use a store "
                "that lists objects as soon as they are written"
            )
        for rank in ranks:
            key = f"{_UPLOADS}/{name}/{rank}"
            content = json.loads(self._bucket.read(key) or b"{}")
            differ.update(file for file, sha256 in content["hashes"].items() if found.get(file, sha256) != sha256)
            sizes, found = {**content["files"], **sizes}, {**content["hashes"], **found}
            self._bucket.delete(key)
        for file in sorted(differ):
            if not (partial / file).is_file():
                raise InvalidPlan(f"checkpoint: {file} differs between nodes: write it on one rank, or under a name with the rank")
        self._bucket.upload({f"{name}/{file}": partial / file for file in differ}, self._beat)
        return sizes, found

    def finish(self, partial: Path) -> None:
        if self._rank.local_rank == 0:
            for path in (partial, *self._fetched):
                shutil.rmtree(path, ignore_errors=True)
            self._fetched.clear()

    def prune(self, policy: CheckpointPolicy, best: str | None, attempt: str) -> None:
        complete, damaged, names = [checkpoint.path.name for checkpoint in self.all()], self.damaged(), self._names()
        uploads = self._bucket.names(_UPLOADS)
        self.check()
        superfluous = [name for name in complete[: -policy.keep] if name != best]
        superfluous += [name for name in names if name not in complete and self._may_delete(name)]
        superfluous += [f"{_UPLOADS}/{name}" for name in uploads if self._may_delete(name)]
        superfluous += [f"{QUARANTINE.as_posix()}/{path.name}" for path in damaged[:-KEEP_DAMAGED]]
        for folder in superfluous:
            try:
                self._delete(folder)
            except BucketError as error:
                # The new checkpoint is complete: training goes on, and the next one deletes it.
                log.warning("not deleted: %s", error)

    def _may_delete(self, name: str) -> bool:
        """Whether an incomplete checkpoint is of this gang or an earlier one."""
        found = order(name)
        return found is not None and found[0] <= self._epoch

    def _names(self) -> list[str]:
        return [name for name in self._bucket.names() if _NAME.fullmatch(name)]

    def _read(self, name: str) -> Checkpoint | None:
        sizes = self._bucket.sizes(name)
        if MANIFEST not in sizes:
            return None
        require_short(sizes[MANIFEST])
        content = self._bucket.read(f"{name}/{MANIFEST}")
        if content is None:
            return None
        checkpoint, expected = parsed(self.directory / name, content)
        for file in expected:
            if Path(file).is_absolute() or ".." in Path(file).parts:
                raise Damage(f"its manifest names {file}, which is outside of it")
            if file not in sizes:
                raise Damage(f"{file} is missing")
            require_size(file, sizes[file], expected)
        self._files[name] = list(expected)
        return checkpoint

    def _verify(self, checkpoint: Checkpoint) -> None:
        """Downloads a checkpoint to its path, and compares its files with their hashes."""
        name = checkpoint.path.name
        arriving = self.directory / f".{name}.{self._rank.rank}.arriving"
        shutil.rmtree(arriving, ignore_errors=True)
        arriving.mkdir()
        try:
            keys = {f"{name}/{file}": arriving / file for file in (*self._files[name], MANIFEST)}
            try:
                found = self._bucket.download(keys, self._beat)
            except OSError as error:
                if is_full(error):
                    raise full(self.directory, error, self.remedy) from error
                raise
            for file in self._files[name]:
                if f"{name}/{file}" not in found:
                    raise Damage(f"{file} is missing")
                if checkpoint.hashes:
                    require_hash(file, found[f"{name}/{file}"], checkpoint.hashes)
            try:
                os.rename(arriving, checkpoint.path)
            except OSError:
                # Another node of this machine was first.
                if not checkpoint.path.is_dir():
                    raise
            self._fetched.append(checkpoint.path)
        finally:
            shutil.rmtree(arriving, ignore_errors=True)

    def _move_aside(self, name: str) -> None:
        aside = f"{QUARANTINE.as_posix()}/{name}"
        files = self._bucket.sizes(name)
        # Without its manifest, it is incomplete.
        self._bucket.rename(f"{name}/{MANIFEST}", f"{aside}/{MANIFEST}")
        for file in files:
            if file == MANIFEST:
                continue
            try:
                self._bucket.rename(f"{name}/{file}", f"{aside}/{file}")
            except BucketError as error:
                # S3 copies at most 5 GiB at once. What stays is deleted with the incomplete ones.
                log.warning("not kept in the quarantine: %s", error)

    def _noted(self) -> bytes:
        return self._bucket.read(DIVERGED.as_posix()) or b""

    def _note(self, content: dict[str, Any]) -> None:
        self._bucket.write(DIVERGED.as_posix(), json.dumps(content).encode())

    def _delete(self, name: str) -> None:
        self._bucket.delete_folder(name, MANIFEST)
