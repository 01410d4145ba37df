"""The place of a launch in its training data: which batches of which epoch it has seen. Part of a checkpoint."""

from __future__ import annotations

import itertools
import json
import logging
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from .checkpoints import Checkpoint
from .encoding import decode, encode
from .fingerprint import fingerprint
from .generators import restore, states
from .plan import Rank

_log = logging.getLogger("pawl_launch")
_STATE = "data"


class DataPlace:
    """Where the rank is in its training data, for any iterable.

    A resumed rank begins its epoch with the generators as they were then, and passes over the batches that it has seen: any loader
    whose order follows from the seed or from these generators continues where it was. A loader with ``state_dict`` and
    ``load_state_dict``, such as torchdata's ``StatefulDataLoader``, is restored by them instead, without reading those batches.
    """

    def __init__(self, rank: Rank, resumed: Checkpoint | None, records: bool) -> None:
        self.epoch = 0
        """Whole passes over the data before this one."""
        self.batches = 0
        """Batches of this pass that were seen."""
        self._rank = rank
        self._records = records
        self._loader: Any = None
        self._batch_items = 0
        self._begun: dict[str, Any] = {}
        self._first: str | None = None
        self._resumed: dict[str, Any] | None = None
        self.is_known = False
        """Whether the checkpoint says where the launch is in its data: those of earlier versions of this package don't."""
        if resumed is not None and isinstance(resumed.state.get(_STATE), dict):
            self._read(resumed.path, resumed.state[_STATE])

    def _read(self, path: Path, found: dict[str, Any]) -> None:
        self.is_known = True
        self.epoch, self.batches = int(found["epoch"]), int(found["batches"])
        self._resumed, self._batch_items = {}, int(found["batchItems"])
        file = path / _file(self._rank)
        if found["ranks"] == self._rank.world_size and file.is_file():
            self._resumed = json.loads(file.read_text(encoding="utf-8"))

    def state(self) -> dict[str, Any]:
        """What the manifest of a checkpoint says, equal on all ranks; empty before the first batch."""
        if self._loader is None:
            return {}
        place = {"epoch": self.epoch, "batches": self.batches, "batchItems": self._batch_items}
        return {_STATE: place | {"ranks": self._rank.world_size}}

    def save(self, directory: Path) -> None:
        """Writes what is of this rank alone into a checkpoint: the states of its generators and of its loader."""
        found = {"generators": encode(states()), "begun": self._begun, "first": self._first}
        if self._loader is not None:
            # Such methods may exist without doing anything, and a state may have no form in JSON: batches are counted then.
            with suppress(AttributeError, NotImplementedError, TypeError):
                found["loader"] = encode(self._loader.state_dict())
        (directory / _file(self._rank)).write_text(json.dumps(found), encoding="utf-8")

    def restore_generators(self) -> None:
        """Gives the generators the states that they had when the checkpoint was written."""
        if self._resumed and "generators" in self._resumed:
            restore(decode(self._resumed["generators"]))

    def of(self, loader: Iterable[Any], batch_items: int) -> DataPlace:
        """This place, in the batches of ``loader``, of ``batch_items`` items of all ranks each."""
        self._loader = loader
        if self._batch_items and batch_items and self._batch_items != batch_items:
            # As after a phase that was reverted. A part of a batch is seen again.
            self.batches = self.batches * self._batch_items // batch_items
            if self._resumed is not None:
                self._resumed.pop("loader", None)
                self._resumed.pop("first", None)
        self._batch_items = batch_items
        return self

    def begin(self, seed: int) -> Iterator[Any]:
        """The batches of the epoch that were not seen yet."""
        resumed, self._resumed = self._resumed, None
        begun = (resumed or {}).get("begun")
        if begun:
            restore(decode(begun))
        self.renew(seed)
        batches = self._loaded(resumed) if resumed and "loader" in resumed else None
        if batches is None:
            batches = iter(self._loader)
            self._pass_over(batches, (resumed or {}).get("first"))
        else:
            self._first = (resumed or {}).get("first")
        if resumed and "generators" in resumed:
            restore(decode(resumed["generators"]))
        return batches

    def renew(self, seed: int) -> None:
        """Prepares the loader for the epoch, just before it is iterated."""
        set_epoch(self._loader, self.epoch, seed)
        if self._records:
            self._begun = encode(states())

    def _loaded(self, resumed: dict[str, Any]) -> Iterator[Any] | None:
        """The batches of a loader that was restored by its own state; ``None``: it has no such methods."""
        try:
            self._loader.load_state_dict(decode(resumed["loader"]))
        except (AttributeError, NotImplementedError):
            return None
        batches: Iterator[Any] = iter(self._loader)
        return batches

    def _pass_over(self, batches: Iterator[Any], first: str | None) -> None:
        """Passes over the batches that were seen. ``first``: the fingerprint of the first of them at that time."""
        if not self.batches:
            return
        _log.info("passing over %d batches of epoch %d, which were seen before", self.batches, self.epoch)
        passed = 0
        for batch in itertools.islice(batches, self.batches):
            if not passed:
                self._first = fingerprint(batch)
                if first is not None and self._first != first:
                    _log.warning(
                        "run.steps: this loader's order is not reproducible: epoch %d begins with another batch than before the "
                        "interruption, so that some data are seen twice in it and others not at all: shuffle by a seed, such as "
                        "DataLoader(generator=torch.Generator()) of pytorch.loader_arguments(run) or random.Random(run.seed), or "
                        "give run.steps a StatefulDataLoader of torchdata",
                        self.epoch,
                    )
            passed += 1
        if passed < self.batches:
            _log.warning("run.steps: epoch %d had %d batches, and has only %d now", self.epoch, self.batches, passed)

    def see(self, batch: Any) -> None:
        """Notes that the next batch is given to the script."""
        if self._records and not self.batches:
            self._first = fingerprint(batch)
        self.batches += 1

    def end_epoch(self) -> None:
        """Goes on to the next pass over the data."""
        self.epoch, self.batches, self._first = self.epoch + 1, 0, None


class Loaders:
    """Several loaders that a framework iterates as one."""

    def __init__(self, loaders: list[Any]) -> None:
        self.loaders = loaders


def _file(rank: Rank) -> str:
    return f"pawl-rank-{rank.rank}.json"


def set_epoch(loader: Any, epoch: int, seed: int) -> None:
    """Makes the order of an epoch a function of seed and epoch, where the loader has the means for it."""
    if isinstance(loader, Loaders):
        for each in loader.loaders:
            set_epoch(each, epoch, seed)
        return
    batch_sampler = getattr(loader, "batch_sampler", None)
    parts = [loader, getattr(loader, "sampler", None), batch_sampler, getattr(batch_sampler, "sampler", None)]
    parts.append(getattr(loader, "dataset", None))
    seen: list[Any] = []
    for part in parts:
        method = getattr(part, "set_epoch", None)
        if callable(method) and not any(part is other for other in seen):
            seen.append(part)
            method(epoch)
    manual_seed = getattr(getattr(loader, "generator", None), "manual_seed", None)
    if manual_seed is not None:
        manual_seed(seed + epoch)
