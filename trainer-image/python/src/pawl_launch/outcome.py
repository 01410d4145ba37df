"""The outcome of a launch, its exit code, and the outcome that an exception means."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from enum import Enum


class Outcome(Enum):
    """How a launch ended. The value is the name in ``report.json``."""

    DONE = "Done"
    OUT_OF_MEMORY = "OutOfMemory"
    HOST_OUT_OF_MEMORY = "HostOutOfMemory"
    NON_FINITE = "NonFinite"
    LOSS_SPIKE = "LossSpike"
    UNSUPPORTED = "Unsupported"
    INVALID_PLAN = "InvalidPlan"
    COMPILE_FAILED = "CompileFailed"
    CHECKPOINT_UNREADABLE = "CheckpointUnreadable"
    STORAGE_FULL = "StorageFull"
    STOPPED = "Stopped"
    LOST_PEER = "LostPeer"
    FAILED = "Failed"

    @property
    def exit_code(self) -> int:
        """The exit code of a process that ends with this outcome."""
        return _EXIT_CODES[self]

    @property
    def is_divergence(self) -> bool:
        """Whether the training has diverged: what it wrote after its last healthy loss may be damaged."""
        return self in (Outcome.NON_FINITE, Outcome.LOSS_SPIKE)


_EXIT_CODES = {
    Outcome.DONE: 0,
    Outcome.FAILED: 1,
    Outcome.OUT_OF_MEMORY: 10,
    Outcome.HOST_OUT_OF_MEMORY: 11,
    Outcome.NON_FINITE: 12,
    Outcome.LOSS_SPIKE: 13,
    Outcome.UNSUPPORTED: 20,
    Outcome.INVALID_PLAN: 21,
    Outcome.COMPILE_FAILED: 22,
    Outcome.CHECKPOINT_UNREADABLE: 23,
    Outcome.STORAGE_FULL: 24,
    Outcome.STOPPED: 30,
    Outcome.LOST_PEER: 40,
}


class LaunchError(Exception):
    """The launch cannot continue. The message names the cause and the remedy."""

    outcome = Outcome.FAILED


class NonFinite(LaunchError):
    """A loss is NaN or infinite."""

    outcome = Outcome.NON_FINITE


class LossSpike(LaunchError):
    """The loss rose far above its recent level."""

    outcome = Outcome.LOSS_SPIKE


class Unsupported(LaunchError):
    """The script does not support the settings of the plan, or does not provide what the launch needs."""

    outcome = Outcome.UNSUPPORTED


class InvalidPlan(LaunchError):
    """The plan contradicts itself or this package."""

    outcome = Outcome.INVALID_PLAN


class CheckpointUnreadable(LaunchError):
    """A checkpoint that must exist is missing or damaged, or is of another job or a later format."""

    outcome = Outcome.CHECKPOINT_UNREADABLE


class StorageFull(LaunchError):
    """The storage of checkpoints has no space or no quota left."""

    outcome = Outcome.STORAGE_FULL


class Superseded(LaunchError):
    """A later gang of the job writes to the checkpoint storage."""

    outcome = Outcome.STOPPED

    def __init__(self, attempt: str, by: str) -> None:
        super().__init__(
            f"this gang of attempt {attempt} was superseded: a later one ({by}) writes to the checkpoint storage; nothing was "
            "written"
        )


class LostPeer(LaunchError):
    """Another rank was lost."""

    outcome = Outcome.LOST_PEER


class LaunchEnd(SystemExit):
    """Ends the process before the end of the script: after a preflight, or on a request to stop."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome.exit_code)
        self.outcome = outcome


_DEVICE_MEMORY = ("CUDA out of memory", "CUDNN_STATUS_ALLOC_FAILED", "CUBLAS_STATUS_ALLOC_FAILED", "HIP out of memory")
_HOST_MEMORY = ("DefaultCPUAllocator: can't allocate memory", "Cannot allocate memory")
_PEER = ("Connection closed by peer", "Connection reset by peer", "NCCL communicator was aborted", "ncclRemoteError")
_COMPILERS = ("torch._dynamo", "torch._inductor", "triton.compiler")


def is_full(error: BaseException) -> bool:
    """Whether the system says that a storage has no space or no quota left."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def classify(error: BaseException) -> Outcome:
    """The outcome that ``error``, or the first known error of its causes, means."""
    if isinstance(error, ImportError):
        # Deterministic: the library that these settings need is not installed. As a cause it often means nothing: libraries
        # try what is installed.
        return Outcome.UNSUPPORTED
    for cause in _chain(error):
        outcome = _classify(cause)
        if outcome is not None:
            return outcome
    return Outcome.FAILED


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        yield cause
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)


def _classify(error: BaseException) -> Outcome | None:
    """The outcome of one error. Those of libraries are recognized by name: no library is imported for it."""
    if isinstance(error, (LaunchError, LaunchEnd)):
        return error.outcome
    if is_full(error):
        return Outcome.STORAGE_FULL
    if isinstance(error, MemoryError):
        return Outcome.HOST_OUT_OF_MEMORY
    if isinstance(error, FloatingPointError):
        return Outcome.NON_FINITE
    text = str(error)
    kind = type(error)
    if kind.__name__ == "OutOfMemoryError" or any(part in text for part in _DEVICE_MEMORY):
        return Outcome.OUT_OF_MEMORY
    if any(part in text for part in _HOST_MEMORY):
        return Outcome.HOST_OUT_OF_MEMORY
    if kind.__name__ == "DistBackendError" or any(part in text for part in _PEER):
        return Outcome.LOST_PEER
    if kind.__module__.startswith(_COMPILERS):
        return Outcome.COMPILE_FAILED
    return None
