"""Fixtures of all Python tests, and their last line: 'N passed, N failed'."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "trainer-image/python/src"
sys.path.insert(0, str(PACKAGE))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    passed = len(terminalreporter.stats.get("passed", []))
    failed = len(terminalreporter.stats.get("failed", [])) + len(terminalreporter.stats.get("error", []))
    terminalreporter.write_line(f"{passed} passed, {failed} failed")


def environment(**more: str) -> dict[str, str]:
    """The environment of scripts: the package, and this interpreter as ``python``."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    # One thread: with several, a busy machine makes a small step arbitrarily long.
    return {**os.environ, "PYTHONPATH": str(PACKAGE), "PATH": path, "OMP_NUM_THREADS": "1", **more}


class Launch:
    """A launch of a script without an agent: a directory with a plan, and what a rank leaves there."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.plan: dict[str, Any] = {
            "contract": 1,
            "job": "job",
            "attempt": "job-1",
            "launch": "launch",
            "kind": "Measure",
            "workload": {},
            "settings": {"batchPerGpu": 4},
            "seed": 7,
            "budget": {"warmupSteps": 2, "windowSteps": 5},
            "hangTimeoutSeconds": 60.0,
        }

    def train(self, items: int, **policy: Any) -> Launch:
        """Makes it a training of so many items, with checkpoints."""
        self.plan |= {
            "kind": "Train",
            "budget": {"items": items},
            "checkpoint": {"everySeconds": 3600.0, "keep": 2, "resume": True, **policy},
        }
        return self

    def environment(self, rank: int = 0, world_size: int = 1) -> dict[str, str]:
        at = str(self.directory) + "/"
        return environment(
            PAWL_PLAN=at + "plan.json",
            PAWL_RANK=str(rank),
            PAWL_LOCAL_RANK=str(rank),
            PAWL_WORLD_SIZE=str(world_size),
            PAWL_REPORT=f"{at}rank-{rank}.report.json",
            PAWL_PROGRESS=at + "progress.json",
            PAWL_CHECKPOINTS=at + "checkpoints",
            PAWL_DATA=at + "data",
        )

    def start(
        self, script: str | Path, rank: int = 0, world_size: int = 1, arguments: Sequence[str] = (), **more: str
    ) -> subprocess.Popen[str]:
        """Starts a rank that runs ``script``, a path or a text."""
        (self.directory / "plan.json").write_text(json.dumps(self.plan))
        if isinstance(script, str):
            path = self.directory / "script.py"
            path.write_text(textwrap.dedent(script))
            script = path
        pipe = subprocess.PIPE
        environment = self.environment(rank, world_size) | more
        command, directory = [sys.executable, str(script), *arguments], self.directory
        return subprocess.Popen(command, cwd=directory, env=environment, stdout=pipe, stderr=pipe, text=True)

    def run(self, script: str | Path) -> tuple[int, dict[str, Any]]:
        """Runs one rank to its end; returns its exit code and report."""
        process = self.start(script)
        out, err = process.communicate(timeout=300)
        sys.stdout.write(out + err)
        return process.returncode, self.report()

    def report(self, rank: int = 0) -> dict[str, Any]:
        path = self.directory / f"rank-{rank}.report.json"
        return json.loads(path.read_text()) if path.exists() else {}

    def progress(self) -> dict[str, Any]:
        path = self.directory / "progress.json"
        return json.loads(path.read_text()) if path.exists() else {}


@pytest.fixture
def launch(tmp_path: Path) -> Launch:
    return Launch(tmp_path)


def wait_until(holds: Callable[[], bool], seconds: float = 120.0) -> None:
    """Waits until ``holds``; fails after ``seconds``."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "timed out"
        time.sleep(0.02)


class Job:
    """A manifest, and ``pawl run`` in a directory of its own."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def write(self, command: list[str], spec: dict[str, Any]) -> None:
        """Writes the manifest of the job ``toy``."""
        base = {
            "workload": {"command": command},
            "trainer": {"gpusPerReplica": 0},
            "settings": {"batchPerGpu": 4},
            "seeds": [42],
            "phases": [],
            "analysis": {"warmupSteps": 5, "windowSteps": 8},
            "train": {"items": 400, "checkpoint": {"every": "1h", "keep": 2}},
            "lifecycle": {"hangTimeout": "60s"},
        }
        whole = base | spec
        # The whole ladder is judged, though it takes longer than a tenth of the training.
        whole["analysis"] = {"budgetPercent": "Unlimited"} | whole["analysis"]
        job = {"apiVersion": "pawl.dev/v1alpha1", "kind": "TrainingJob", "metadata": {"name": "toy"}, "spec": whole}
        # JSON is YAML.
        (self.directory / "job.yaml").write_text(json.dumps(job))

    def start(self, manifest: str | Path = "job.yaml", **more: str) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        command = [os.environ["PAWL"], "run", str(manifest), "--output", "json"]
        return subprocess.Popen(command, cwd=self.directory, env=environment(**more), stdout=pipe, stderr=pipe, text=True)

    def run(self, manifest: str | Path = "job.yaml", **more: str) -> tuple[int, dict[str, Any]]:
        """Runs the job to its end; returns the exit code of pawl and the status."""
        process = self.start(manifest, **more)
        out, err = process.communicate(timeout=1500)
        sys.stdout.write(out + err)
        return process.returncode, json.loads(out)["status"] if out.strip() else {}

    def status(self) -> dict[str, Any]:
        found = list(self.directory.glob(".pawl/*/status.json"))
        return json.loads(found[0].read_text())["status"] if found else {}

    def interrupt(self, process: subprocess.Popen[str]) -> int:
        """SIGTERM; returns the exit code."""
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=120)
        sys.stdout.write(out + err)
        return process.returncode


def phases(status: dict[str, Any]) -> dict[str, tuple[str, str]]:
    """State and reason of each phase."""
    return {phase["name"]: (phase["state"], phase.get("reason", "")) for phase in status["phases"]}


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)
