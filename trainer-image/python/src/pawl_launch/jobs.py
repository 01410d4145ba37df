"""Runs jobs on this machine and reads their evidence, such as in a notebook.

>>> from pawl_launch import jobs
>>> job = jobs.run("job.yaml")                              # doctest: +SKIP
>>> job.stage, job.speedup                                  # doctest: +SKIP
('Complete', 4.2)
>>> job.frame()[["name", "state", "speedup", "lower"]]      # doctest: +SKIP

The program ``pawl`` runs the jobs; pandas is needed by :meth:`Job.frame` only.
"""

from __future__ import annotations

import json
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas

__all__ = ["Job", "JobError", "everything", "load", "run"]

# Those of `pawl run`: complete; complete or suspended, and not as asked.
_ENDED = (0, 3)
# A status has decimals as text, so that no digit is lost on its way.
_DECIMAL = re.compile(r"-?\d+(\.\d+)?(e-?\d+)?")
# What may look like one, and is a hash or a name.
_TEXTS = {"inputHash", "name", "placement", "trainer"}


class JobError(Exception):
    """A job that could not be run or read: what ``pawl`` says, or what is wrong with its state."""


@dataclass(frozen=True)
class Job:
    """A job that was run here, as its state directory has it."""

    #: Name of the job.
    name: str
    #: Its state directory.
    directory: Path
    #: The ``spec`` of its manifest.
    spec: dict[str, Any]
    #: Its status, as ``pawl status --output json`` prints it.
    status: dict[str, Any]

    @property
    def stage(self) -> str:
        """Where it is, such as ``Complete``."""
        return str(self.status.get("stage", "Pending"))

    @property
    def speedup(self) -> float | None:
        """How many times as fast as the baseline all accepted phases are; ``None`` before that is known."""
        speedup = self.status.get("speedup")
        return None if speedup is None else float(speedup)

    def phases(self) -> list[dict[str, Any]]:
        """A row for each phase: ``name``, ``state``, ``reason``, ``message``, ``speedup`` with its bounds ``lower`` and
        ``upper``, the number of ``pairs``, and what the candidate's launches measured, such as ``itemsPerSecond`` and
        ``peakMemoryBytes``."""
        rows: list[dict[str, Any]] = []
        for phase in self.status.get("phases", []):
            row = {name: _number(name, value) for name, value in phase.items() if not isinstance(value, (dict, list))}
            speedup = {name: _number(name, value) for name, value in phase.get("speedup", {}).items()}
            rows.append(row | {"speedup": speedup.pop("estimate", None)} | speedup)
        return rows

    def launches(self) -> list[dict[str, Any]]:
        """A row for each recorded launch: its ``phase``, ``kind``, ``arm``, ``pair``, ``seed``, ``outcome``, and what it
        measured. Those of the baseline have the phase ``baseline``, those of all accepted phases together ``all together``."""
        status = self.status
        owners = [("baseline", status.get("baseline") or {}), ("all together", status.get("bundle") or {})]
        owners[1:1] = [(phase["name"], phase) for phase in status.get("phases", [])]
        return [
            {"phase": name} | {key: _number(key, value) for key, value in launch.items() if not isinstance(value, (dict, list))}
            for name, owner in owners
            for launch in owner.get("launches", [])
        ]

    def frame(self) -> pandas.DataFrame:
        """:meth:`phases` as a frame of pandas."""
        import pandas

        return pandas.DataFrame(self.phases())


def _number(name: str, value: Any) -> Any:
    is_decimal = isinstance(value, str) and name not in _TEXTS and _DECIMAL.fullmatch(value)
    return float(value) if is_decimal else value


def run(manifest: str | Path, *, state: str | Path | None = None, program: str = "pawl") -> Job:
    """Runs the job of ``manifest`` until it ends, or continues it, and reads the result. The progress is printed to standard
    error. ``state``: its state directory; by default, ``.pawl`` and its name.

    Raises :class:`JobError` when it fails, or is not run.
    """
    command = [program, "run", str(manifest), "--output", "json"]
    if state is not None:
        command += ["--state", str(state)]
    try:
        ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    except OSError as error:
        raise JobError(f"{program}: {error.strerror}: install pawl, or pass program=") from error
    if ended.returncode not in _ENDED:
        raise JobError(f"{' '.join(command)}: exit code {ended.returncode}: its messages are in standard error")
    return load(json.loads(ended.stdout)["paths"]["state"])


def load(job: str | Path) -> Job:
    """The job of a state directory, of a storage with records (as they were recorded: on a cluster, when the training
    began), or of a name that was run in this directory.

    Raises :class:`JobError` when there is none, or its state is damaged.
    """
    places = (Path(job), Path(job) / ".pawl/_records", Path(".pawl") / job)
    directory = next((place for place in places if (place / "status.json").exists()), places[-1])
    path = directory / "status.json"
    try:
        document = json.loads(path.read_text())
        return Job(document["job"]["metadata"]["name"], directory, document["job"]["spec"], document["status"])
    except FileNotFoundError as error:
        raise JobError(f"{path}: no job was run there") from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise JobError(f"{path}: {error!r}") from error


def everything(directory: str | Path = ".pawl") -> list[Job]:
    """All jobs whose state directories are in ``directory``, by name.

    Raises :class:`JobError` when the state of one is damaged.
    """
    states = sorted(path.parent for path in Path(directory).glob("*/status.json"))
    return sorted((load(state) for state in states), key=lambda job: job.name)
