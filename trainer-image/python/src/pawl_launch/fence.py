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
    """The epoch of this gang in a storage, here a directory."""

    def __init__(self, storage: Path, attempt: str, epoch: Epoch = Epoch()) -> None:
        self._folder = storage / FOLDER
        self._attempt = attempt
        self.epoch = epoch

    def supersede(self) -> None:
        """Claims the next epoch: supersedes all earlier gangs of the job.

        Raises:
            Superseded: A later attempt has claimed the storage.
        """
        number = attempt_number(self._attempt)
        while True:
            latest = self._latest()
            if latest.attempt > number:
                raise Superseded(self._attempt, str(latest))
            self.epoch = Epoch(number, latest.claim + 1 if latest.attempt == number else 1)
            if self._create(str(self.epoch)):
                break
        # No gang needs the claims before this one: only the latest one counts. Otherwise there would be one for each restart that
        # the job ever had.
        for name in self._names():
            if (epoch := Epoch.read(name)) and epoch < self.epoch:
                with suppress(OSError):
                    self._delete(name)

    def check(self) -> None:
        """Is called before anything is written, made visible or deleted.

        Raises:
            Superseded: A later gang has claimed the storage.
        """
        latest = self._latest()
        if latest > self.epoch:
            raise Superseded(self._attempt, str(latest))

    def _latest(self) -> Epoch:
        return max((epoch for name in self._names() if (epoch := Epoch.read(name))), default=Epoch())

    def _names(self) -> list[str]:
        try:
            return os.listdir(self._folder)
        except FileNotFoundError:
            return []

    def _create(self, name: str) -> bool:
        """Creates a claim. Returns whether it is new."""
        self._folder.mkdir(parents=True, exist_ok=True)
        try:
            os.close(os.open(self._folder / name, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
        except FileExistsError:
            return False
        sync(self._folder)
        return True

    def _delete(self, name: str) -> None:
        (self._folder / name).unlink()


def attempt_number(attempt: str) -> int:
    """The number of an attempt, as in the contract (``attempt.rs``): ``ups-4gpu-12`` is attempt 12 of the job ``ups-4gpu``. 0 when it is
    not the name of an attempt."""
    found = _ATTEMPT.fullmatch(attempt)
    number = int(found[1]) if found else 0
    return number if number < 2**32 else 0
