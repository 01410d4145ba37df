"""Fencing, with the files of Pawl's own trainer (``epoch.rs``): of all gangs that ever wrote to a storage, only the newest may.

A node that is cut off from the cluster is taken for dead, and a new gang starts, while the old gang may still run. Each gang claims
an epoch before it reads a checkpoint, by creating a file that must not exist yet. A gang that finds a later epoch than its own
writes and deletes nothing more.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import NamedTuple

from .files import sync
from .outcome import Superseded

FOLDER = "epochs"
_NAME = re.compile(r"(\d+)\.(\d+)", re.ASCII)


class Epoch(NamedTuple):
    """The right of one gang to write. Ordered: a later epoch supersedes an earlier one."""

    attempt: int = 0
    claim: int = 0
    """Number of the gang within the attempt, from 1; 0 for checkpoints of versions without fencing."""

    def __str__(self) -> str:
        return f"{self.attempt}.{self.claim}"

    @classmethod
    def read(cls, text: str) -> Epoch | None:
        """The epoch with this name."""
        found = _NAME.fullmatch(text)
        return Epoch(int(found[1]), int(found[2])) if found else None


class Fence:
    """The epoch of this gang in a storage."""

    def __init__(self, storage: Path, attempt: str, epoch: Epoch) -> None:
        self._storage = storage
        self._attempt = attempt
        self.epoch = epoch

    @classmethod
    def claim(cls, storage: Path, attempt: str) -> Fence:
        """Supersedes all earlier gangs of the job.

        Raises:
            Superseded: A later attempt has claimed the storage.
        """
        number = attempt_number(attempt)
        (storage / FOLDER).mkdir(parents=True, exist_ok=True)
        while True:
            latest = _latest(storage)
            if latest.attempt > number:
                raise Superseded(attempt, str(latest))
            epoch = Epoch(number, latest.claim + 1 if latest.attempt == number else 1)
            try:
                os.close(os.open(storage / FOLDER / str(epoch), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
            except FileExistsError:
                continue
            sync(storage / FOLDER)
            return cls(storage, attempt, epoch)

    def check(self) -> None:
        """Is called before anything is written, made visible or deleted.

        Raises:
            Superseded: A later gang has claimed the storage.
        """
        latest = _latest(self._storage)
        if latest > self.epoch:
            raise Superseded(self._attempt, str(latest))


def attempt_number(attempt: str) -> int:
    """The number of an attempt, whose name is that of the job and the number; 0 when it ends in none."""
    number = attempt.rpartition("-")[2]
    return int(number) if number.isdecimal() else 0


def _latest(storage: Path) -> Epoch:
    try:
        names = os.listdir(storage / FOLDER)
    except FileNotFoundError:
        return Epoch()
    return max((epoch for name in names if (epoch := Epoch.read(name))), default=Epoch())
