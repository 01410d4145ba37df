"""Checkpoints: directories in the job's storage, complete once their manifest is there, which has the hashes of their files. Those in an
object storage are in ``objects.py``.

A checkpoint that is damaged is never resumed: it is moved to ``.pawl/quarantine``, as those of scripts without this package, and the
one before it is resumed. Earlier versions renamed it to ``NAME.damaged``, which is still left alone. Of several gangs
of a job only the one with the latest epoch writes, renames or deletes (``fence.py``).
"""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import hashes
from .author import resumed, trains_as
from .fence import Epoch, Fence, attempt_number
from .files import replace, sync
from .gang import Gang
from .outcome import CheckpointUnreadable, InvalidPlan
from .plan import CheckpointPolicy
from .probe import LESS_SPACE

MANIFEST = "pawl.json"
QUARANTINE = Path(".pawl", "quarantine")
# The names of the checkpoints that were deleted because the training that had saved them had diverged. A gang has names of its own.
DIVERGED = Path(".pawl", "diverged.json")
_MOST_NOTED = 500
_LONGEST_LIST = 1 << 16
# Items, and the gang: the attempt and its claim, if that is not the first.
_CHECKPOINT = re.compile(r"(\d+)-.*-(\d+)(?:\.(\d+))?(?:\.damaged)?")
DAMAGED = ".damaged"
_FORMAT = 1
_UNFINISHED = re.compile(r"\.\d+-.*-(\d+)(?:\.(\d+))?\.(?:partial|replaced)")
# A manifest that has grown to more is damaged: it is not read.
_LONGEST_MANIFEST = 64 << 20
# Parts of a model in progress; the manifest has more.
_REPORTED_PARTS = 16
# Damaged checkpoints that are kept, for whoever looks for the cause.
KEEP_DAMAGED = 2
log = logging.getLogger("pawl_launch")


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint."""

    path: Path
    step: int
    items: int
    state: dict[str, Any] = field(default_factory=dict)
    epoch: Epoch = Epoch()
    author: dict[str, Any] = field(default_factory=dict)
    hashes: dict[str, str] = field(default_factory=dict)
    """SHA-256 of each file; empty where an earlier version of this package has written it."""

    def reference(self) -> dict[str, Any]:
        """The reference to it, as in ``report.json``."""
        return {"name": self.path.name, "step": self.step, "items": self.items}


class Damage(Exception):
    """Why a checkpoint is damaged."""


class Store:
    """The checkpoints of one job, here in a directory. Without a ``fence``, it is only read."""

    remedy = LESS_SPACE
    """When there is no space left in ``directory``."""

    def __init__(self, directory: Path, fence: Fence | None = None, author: Mapping[str, Any] | None = None) -> None:
        self.directory = directory
        """Where scripts write and read checkpoints."""
        self.name = str(directory)
        """The storage, in messages."""
        self._fence = fence
        self._author = dict(author or {})

    def all(self) -> list[Checkpoint]:
        """The complete checkpoints, oldest first: those of a later gang are newer. Incomplete ones are ignored, as are those of a training
        that had diverged which nobody has deleted yet, and damaged ones are quarantined.

        Raises:
            OSError: The storage cannot be read.
        """
        found, diverged = [], self._diverged()
        for name in self._names():
            if name.startswith(".") or name.endswith(DAMAGED) or name in diverged:
                continue
            try:
                checkpoint = self._read(name)
            except Damage as damage:
                self._quarantine(name, damage)
            else:
                found += [checkpoint] if checkpoint else []
        return sorted(found, key=lambda checkpoint: (checkpoint.epoch, checkpoint.items))

    def require_own(self, uid: str | None) -> None:
        """Checks that the checkpoints are of the job with this uid, as far as they name theirs.

        Raises:
            CheckpointUnreadable: They are of another one.
        """
        for checkpoint in self.all() if uid else []:
            author = checkpoint.author
            if author.get("uid") not in (None, "", uid):
                raise CheckpointUnreadable(
                    f"{self.name} contains checkpoints of another job ({author.get('job')}, uid {author['uid']}), such as "
                    f"{checkpoint.path.name}: nothing was read or deleted: move them elsewhere; to continue from them, set "
                    "train.resumeFrom.storage to where they are"
                )

    def resume(self, found: Checkpoint) -> None:
        """What is written from now on continues this checkpoint.

        Raises:
            CheckpointUnreadable: It is one of another training, which a job never presents as its own.
        """
        if not trains_as(self._author, found.author):
            raise CheckpointUnreadable(
                f"checkpoint {found.path.name} in {self.name} was trained with another workload, configuration or seed, by attempt "
                f"{found.author.get('attempt')} of job {found.author.get('job')}: use another train.checkpoint.storage, or name this one "
                "in train.resumeFrom to start from it"
            )
        self._author = resumed(self._author, found.author, found.items)

    @property
    def trained(self) -> list[dict[str, Any]]:
        """The newest parts of the model that is written from now on, as many as progress contains."""
        return list(self._author.get("trained", []))[-_REPORTED_PARTS:]

    def newest(self, not_after: int | None = None) -> Checkpoint | None:
        """The newest complete checkpoint of at most ``not_after`` items whose files are those that were written. Damaged ones are
        quarantined."""
        for checkpoint in reversed(self.all()):
            if not_after is not None and checkpoint.items > not_after:
                continue
            try:
                self._verify(checkpoint)
            except Damage as damage:
                self._quarantine(checkpoint.path.name, damage)
            else:
                return checkpoint
        return None

    def named(self, name: str) -> Checkpoint:
        """The checkpoint that rank 0 has found.

        Raises:
            CheckpointUnreadable: This rank does not find it.
        """
        try:
            found = self._read(name)
        except Damage as damage:
            raise CheckpointUnreadable(f"{self.name}/{name}: {damage}, but rank 0 has read it") from damage
        if found is None:
            raise CheckpointUnreadable(f"{self.name} does not contain {name} on this node, but rank 0 has read it: mount it there")
        return found

    def damaged(self) -> list[Path]:
        """The checkpoints that were quarantined, in the order of their names, with those of earlier versions."""
        found = [*self.directory.glob(f"*{DAMAGED}"), *(self.directory / QUARANTINE).glob("*")]
        return sorted(found, key=lambda path: path.name)

    def _quarantine(self, name: str, damage: Damage) -> None:
        """Moves a damaged checkpoint into the quarantine, where this gang may write."""
        log.warning("checkpoint %s/%s is damaged: %s; it is not used", self.name, name, damage)
        if self._fence is not None:
            self._fence.check()
            self._move_aside(name)

    def discard_after(self, limit: int | None) -> None:
        """Deletes the checkpoints of more than ``limit`` items, if there is a limit: their weights are bad. What is deleted is noted: the
        report may be lost, and the next launch expects a checkpoint. What was noted, but not deleted because its gang was killed, is
        deleted now."""
        noted = self._diverged()
        bad = [name for name in self._after(limit) if name not in noted]
        if bad:
            self.check()
            noted = [*noted, *bad][-_MOST_NOTED:]
            self._note({"names": noted})
        present = set(self._names()) if noted else set()
        for name in noted:
            if order(name) is not None and name in present:
                self.check()
                self._delete(name)

    def is_bad(self, known: str, limit: int | None) -> bool:
        """Whether the checkpoint ``known`` is not missing but bad: it is one of more than ``limit`` items, or was deleted because it was;
        or one that was written after it, for which it may have been deleted, is there or was."""
        bad = [*self._after(limit), *self._diverged()]
        if known in bad:
            return True
        start = order(known) if self.is_after(known, limit) else None
        bad += [path.name for path in self.damaged()]
        return start is not None and any((found := order(name)) is not None and found >= start for name in bad)

    def is_after(self, name: str, limit: int | None) -> bool:
        """Whether the name of a checkpoint is that of one of more than ``limit`` items."""
        found = order(name)
        return limit is not None and found is not None and found[1] > limit

    def _after(self, limit: int | None) -> list[str]:
        return [] if limit is None else [checkpoint.path.name for checkpoint in self.all() if checkpoint.items > limit]

    def _diverged(self) -> list[str]:
        try:
            names = json.loads(self._noted())["names"]
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return []
        return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []

    def check(self) -> None:
        """Is called before anything is written or deleted.

        Raises:
            Superseded: A later gang writes.
        """
        if self._fence is not None:
            self._fence.check()

    def begin(self, items: int, attempt: str) -> Path:
        """The directory to fill; :meth:`commit` completes it. The gang is part of the name: gangs never share one.

        Raises:
            Superseded: A later gang writes.
        """
        self.check()
        # The first gang of an attempt is the only one of most attempts.
        claim = "" if self._fence is None or self._fence.epoch.claim == 1 else f".{self._fence.epoch.claim}"
        path = self.directory / f".{items:015d}-{attempt}{claim}.partial"
        path.mkdir(parents=True, exist_ok=True)
        return path

    def name_of(self, partial: Path) -> str:
        """The name of the checkpoint that :meth:`commit` makes of ``partial``."""
        return partial.name.removeprefix(".").removesuffix(".partial")

    def gather(self, partial: Path, gang: Gang) -> None:
        """Waits until all ranks have written their files. Collective."""
        gang.barrier()

    def commit(self, partial: Path, step: int, items: int, state: Mapping[str, Any]) -> Checkpoint:
        """Completes the checkpoint in ``partial``: durable, then visible.

        Raises:
            InvalidPlan: The script has written no file.
            Superseded: A later gang writes.
        """
        # A later gang deletes what is unfinished.
        self.check()
        files = {str(file.relative_to(partial)): file.stat().st_size for file in sorted(partial.rglob("*")) if file.is_file()}
        files.pop(MANIFEST, None)
        require_files(files)
        for name in files:
            sync(partial / name)
        # A directory that contains only directories, too: its entries are not on the disk otherwise.
        for directory in (partial, *(path for path in partial.rglob("*") if path.is_dir())):
            sync(directory)
        found = dict(hashes.of_files(partial, files))
        checkpoint = Checkpoint(self.directory / self.name_of(partial), step, items, dict(state), self._epoch, self._author, found)
        self.check()
        replace(partial / MANIFEST, manifest_of(checkpoint, files), durable=True)
        path = checkpoint.path
        self._forgive(path.name)
        # Not deleted before the new one is in its place: it may be the only checkpoint.
        replaced = partial.with_suffix(".replaced")
        if path.exists():
            shutil.rmtree(replaced, ignore_errors=True)
            os.rename(path, replaced)
        os.rename(partial, path)
        sync(self.directory)
        shutil.rmtree(replaced, ignore_errors=True)
        return checkpoint

    def finish(self, partial: Path) -> None:
        """Deletes the copies of this node, when the checkpoint is complete: here there are none."""

    def prune(self, policy: CheckpointPolicy, best: str | None, attempt: str) -> None:
        """Deletes all but the newest checkpoints and the best one, and what interrupted writes of this and earlier gangs have
        left. A later one may be writing: nothing of it is in the lists, because they are older than the check.

        Raises:
            Superseded: A later gang writes.
        """
        complete, damaged, entries = self.all(), self.damaged(), list(self.directory.iterdir())
        self.check()
        for checkpoint in complete[: -policy.keep]:
            if checkpoint.path.name != best:
                self._delete(checkpoint.path.name)
        for path in damaged[:-KEEP_DAMAGED]:
            shutil.rmtree(path, ignore_errors=True)
        own = Epoch(attempt_number(attempt), 1) if self._fence is None else self._epoch
        for path in entries:
            unfinished = _UNFINISHED.fullmatch(path.name)
            if unfinished and Epoch(int(unfinished[1]), int(unfinished[2] or 1)) <= own:
                shutil.rmtree(path, ignore_errors=True)

    @property
    def _epoch(self) -> Epoch:
        return Epoch() if self._fence is None else self._fence.epoch

    def _forgive(self, name: str) -> None:
        """A checkpoint that was deleted because the training had diverged is written anew."""
        if name in (noted := self._diverged()):
            self._note({"names": [other for other in noted if other != name]})

    # What differs where the storage is no directory.

    def _names(self) -> list[str]:
        """The entries of the storage."""
        try:
            return os.listdir(self.directory)
        except (FileNotFoundError, NotADirectoryError):
            return []

    def _read(self, name: str) -> Checkpoint | None:
        """The checkpoint with this name, if it is complete. A storage that cannot be read is an error: it is not a missing file.

        Raises:
            Damage: It is damaged.
        """
        path = self.directory / name
        try:
            require_short((path / MANIFEST).stat().st_size)
            content = (path / MANIFEST).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
        checkpoint, sizes = parsed(path, content)
        for file in sizes:
            # Before anything is read: a file may have grown to any size.
            try:
                size = (path / file).stat().st_size
            except (FileNotFoundError, NotADirectoryError):
                raise Damage(f"{file} is missing") from None
            require_size(file, size, sizes)
        return checkpoint

    def _verify(self, checkpoint: Checkpoint) -> None:
        """Compares the files of a checkpoint with their hashes.

        Raises:
            Damage: One differs.
        """
        for name, found in hashes.of_files(checkpoint.path, checkpoint.hashes):
            require_hash(name, found, checkpoint.hashes)

    def _move_aside(self, name: str) -> None:
        """Moves a checkpoint into the quarantine."""
        aside = self.directory / QUARANTINE / name
        aside.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(aside, ignore_errors=True)
        os.rename(self.directory / name, aside)
        sync(aside.parent)
        sync(self.directory)

    def _noted(self) -> bytes:
        """The names of the checkpoints that were deleted because the training had diverged, JSON."""
        return (self.directory / DIVERGED).read_bytes()[:_LONGEST_LIST]

    def _note(self, content: dict[str, Any]) -> None:
        """Replaces them."""
        (self.directory / DIVERGED.parent).mkdir(exist_ok=True)
        replace(self.directory / DIVERGED, content, durable=True)

    def _delete(self, name: str) -> None:
        """Deletes a checkpoint: its manifest first, so that a partly deleted one is never complete."""
        (self.directory / name / MANIFEST).unlink(missing_ok=True)
        shutil.rmtree(self.directory / name, ignore_errors=True)


def order(name: str) -> tuple[Epoch, int] | None:
    """The gang and the items of the checkpoint with this name: it is newer than those whose order is less."""
    found = _CHECKPOINT.fullmatch(name)
    return (Epoch(int(found[2]), int(found[3] or 1)), int(found[1])) if found else None


def manifest_of(checkpoint: Checkpoint, sizes: Mapping[str, int]) -> dict[str, Any]:
    """The manifest of a checkpoint. ``sizes``: of its files, bytes."""
    content = {"format": _FORMAT, "step": checkpoint.step, "items": checkpoint.items, "files": sizes, "hashes": checkpoint.hashes}
    content |= {"author": checkpoint.author, "epoch": str(checkpoint.epoch), "state": json.loads(json.dumps(checkpoint.state))}
    return content | {"sha256": hashes.seal(content)}


def parsed(path: Path, content: bytes) -> tuple[Checkpoint, dict[str, int]]:
    """The checkpoint with the manifest ``content``, and the sizes of its files, bytes.

    Raises:
        Damage: The manifest is corrupt.
        CheckpointUnreadable: It is of a later format.
    """
    try:
        manifest = json.loads(content)
        if "sha256" in manifest and manifest["sha256"] != hashes.seal(manifest):
            raise Damage("its manifest does not match its hash")
        if manifest["format"] > _FORMAT:
            raise CheckpointUnreadable(
                f"{path}: format {manifest['format']}: this version of pawl-launch reads up to {_FORMAT}: install a newer one"
            )
        sizes, found = dict(manifest["files"]), dict(manifest.get("hashes", {}))
        epoch = Epoch.read(manifest.get("epoch", "")) or Epoch(attempt_number(path.name))
        state, author = dict(manifest["state"]), dict(manifest.get("author", {}))
        checkpoint = Checkpoint(path, int(manifest["step"]), int(manifest["items"]), state, epoch, author, found)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Damage(f"its manifest is corrupt: {type(error).__name__}: {error}") from error
    for name in sizes:
        if found and name not in found:
            raise Damage(f"its manifest has no hash of {name}")
    return checkpoint, sizes


def require_files(files: Mapping[str, Any]) -> None:
    """Checks that a script has written some.

    Raises:
        InvalidPlan: It has written none.
    """
    if not files:
        raise InvalidPlan("checkpoint: the script has written no file: save the state in the directory of run.checkpoint()")


def require_short(size: int) -> None:
    """Checks the size of a manifest, bytes. Raises :class:`Damage`."""
    if size > _LONGEST_MANIFEST:
        raise Damage(f"its manifest has {size} bytes")


def require_size(name: str, size: int, sizes: Mapping[str, int]) -> None:
    """Checks the size of a file, bytes. Raises :class:`Damage`."""
    if size != sizes[name]:
        raise Damage(f"{name} has {size} bytes, not {sizes[name]}")


def require_hash(name: str, found: str, known: Mapping[str, str]) -> None:
    """Checks the hash of a file. Raises :class:`Damage`."""
    if found != known[name]:
        raise Damage(f"{name} does not match its hash")
