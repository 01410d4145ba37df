"""Checkpoints: directories in the job's storage, complete once their manifest is there, which has the hashes of their files.

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
from .outcome import CheckpointUnreadable, InvalidPlan, Unsupported
from .plan import CheckpointPolicy

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
_KEEP_DAMAGED = 2
_log = logging.getLogger("pawl_launch")


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


class _Damage(Exception):
    """Why a checkpoint is damaged."""


def local_path(storage: str, field_name: str) -> Path:
    """The directory of a storage that is a path or a ``file://`` URL.

    Raises:
        Unsupported: It is an object storage, to which scripts have no access through this package.
    """
    if storage.startswith("file://"):
        return Path(storage[len("file://") :])
    if "://" in storage:
        raise Unsupported(f"{field_name}: {storage}: this script writes to directories only: use pvc:// or file://")
    return Path(storage)


class Store:
    """The checkpoints of one job. Without a ``fence``, it is only read."""

    def __init__(self, directory: Path, fence: Fence | None = None, author: Mapping[str, Any] | None = None) -> None:
        self.directory = directory
        self._fence = fence
        self._author = dict(author or {})

    def all(self) -> list[Checkpoint]:
        """The complete checkpoints, oldest first: those of a later gang are newer. Incomplete ones are ignored, as are those of a training
        that had diverged which nobody has deleted yet, and damaged ones are quarantined.

        Raises:
            OSError: The storage cannot be read.
        """
        try:
            names = os.listdir(self.directory)
        except (FileNotFoundError, NotADirectoryError):
            return []
        found, diverged = [], self._diverged()
        for name in names:
            if name.startswith(".") or name.endswith(DAMAGED) or name in diverged:
                continue
            try:
                checkpoint = _read(self.directory / name)
            except _Damage as damage:
                self._quarantine(self.directory / name, damage)
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
                    f"{self.directory} contains checkpoints of another job ({author.get('job')}, uid {author['uid']}), such as "
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
                f"checkpoint {found.path.name} in {self.directory} was trained with another workload, configuration or seed, by attempt "
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
                _verify(checkpoint)
            except _Damage as damage:
                self._quarantine(checkpoint.path, damage)
            else:
                return checkpoint
        return None

    def named(self, name: str) -> Checkpoint:
        """The checkpoint that rank 0 has found.

        Raises:
            CheckpointUnreadable: This rank does not find it.
        """
        try:
            found = _read(self.directory / name)
        except _Damage as damage:
            raise CheckpointUnreadable(f"{self.directory / name}: {damage}, but rank 0 has read it") from damage
        if found is None:
            raise CheckpointUnreadable(f"{self.directory} does not contain {name} on this node, but rank 0 has read it: mount it there")
        return found

    def damaged(self) -> list[Path]:
        """The checkpoints that were quarantined, in the order of their names, with those of earlier versions."""
        found = [*self.directory.glob(f"*{DAMAGED}"), *(self.directory / QUARANTINE).glob("*")]
        return sorted(found, key=lambda path: path.name)

    def _quarantine(self, path: Path, damage: _Damage) -> None:
        """Moves a damaged checkpoint into the quarantine, where this gang may write."""
        _log.warning("checkpoint %s is damaged: %s; it is not used", path, damage)
        if self._fence is None:
            return
        self._fence.check()
        aside = self.directory / QUARANTINE / path.name
        aside.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(aside, ignore_errors=True)
        os.rename(path, aside)
        sync(aside.parent)
        sync(self.directory)

    def discard_after(self, limit: int | None) -> None:
        """Deletes the checkpoints of more than ``limit`` items, if there is a limit: their weights are bad. What is deleted is noted: the
        report may be lost, and the next launch expects a checkpoint. What was noted, but not deleted because its gang was killed, is
        deleted now."""
        noted = self._diverged()
        bad = [name for name in self._after(limit) if name not in noted]
        if bad:
            self.check()
            (self.directory / DIVERGED.parent).mkdir(exist_ok=True)
            noted = [*noted, *bad][-_MOST_NOTED:]
            replace(self.directory / DIVERGED, {"names": noted}, durable=True)
        for name in noted:
            if _order(name) is not None and (self.directory / name).exists():
                self.check()
                _remove(self.directory / name)

    def is_bad(self, known: str, limit: int | None) -> bool:
        """Whether the checkpoint ``known`` is not missing but bad: it is one of more than ``limit`` items, or was deleted because it was;
        or one that was written after it, for which it may have been deleted, is there or was."""
        bad = [*self._after(limit), *self._diverged()]
        if known in bad:
            return True
        start = _order(known) if self.is_after(known, limit) else None
        bad += [path.name for path in self.damaged()]
        return start is not None and any((order := _order(name)) is not None and order >= start for name in bad)

    def is_after(self, name: str, limit: int | None) -> bool:
        """Whether the name of a checkpoint is that of one of more than ``limit`` items."""
        order = _order(name)
        return limit is not None and order is not None and order[1] > limit

    def _after(self, limit: int | None) -> list[str]:
        return [] if limit is None else [checkpoint.path.name for checkpoint in self.all() if checkpoint.items > limit]

    def _diverged(self) -> list[str]:
        try:
            names = json.loads((self.directory / DIVERGED).read_bytes()[:_LONGEST_LIST])["names"]
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

    def name(self, partial: Path) -> str:
        """The name of the checkpoint that :meth:`commit` makes of ``partial``."""
        return partial.name.removeprefix(".").removesuffix(".partial")

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
        if not files:
            raise InvalidPlan("checkpoint: the script has written no file: save the state in the directory of run.checkpoint()")
        for name in files:
            sync(partial / name)
        # A directory that contains only directories, too: its entries are not on the disk otherwise.
        for directory in (partial, *(path for path in partial.rglob("*") if path.is_dir())):
            sync(directory)
        epoch = Epoch() if self._fence is None else self._fence.epoch
        found = dict(hashes.of_files(partial, files))
        manifest = {"format": _FORMAT, "step": step, "items": items, "files": files, "hashes": found}
        manifest |= {"author": self._author, "epoch": str(epoch), "state": json.loads(json.dumps(dict(state)))}
        self.check()
        replace(partial / MANIFEST, manifest | {"sha256": hashes.seal(manifest)}, durable=True)
        path = self.directory / self.name(partial)
        if path.name in (noted := self._diverged()):
            # It is written anew.
            replace(self.directory / DIVERGED, {"names": [name for name in noted if name != path.name]}, durable=True)
        # Not deleted before the new one is in its place: it may be the only checkpoint.
        replaced = partial.with_suffix(".replaced")
        if path.exists():
            shutil.rmtree(replaced, ignore_errors=True)
            os.rename(path, replaced)
        os.rename(partial, path)
        sync(self.directory)
        shutil.rmtree(replaced, ignore_errors=True)
        return Checkpoint(path, step, items, dict(state), epoch, self._author, found)

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
                _remove(checkpoint.path)
        for path in damaged[:-_KEEP_DAMAGED]:
            shutil.rmtree(path, ignore_errors=True)
        own = Epoch(attempt_number(attempt), 1) if self._fence is None else self._fence.epoch
        for path in entries:
            unfinished = _UNFINISHED.fullmatch(path.name)
            if unfinished and Epoch(int(unfinished[1]), int(unfinished[2] or 1)) <= own:
                shutil.rmtree(path, ignore_errors=True)


def _order(name: str) -> tuple[Epoch, int] | None:
    """The gang and the items of the checkpoint with this name: it is newer than those whose order is less."""
    found = _CHECKPOINT.fullmatch(name)
    return (Epoch(int(found[2]), int(found[3] or 1)), int(found[1])) if found else None


def _read(path: Path) -> Checkpoint | None:
    """The checkpoint in ``path``, if it is complete. A storage that cannot be read is an error: it is not a missing file."""
    try:
        size = (path / MANIFEST).stat().st_size
    except (FileNotFoundError, NotADirectoryError):
        return None
    if size > _LONGEST_MANIFEST:
        raise _Damage(f"its manifest has {size} bytes")
    try:
        manifest = json.loads((path / MANIFEST).read_bytes())
        if "sha256" in manifest and manifest["sha256"] != hashes.seal(manifest):
            raise _Damage("its manifest does not match its hash")
        if manifest["format"] > _FORMAT:
            raise CheckpointUnreadable(
                f"{path}: format {manifest['format']}: this version of pawl-launch reads up to {_FORMAT}: install a newer one"
            )
        sizes, found = dict(manifest["files"]), dict(manifest.get("hashes", {}))
        epoch = Epoch.read(manifest.get("epoch", "")) or Epoch(attempt_number(path.name))
        state, author = dict(manifest["state"]), dict(manifest.get("author", {}))
        checkpoint = Checkpoint(path, int(manifest["step"]), int(manifest["items"]), state, epoch, author, found)
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _Damage(f"its manifest is corrupt: {type(error).__name__}: {error}") from error
    # Before anything is read: a file may have grown to any size.
    for name, expected in sizes.items():
        try:
            size = (path / name).stat().st_size
        except (FileNotFoundError, NotADirectoryError):
            raise _Damage(f"{name} is missing") from None
        if size != expected:
            raise _Damage(f"{name} has {size} bytes, not {expected}")
        if found and name not in found:
            raise _Damage(f"its manifest has no hash of {name}")
    return checkpoint


def _verify(checkpoint: Checkpoint) -> None:
    """Compares the files of a checkpoint with their hashes."""
    for name, found in hashes.of_files(checkpoint.path, checkpoint.hashes):
        if found != checkpoint.hashes[name]:
            raise _Damage(f"{name} does not match its hash")


def _remove(path: Path) -> None:
    """Deletes a checkpoint: its manifest first, so that a partly deleted one is never complete."""
    (path / MANIFEST).unlink(missing_ok=True)
    shutil.rmtree(path, ignore_errors=True)
