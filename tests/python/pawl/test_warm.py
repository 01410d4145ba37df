"""A warm interpreter: what is imported once, what each launch has of its own, and that nothing of it remains."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from conftest import PACKAGE, Job, Launch, phases, wait_until

LIBRARY = """
import os, time
time.sleep(1.0)
with open(os.environ["IMPORTS"], "a") as imports:
    print(os.getpid(), file=imports)
"""


@pytest.fixture
def variables(tmp_path: Path) -> dict[str, str]:
    """The environment of scripts that import ``slow_library``: it takes a second, and is recorded in the file ``imports``."""
    packages = tmp_path / "packages"
    packages.mkdir()
    (packages / "slow_library.py").write_text(LIBRARY)
    return {"PYTHONPATH": f"{PACKAGE}:{packages}", "IMPORTS": str(tmp_path / "imports")}


def imports(directory: Path) -> int:
    return len((directory / "imports").read_text().split())


def processes(directory: Path) -> list[str]:
    """The command lines of processes that name ``directory``."""
    found = []
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = process.read_bytes().decode().split("\0")
        except OSError:
            continue
        if any(word.startswith(f"{directory}/") for word in words):
            found.append(" ".join(words))
    return found


def test_libraries_are_imported_once_in_an_attempt(job: Job, variables: dict[str, str]) -> None:
    script = job.directory / "train.py"
    script.write_text("import slow_library\n" + Path(__file__).with_name("trainer.py").read_text())
    phase = {"name": "compile", "minSpeedup": "1.1", "settings": {"compile": "Graph"}}
    # Long steps: on a busy machine a process waits tenths of a second for a processor.
    settings = {"batchPerGpu": 4, "workload": {"factor": 0.3}}
    # A shell adds its working directory to the environment.
    command = f"cd . && exec '{sys.executable}' -m pawl_launch.warm '{script}'"
    job.write(["sh", "-c", command], {"phases": [phase], "settings": settings, "train": {"items": 40}})
    code, status = job.run(**variables)
    assert (code, phases(status)["compile"]) == (0, ("Accepted", "SpeedAboveThreshold"))
    launches = len(status["phases"][0]["launches"])
    assert imports(job.directory) <= status["attempts"] < launches
    wait_until(lambda: not processes(job.directory), seconds=10)


class Attempt:
    """Launches of one script, as an agent starts them."""

    def __init__(self, directory: Path, variables: dict[str, str], script: str) -> None:
        self.directory, self.variables = directory, variables
        self.script = directory / "script.py"
        self.script.write_text("import json, os, random, signal, sys, time, slow_library\n" + script)

    def start(self, name: str, **more: str) -> subprocess.Popen[str]:
        directory = self.directory / name
        directory.mkdir()
        launch = Launch(directory)
        (directory / "plan.json").write_text(json.dumps(launch.plan))
        return subprocess.Popen(
            [sys.executable, "-m", "pawl_launch.warm", str(self.script), name],
            cwd=directory,
            env=launch.environment() | self.variables | more,
            stdout=subprocess.PIPE,
            text=True,
            preexec_fn=os.setpgrp,
        )

    def run(self, name: str, **more: str) -> tuple[int, dict[str, Any]]:
        process = self.start(name, **more)
        out, _ = process.communicate(timeout=60)
        return process.returncode, json.loads(out) if out else {}


def test_a_launch_has_all_that_a_process_has(tmp_path: Path, variables: dict[str, str]) -> None:
    attempt = Attempt(
        tmp_path,
        variables,
        """
json.dump({"arguments": sys.argv, "directory": os.getcwd(), "plan": os.environ["PAWL_PLAN"], "file": __file__,
           "name": __name__, "group": os.getpgrp(), "random": random.random(), "parent": os.getppid(),
           "files": len(os.listdir("/proc/self/fd"))}, sys.stdout)
