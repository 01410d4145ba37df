"""Fencing, with the files of Pawl's own trainer (``epoch.rs``): of all gangs that ever wrote to a storage, only the newest may.

A node that is cut off from the cluster is taken for dead, and a new gang starts, while the old gang may still run. Each gang claims
an epoch before it reads a checkpoint, by creating a file that must not exist yet. A gang that finds a later epoch than its own
writes and deletes nothing more.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from .files import sync
from .outcome import Superseded

FOLDER = "epochs"
_NAME = re.compile(r"(\d+)\.(\d+)", re.ASCII)
_ATTEMPT = re.compile(r".+-([1-9]\d*)", re.ASCII | re.DOTALL)


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
            _forget_earlier(storage, epoch)
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
    """The number of an attempt, as in the contract (``attempt.rs``): ``ups-4gpu-12`` is attempt 12 of the job ``ups-4gpu``. 0 when it is
    not the name of an attempt."""
    found = _ATTEMPT.fullmatch(attempt)
    number = int(found[1]) if found else 0
    return number if number < 2**32 else 0


def _latest(storage: Path) -> Epoch:
    return max(_claimed(storage), default=Epoch())


def _claimed(storage: Path) -> list[Epoch]:
    try:
        names = os.listdir(storage / FOLDER)
    except FileNotFoundError:
        return []
    return [epoch for name in names if (epoch := Epoch.read(name))]


def _forget_earlier(storage: Path, own: Epoch) -> None:
    """Deletes the claims before this one, which no gang needs: only the latest one counts. Otherwise there would be one for each
    restart that the job ever had."""
    for epoch in _claimed(storage):
        if epoch < own:
            with suppress(OSError):
                (storage / FOLDER / str(epoch)).unlink()
