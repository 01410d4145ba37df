"""The checkpoints of a training: the one to resume from, when the next one is due, and the best one."""

from __future__ import annotations

import logging
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .author import author
from .checkpoints import DAMAGED, Checkpoint, Store
from .decision import Board, Decision
from .gang import Gang
from .outcome import CheckpointUnreadable, InvalidPlan, LaunchError, is_full
from .storages import Storage, open_storage
from .plan import CheckpointPolicy, Plan, Rank
from .probe import full, has_no_space
from .progress import Position, Reporter

# Quarantined checkpoints that progress names.
_REPORTED_QUARANTINED = 8
_log = logging.getLogger("pawl_launch")


class Keeper:
    """The checkpoints of a launch; of other launches than trainings, none are kept."""

    def __init__(self, plan: Plan, rank: Rank, gang: Gang, reporter: Reporter) -> None:
        self._plan = plan
        self._gang = gang
        self._reporter = reporter
        self._position = reporter.position
        self._store: Store | None = None
        self._policy: CheckpointPolicy | None = None
        self._best: tuple[str, float] | None = None
        self._last_write = time.monotonic()
        self._saved_items = 0
        self.resumed: Checkpoint | None = None
        self.weights_only = False
        self._board: Board | None = None
        self._source: Store | None = None
        self._rank = rank
        if plan.kind == "Train" and plan.checkpoint is not None and rank.checkpoints is not None:
            self._policy = plan.checkpoint
            storage = self._open(rank.checkpoints, "train.checkpoint.storage")
            self._board = storage.board(plan) if rank.world_size > 1 else None
            if plan.checkpoint.resume:
                self._reporter.enter("Resuming")
                self._reporter.publish(now=True)
            begin = self._lead if rank.rank == 0 else self._follow
            self._begin(begin(storage, plan.checkpoint, rank), plan.checkpoint)

    def _open(self, storage: str, field_name: str) -> Storage:
        return open_storage(storage, field_name, self._plan, self._rank, self._beat)

    def _beat(self) -> None:
        """Reports that the transfer of a checkpoint advances."""
        self._reporter.heartbeat += 1
        self._reporter.publish()

    def _lead(self, storage: Storage, policy: CheckpointPolicy, rank: Rank) -> tuple[Checkpoint | None, bool]:
        """On rank 0: supersedes all earlier gangs, and finds the checkpoint to resume from. Returns it, and whether it is an own
        one."""
        storage.store().require_own(rank.identity.get("uid"))
        fence = storage.fence(self._plan.attempt)
        fence.supersede()
        self._store = storage.store(fence, author(self._plan, rank))
        found, is_own = self._find(self._store, policy, rank) if policy.resume else (None, True)
        if found is not None and is_own:
            self._store.resume(found)
        if policy.resume:
            self._store.discard_after(policy.resume_not_after_items)
        if self._board is not None:
            name = None if found is None else found.path.name
            epoch = str(fence.epoch)
            self._board.write(Decision(epoch, own=name) if is_own else Decision(epoch, other=name))
        return found, is_own

    def _follow(self, storage: Storage, policy: CheckpointPolicy, rank: Rank) -> tuple[Checkpoint | None, bool]:
        """On the other ranks: the epoch and the checkpoint of rank 0."""
        assert self._board is not None
        decision, epoch = self._board.read()
        self._store = storage.store(storage.fence(self._plan.attempt, epoch), author(self._plan, rank))
        if decision.own is not None:
            return self._store.named(decision.own), True
        if decision.other is not None:
            return self._other_store(rank.resume_from or policy.resume_from or "").named(decision.other), False
        return None, True

    def _find(self, store: Store, policy: CheckpointPolicy, rank: Rank) -> tuple[Checkpoint | None, bool]:
        """The checkpoint to resume from: the newest own one, or that of ``train.resumeFrom``; and whether it is an own one."""
        limit = policy.resume_not_after_items
        found = store.newest(limit)
        damaged = [path.name.removesuffix(DAMAGED) for path in store.damaged() if not store.is_after(path.name, limit)]
        if found is None and not damaged and policy.known is not None and store.is_bad(policy.known, limit):
            _log.warning("nothing that was saved, such as %s, is before the last good position: training begins anew", policy.known)
        elif found is None and (policy.known is not None or damaged):
            only = ", ".join(damaged)
            raise CheckpointUnreadable(
                f"checkpoint {policy.known or only} was written, but {store.name} contains no complete "
                f"checkpoint{f', only damaged ones ({only})' if only else ''}: restore the storage or its mount, then set "
                "spec.suspend to true and back to false"
            )
        if found is None and policy.resume_from is not None:
            return self._other(rank.resume_from or policy.resume_from), False
        return found, True

    def _begin(self, decided: tuple[Checkpoint | None, bool], policy: CheckpointPolicy) -> None:
        """Takes the position of the checkpoint that rank 0 has decided on."""
        found, is_own = decided
        self._reporter.resumed_items = found.items if found is not None and is_own else 0
        if self._store is not None:
            self._reporter.trained = self._store.trained
            self._reporter.quarantined = [path.name for path in self._store.damaged()][-_REPORTED_QUARANTINED:]
        if found is not None and is_own:
            self._reporter.last_checkpoint = found.reference()
            self._reporter.validation = found.state.get("validation")
        elif found is not None:
            # Its best checkpoint is in the storage of the other job.
            found.state.pop("bestCheckpoint", None)
            self.weights_only = policy.weights_only
        self.resumed = found
        if found is None:
            self._reporter.enter("Starting")
        # Otherwise it is Resuming until the first step: the script reads its files, and other nodes may still download them.
        if found is not None and not self.weights_only:
            self._position.become(Position.from_state(found.step, found.items, found.state))
            self._saved_items = found.items
            self._reporter.healthy = (found.step, found.items)

    def probe(self) -> None:
        """For a preflight: proves that the storage of the training can be used.

        Raises:
            CheckpointUnreadable: It cannot.
        """
        if self._plan.checkpoint is not None and self._rank.checkpoints is not None:
            self._open(self._rank.checkpoints, "train.checkpoint.storage").probe()

    def agreed(self) -> None:
        """All ranks have taken a step: they have read what rank 0 decided."""
        if self._board is not None and self._gang.rank == 0:
            self._board.clear()
        self._board = None

    @property
    def keeps(self) -> bool:
        """Whether checkpoints are kept."""
        return self._store is not None

    @property
    def has_unsaved_steps(self) -> bool:
        """Whether checkpoints are kept, and none is at the present position."""
        return self.keeps and self._saved_items != self._position.items

    @property
    def has_new_best(self) -> bool:
        """Whether the last evaluation is the best one, and its checkpoint is not written yet."""
        return self._best is not None

    def is_due(self) -> bool:
        """Whether it is time for the next checkpoint, by the clock of this rank."""
        return self._policy is not None and time.monotonic() - self._last_write >= self._policy.every_seconds

    def compare(self, metrics: Mapping[str, float]) -> None:
        """Notes whether an evaluation is the best one so far."""
        if self._policy is None:
            return
        criterion, known = self._policy.best, self._position.best_checkpoint
        value = metrics.get(criterion.metric)
        if known is not None and known["metric"] != criterion.metric:
            # Of an earlier plan of this job: the values of two metrics cannot be compared.
            known = None
        if value is not None and (known is None or criterion.improves(value, known["value"], 0.0)):
            self._best = (criterion.metric, value)

    @contextmanager
    def write(self, more: Mapping[str, Any]) -> Iterator[Path]:
        """The directory of a new checkpoint, complete after the block, whose manifest has ``more`` in its state. Collective.
        Temporary where none are kept."""
        if self._store is None or self._policy is None:
            with tempfile.TemporaryDirectory() as directory:
                yield Path(directory)
            return
        position = self._position
        partial = self._store.begin(position.items, self._plan.attempt)
        try:
            yield partial
        except Exception as error:
            # A later gang deletes what is unfinished.
            self._store.check()
            self._require_space(partial, error)
            raise
        self._store.gather(partial, self._gang)
        reference = {"name": self._store.name_of(partial), "step": position.step, "items": position.items}
        if self._best is not None:
            position.best_checkpoint = {"checkpoint": reference, "metric": self._best[0], "value": self._best[1]}
        if self._gang.rank == 0:
            state = position.state() | {"validation": self._reporter.validation} | dict(more)
            try:
                self._store.commit(partial, position.step, position.items, state)
            except OSError as error:
                self._require_space(partial, error)
                raise
            best = position.best_checkpoint
            self._store.prune(self._policy, None if best is None else best["checkpoint"]["name"], self._plan.attempt)
        self._gang.barrier()
        self._store.finish(partial)
        if self._source is not None:
            self._source.finish(partial)
        self._reporter.last_checkpoint = reference
        self._saved_items = position.items
        self._best = None
        self._last_write = time.monotonic()

    def discard_after(self, items: int) -> None:
        """Of a training that has diverged after ``items``: deletes what was saved since then. The report of the divergence may be lost,
        and nothing in a checkpoint says that it is damaged. Errors are logged: the next launch deletes it if it is told to."""
        if self._store is None or self._gang.rank != 0:
            return
        try:
            self._store.discard_after(items)
        except (OSError, LaunchError) as error:
            _log.error("what was saved after the last healthy loss, at %s items, is not deleted: %s", items, error)
        last, best = self._reporter.last_checkpoint, self._position.best_checkpoint
        if last is not None and last["items"] > items:
            self._reporter.last_checkpoint = None
        if best is not None and best["checkpoint"]["items"] > items:
            self._position.best_checkpoint = None

    def _require_space(self, partial: Path, error: Exception) -> None:
        """Says why a checkpoint could not be written, if it is for want of space. What is unfinished makes room.

        Raises:
            StorageFull: The storage is full.
        """
        assert self._store is not None
        found = error if isinstance(error, OSError) and is_full(error) else has_no_space(self._store.directory)
        if found is not None:
            shutil.rmtree(partial, ignore_errors=True)
            raise full(self._store.directory, found, self._store.remedy) from error

    def _other_store(self, storage: str) -> Store:
        self._source = self._open(storage, "train.resumeFrom.storage").store()
        return self._source

    def _other(self, storage: str) -> Checkpoint:
        """The newest checkpoint of another job."""
        found = self._other_store(storage).newest()
        if found is None:
            raise InvalidPlan(
                f"train.resumeFrom.storage: {storage} contains no complete checkpoint: use status.training.storage of a job that "
                "has trained"
            )
        return found