sys.exit(int(os.environ.get("CODE", 7)))
""",
    )
    found = [attempt.run(f"launch-{index}") for index in range(3)]
    assert [code for code, _ in found] == [7, 7, 7]
    for index, (_, told) in enumerate(found):
        directory = str(tmp_path / f"launch-{index}")
        assert told["arguments"] == [str(attempt.script), f"launch-{index}"]
        assert (told["directory"], told["plan"]) == (directory, directory + "/plan.json")
        assert (told["file"], told["name"]) == (str(attempt.script), "__main__")
        assert told["files"] == found[0][1]["files"], "no file of an earlier launch is open"
    for own in ("group", "random"):
        assert len({told[own] for _, told in found}) == 3, own
    assert len({told["parent"] for _, told in found}) == 1 and imports(tmp_path) == 1
    # A library may have read this while it was imported.
    assert attempt.run("launch-3", CODE="0")[0] == 0
    assert imports(tmp_path) == 2


def test_a_launch_ends_as_its_script_ends(tmp_path: Path, variables: dict[str, str]) -> None:
    attempt = Attempt(
        tmp_path,
        variables,
        """
def stop(number, frame):
    sys.exit(30)
signal.signal(signal.SIGTERM, stop)
if "crash" in sys.argv:
    os.kill(os.getpid(), signal.SIGSEGV)
if "error" in sys.argv:
    raise ValueError("on purpose")
open("running", "w").write(str(os.getpid()))
time.sleep(60)
""",
    )
    assert attempt.run("crash")[0] == -signal.SIGSEGV
    assert attempt.run("error")[0] == 1

    def running(name: str) -> tuple[subprocess.Popen[str], Path]:
        process, file = attempt.start(name), tmp_path / name / "running"
        wait_until(lambda: file.exists() and bool(file.read_text()))
        return process, Path("/proc") / file.read_text()

    process, _ = running("stopped")
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 30
    process, own = running("killed")
    assert own.exists()
    os.killpg(process.pid, signal.SIGKILL)
    assert process.wait(20) == -signal.SIGKILL
    wait_until(lambda: not own.exists(), seconds=10)
    # As the kernel does it when memory runs out: the agent counts that only for a rank that was killed.
    process, own = running("out of memory")
    os.kill(int(own.name), signal.SIGKILL)
    assert process.wait(20) == -signal.SIGKILL
    process, own = running("orphaned")
    process.kill()
    wait_until(lambda: not own.exists(), seconds=10)
    assert imports(tmp_path) == 1


def test_ranks_that_start_together_share_an_interpreter(tmp_path: Path, variables: dict[str, str]) -> None:
    attempt = Attempt(tmp_path, variables, "json.dump(os.getppid(), sys.stdout)")
    ranks = [attempt.start(f"rank-{rank}", RANK=str(rank), LOCAL_RANK=str(rank)) for rank in range(4)]
    assert len({rank.communicate(timeout=60)[0] for rank in ranks}) == 1
    assert imports(tmp_path) == 1


def test_a_script_that_cannot_be_served_runs_by_itself(tmp_path: Path, variables: dict[str, str]) -> None:
    """The library ends the interpreter: as if it had initialized CUDA."""
    attempt = Attempt(tmp_path, variables, "json.dump('ran', sys.stdout)")
    library = tmp_path / "packages/slow_library.py"
    library.write_text("import os, sys\nif '--serve' in sys.argv: os._exit(1)\n")
    began = time.monotonic()
    assert attempt.run("first") == (0, "ran") and attempt.run("second") == (0, "ran")
    assert time.monotonic() - began < 30
    direct = subprocess.run([sys.executable, "-m", "pawl_launch.warm"], env=os.environ | variables, capture_output=True)
    assert direct.returncode == 1 and b"usage:" in direct.stderr


def test_an_interpreter_without_launches_ends(tmp_path: Path, variables: dict[str, str]) -> None:
    """The agent of 'pawl run' outlives its attempts."""
    attempt = Attempt(tmp_path, variables, "json.dump('ran', sys.stdout)")
    assert attempt.run("first") == (0, "ran")
    assert processes(tmp_path)
    wait_until(lambda: not processes(tmp_path), seconds=60)
    assert attempt.run("second") == (0, "ran") and imports(tmp_path) == 2
