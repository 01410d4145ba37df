"""Checkpoints: directories in the job's storage, complete once their manifest is there."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .files import replace, sync
from .outcome import CheckpointUnreadable, InvalidPlan, Unsupported
from .plan import CheckpointPolicy

MANIFEST = "pawl.json"
_FORMAT = 1
_UNFINISHED = re.compile(r"\.\d+-.*-(\d+)\.(?:partial|replaced)")


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint."""

    path: Path
    step: int
    items: int
    state: dict[str, Any] = field(default_factory=dict)

    def reference(self) -> dict[str, Any]:
        """The reference to it, as in ``report.json``."""
        return {"name": self.path.name, "step": self.step, "items": self.items}


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
    """The checkpoints of one job."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def all(self) -> list[Checkpoint]:
        """The complete checkpoints, oldest first. Incomplete ones are ignored.

        Raises:
            OSError: The storage cannot be read.
        """
        try:
            names = os.listdir(self.directory)
        except (FileNotFoundError, NotADirectoryError):
            return []
        found = [_read(self.directory / name) for name in names if not name.startswith(".")]
        return sorted((checkpoint for checkpoint in found if checkpoint), key=lambda checkpoint: checkpoint.items)

    def newest(self, not_after: int | None = None) -> Checkpoint | None:
        """The newest complete checkpoint of at most ``not_after`` items."""
        good = [checkpoint for checkpoint in self.all() if not_after is None or checkpoint.items <= not_after]
        return good[-1] if good else None

    def discard_after(self, items: int) -> None:
        """Deletes the checkpoints of more than ``items`` items: they are damaged."""
        for checkpoint in self.all():
            if checkpoint.items > items:
                _remove(checkpoint.path)

    def begin(self, items: int, attempt: str) -> Path:
        """The directory to fill; :meth:`commit` completes it. The attempt is part of the name: attempts never share one."""
        path = self.directory / f".{items:015d}-{attempt}.partial"
        path.mkdir(parents=True, exist_ok=True)
        return path

    def name(self, partial: Path) -> str:
        """The name of the checkpoint that :meth:`commit` makes of ``partial``."""
        return partial.name.removeprefix(".").removesuffix(".partial")

    def commit(self, partial: Path, step: int, items: int, state: Mapping[str, Any]) -> Checkpoint:
        """Completes the checkpoint in ``partial``: durable, then visible.

        Raises:
            InvalidPlan: The script has written no file.
        """
        files = {str(file.relative_to(partial)): file.stat().st_size for file in sorted(partial.rglob("*")) if file.is_file()}
        files.pop(MANIFEST, None)
        if not files:
            raise InvalidPlan("checkpoint: the script has written no file: save the state in the directory of run.checkpoint()")
        for name in files:
            sync(partial / name)
        # A directory that contains only directories, too: its entries are not on the disk otherwise.
        for directory in (partial, *(path for path in partial.rglob("*") if path.is_dir())):
            sync(directory)
        manifest = {"format": _FORMAT, "step": step, "items": items, "files": files, "state": dict(state)}
        replace(partial / MANIFEST, manifest, durable=True)
        path = self.directory / self.name(partial)
        # Not deleted before the new one is in its place: it may be the only checkpoint.
        replaced = partial.with_suffix(".replaced")
        if path.exists():
            shutil.rmtree(replaced, ignore_errors=True)
            os.rename(path, replaced)
        os.rename(partial, path)
        sync(self.directory)
        shutil.rmtree(replaced, ignore_errors=True)
        return Checkpoint(path, step, items, dict(state))

    def prune(self, policy: CheckpointPolicy, best: str | None, attempt: str) -> None:
        """Deletes all but the newest checkpoints and the best one, and what interrupted writes of this and earlier attempts
        have left. A later attempt may be writing."""
        complete = self.all()
        for checkpoint in complete[: -policy.keep]:
            if checkpoint.path.name != best:
                _remove(checkpoint.path)
        for path in self.directory.iterdir():
            unfinished = _UNFINISHED.fullmatch(path.name)
            if unfinished and int(unfinished[1]) <= _number(attempt):
                shutil.rmtree(path, ignore_errors=True)


def _number(attempt: str) -> int:
    """The number of an attempt, whose name is that of the job and the number."""
    return int(attempt.rpartition("-")[2])


def _read(path: Path) -> Checkpoint | None:
    """The checkpoint in ``path``, if it is complete. A storage that cannot be read is an error: it is not a missing file."""
    try:
        manifest = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
        if manifest["format"] > _FORMAT:
            raise CheckpointUnreadable(
                f"{path}: format {manifest['format']}: this version of pawl-launch reads up to {_FORMAT}: install a newer one"
            )
        for name, size in manifest["files"].items():
            if (path / name).stat().st_size != size:
                return None
        return Checkpoint(path, int(manifest["step"]), int(manifest["items"]), dict(manifest["state"]))
    except (FileNotFoundError, NotADirectoryError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _remove(path: Path) -> None:
    """Deletes a checkpoint: its manifest first, so that a partly deleted one is never complete."""
    (path / MANIFEST).unlink(missing_ok=True)
    shutil.rmtree(path, ignore_errors=True)
