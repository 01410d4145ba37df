"""Which data a launch reads, as far as a library names them. No library is imported here."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

# Datasets in one another that are looked at, such as a subset of one.
_WRAPPED = 8


def of(loader: Any) -> dict[str, Any] | None:
    """The contract's ``Data`` of a loader, or a dataset, of Hugging Face's ``datasets``, by their fingerprint; ``None`` of
    others."""
    # What is not needed must end no launch.
    with suppress(Exception):
        dataset = getattr(loader, "dataset", loader)
        for _ in range(_WRAPPED):
            fingerprint = getattr(dataset, "_fingerprint", None)
            if isinstance(fingerprint, str) and fingerprint:
                return _named(dataset) | {"hashed": "Fingerprint", "hash": fingerprint}
            dataset = getattr(dataset, "dataset", None)
    return None


def _named(dataset: Any) -> dict[str, Any]:
    info = getattr(dataset, "info", None)
    name = getattr(info, "dataset_name", None) or getattr(info, "builder_name", None)
    return {"from": name} if isinstance(name, str) else {}
