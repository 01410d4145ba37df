"""The settings of a launch. A setting that the script never reads is an error: it would be measured without effect."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

from .advice import advice
from .contract_settings import DEFAULTS, TYPES
from .outcome import InvalidPlan, Unsupported


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


class Settings:
    """The settings by their names in Python: ``settings.batch_per_gpu`` is ``batchPerGpu`` of the manifest.

    An absent setting has the script's default (see :func:`pawl_launch.init`), or that of the contract. Decimal settings,
    such as ``learning_rate``, are floats.

    >>> settings = Settings({"batchPerGpu": 8, "workload": {"width": 64}}, {"learning_rate": 1e-3})
    >>> settings.batch_per_gpu, settings.learning_rate, settings.compile
    (8, 0.001, 'None')
    >>> settings.unread()
    ['workload.width']
    """

    def __init__(self, given: Mapping[str, Any], defaults: Mapping[str, Any] | None = None) -> None:
        self._given = {name: value for name, value in given.items() if name not in ("nccl", "workload")}
        self._read: set[str] = set()
        self.workload = WorkloadSettings(given.get("workload") or {})
        """The free settings of the workload, ``settings.workload`` of the manifest."""
        self._defaults = dict(DEFAULTS)
        self.add_defaults(defaults or {})

    def add_defaults(self, defaults: Mapping[str, Any]) -> None:
        """Sets the script's own defaults of settings that the plan leaves absent, by their names in Python.

        Raises:
            InvalidPlan: A name is not a setting.
        """
        for name, value in defaults.items():
            if _camel(name) not in DEFAULTS:
                raise InvalidPlan(f"{name}: is not a setting: choose one of {', '.join(DEFAULTS)}")
            self._defaults[_camel(name)] = value

    def __getattr__(self, name: str) -> Any:
        key = _camel(name)
        if name.startswith("_") or key not in DEFAULTS:
            raise AttributeError(f"{name}: is not a setting: choose one of {', '.join(DEFAULTS)}")
        self._read.add(key)
        value = self._given.get(key, self._defaults[key])
        return float(value) if TYPES[key] is float and value is not None else value

    def one_of(self, name: str, *supported: Any) -> Any:
        """The value of a setting, which must be one of those that the script supports.

        Raises:
            Unsupported: It is another one.
        """
        value = getattr(self, name)
        if value not in supported:
            choices = ", ".join(str(choice) for choice in supported)
            raise Unsupported(f"settings.{_camel(name)}: {value} is not supported by this script: choose one of {choices}")
        return value

    def is_given(self, name: str) -> bool:
        """Whether the plan sets the setting. Does not count as reading it."""
        return _camel(name) in self._given

    def unread(self) -> list[str]:
        """The settings of the plan that neither the script has read nor a placeholder of its command has consumed."""
        own = [name for name in self._given if name not in self._read]
        unread = sorted(own) + [f"workload.{name}" for name in self.workload.unread()]
        # Placeholders of the command or the environment in the manifest have passed these on.
        consumed = os.environ.get("PAWL_CONSUMED_SETTINGS", "").split(",")
        return [name for name in unread if name not in consumed]

    def require_read(self) -> None:
        """Fails when the script has not read all settings of the plan.

        Raises:
            Unsupported: It names the settings.
        """
        unread = self.unread()
        if unread:
            fields = ", ".join(f"settings.{name}" for name in unread)
            raise Unsupported(
                f"{fields}: not used by this script, so it would have no effect: {advice().read(unread)}, or remove it from "
                "the manifest"
            )


class WorkloadSettings(Mapping[str, Any]):
    """The free settings of the workload, by the names in the manifest."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        self._given = dict(given)
        self._read: set[str] = set()

    def __getitem__(self, name: str) -> Any:
        self._read.add(name)
        return self._given[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._given)

    def __len__(self) -> int:
        return len(self._given)

    def unread(self) -> list[str]:
        """The settings that the script has not read."""
        return sorted(name for name in self._given if name not in self._read)
