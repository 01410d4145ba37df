"""What rank 0 has decided before training: its epoch in the storage, and the checkpoint from which all ranks resume.

Every rank reads it, so that they never resume different ones. The ranks may not be connected yet, so rank 0 writes a file into the
storage, which all of them reach. Its name is that of the gang's launch: a gang before or after it has another one.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from .fence import Epoch
from .files import replace
from .outcome import LostPeer
from .plan import Plan

# As long as a launch may be Resuming (RankPhase of the contract): rank 0 reads a whole checkpoint before it decides.
LONGEST_SECONDS = 6 * 3600.0


@dataclass(frozen=True)
class Decision:
    """The decision of rank 0."""

    epoch: str
    own: str | None = None
    """Name of the own checkpoint from which the ranks resume."""
    other: str | None = None
    """Name of the checkpoint of another job (``train.resumeFrom``) from which they start."""


def gang_key(plan: Plan, environment: Mapping[str, str] = os.environ) -> str:
    """A name that all ranks of a launch know, and no other gang: 16 hexadecimal digits."""
    token = Path(environment.get("PAWL_TOKEN_FILE") or os.devnull)
    secret = token.read_bytes() if token.exists() else b""
    parts = [plan.attempt, plan.launch, environment.get("MASTER_ADDR", ""), environment.get("MASTER_PORT", "")]
    return hashlib.sha256(secret + "\n".join(parts).encode()).hexdigest()[:16]


class Board:
    """Where rank 0 writes its decision, here in a directory."""

    poll_seconds = 0.05

    def __init__(self, storage: Path, plan: Plan) -> None:
        self._name = f".resume-{gang_key(plan)}.json"
        self._storage = storage
        self._place = str(storage)

    def write(self, decision: Decision) -> None:
        """Announces the decision."""
        replace(self._storage / self._name, asdict(decision), durable=True)

    def _content(self) -> bytes:
        return (self._storage / self._name).read_bytes()

    def read(self, seconds: float = LONGEST_SECONDS) -> tuple[Decision, Epoch]:
        """Waits for the decision, and its epoch. Rank 0 reads a whole checkpoint before it.

        Raises:
            LostPeer: There is none after ``seconds``.
        """
        end = time.monotonic() + seconds
        while True:
            try:
                decision = Decision(**json.loads(self._content()))
                return decision, Epoch.read(decision.epoch) or Epoch()
            except (FileNotFoundError, ValueError, TypeError):
                if time.monotonic() > end:
                    raise LostPeer(f"rank 0 has not named the checkpoint to resume from in {self._place} in {seconds:.0f} s") from None
                time.sleep(self.poll_seconds)

    def clear(self) -> None:
        """Deletes the decision, when all ranks have read it."""
        (self._storage / self._name).unlink(missing_ok=True)
