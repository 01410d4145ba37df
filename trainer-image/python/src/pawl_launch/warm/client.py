"""The process of a launch: asks the warm interpreter of its attempt for a process, and ends as that ended."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from . import channel
from .script import Script

_PER_LAUNCH = ("PAWL_", "MASTER_", "NCCL_", "RANK", "LOCAL_", "WORLD_SIZE", "GROUP_", "NODE_", "TORCHELASTIC_")
_OF_SHELLS = ("PWD", "OLDPWD", "SHLVL", "_")
"""Variables that differ between launches, and are not read while libraries are imported."""


def run(script: Script) -> Script | None:
    """Runs ``script`` in a process of the warm interpreter and ends with its exit code; gives ``script`` back where this process
    must run it itself."""
    plan = os.environ.get("PAWL_PLAN")
    if not plan or not sys.platform.startswith("linux"):
        return script
    try:
        connection = _connect(Path(plan).absolute().parent.parent, script)
    except OSError as error:
        print(f"pawl_launch.warm: {error}: the libraries are imported again", file=sys.stderr)
        return script
    if connection is not None:
        _follow(connection, script)
    return script


def _connect(attempt: Path, script: Script) -> socket.socket | None:
    """A connection to the warm interpreter, which is started where there is none. ``None``: it cannot serve."""
    at = attempt / f"warm-{_key(script)}"
    if at.with_suffix(".unusable").exists():
        return None
    with _locked(at.with_suffix(".lock")):
        connection = _dial(at)
        if connection is not None:
            return connection
        command = [sys.executable, "-m", "pawl_launch.warm", "--serve", str(at), str(_agent()), str(script.path)]
        # No file of this launch stays open in the server: it would look like a process that outlives its launch.
        with at.with_suffix(".log").open("ab") as log:
            # CUDA must not be initialized before a process is forked: PyTorch then asks NVML whether there are GPUs.
            # The agent ends what outlives its launch, unless it says that it serves the attempt.
            environment = os.environ | {"PYTORCH_NVML_BASED_CUDA_CHECK": "1", "PAWL_SERVES_ATTEMPT": "1"}
            server = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, preexec_fn=os.setpgrp
            )
        while server.poll() is None:
            connection = _dial(at)
            if connection is not None:
                return connection
            time.sleep(0.02)
        at.with_suffix(".unusable").touch()
        print(f"pawl_launch.warm: cannot be used, see {at}.log: the libraries are imported again", file=sys.stderr)
        return None


def _key(script: Script) -> str:
    """Launches with equal keys may be forked from one interpreter: libraries read the environment while they are imported."""
    own = {name for name in os.environ if name.startswith(_PER_LAUNCH) or name in _OF_SHELLS}
    environment = {name: value for name, value in os.environ.items() if name not in own}
    identity = json.dumps([sys.executable, str(script.path), environment], sort_keys=True)
    return hashlib.sha256(identity.encode()).hexdigest()[:12]


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Several ranks start at the same time: one of them starts the interpreter."""
    with path.open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _dial(at: Path) -> socket.socket | None:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    directory = os.open(at.parent, os.O_RDONLY)
    try:
        # The path of a socket has at most 107 bytes.
        connection.connect(f"/proc/self/fd/{directory}/{at.name}.socket")
        return connection
    except (FileNotFoundError, ConnectionRefusedError):
        connection.close()
        return None
    finally:
        os.close(directory)


def _agent() -> int:
    """The process that started this rank: the nearest ancestor outside of its process group."""
    own, process = os.getpgrp(), os.getppid()
    while process > 1 and os.getpgid(process) == own:
        with open(f"/proc/{process}/stat", encoding="utf-8") as status:
            process = int(status.read().rsplit(")", 1)[1].split()[1])
    return process


def _follow(connection: socket.socket, script: Script) -> None:
    """Waits for the launch, and ends as it ended. SIGTERM is passed on; SIGKILL to the process group reaches both. Returns if the
    interpreter ended before it started the launch."""
    launched: list[int] = []
    stopped: list[int] = []

    def terminate(number: int, frame: object) -> None:
        stopped.append(number)
        for process in launched:
            # It may have ended just now.
            with suppress(ProcessLookupError):
                os.kill(process, number)

    signal.signal(signal.SIGTERM, terminate)
    inherited = _inherited()
    request = {
        "arguments": script.arguments,
        "environment": dict(os.environ),
        "directory": os.getcwd(),
        "group": os.getpgrp(),
        "standard": [number if number in inherited else None for number in range(3)],
    }
    try:
        channel.send(connection, request, inherited)
        process, _ = channel.receive(connection)
    except (EOFError, ConnectionError):
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        return
    launched.append(process)
    for number in stopped:
        os.kill(process, number)
    try:
        status, _ = channel.receive(connection)
    except (EOFError, ConnectionError):
        print("pawl_launch.warm: the warm interpreter has ended, and the launch with it", file=sys.stderr)
        sys.stderr.flush()
        os._exit(1)
    if os.WIFSIGNALED(status):
        # Of SIGKILL, with which the kernel ends a launch when memory runs out, the action cannot be set.
        if os.WTERMSIG(status) != signal.SIGKILL:
            signal.signal(os.WTERMSIG(status), signal.SIG_DFL)
        os.kill(os.getpid(), os.WTERMSIG(status))
    os._exit(os.waitstatus_to_exitcode(status))


def _inherited() -> list[int]:
    """Standard streams, and open files that a child process inherits: the agent finds the processes of a rank by one of them."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        number = int(name)
        try:
            if number < 3 or os.get_inheritable(number) and not stat.S_ISSOCK(os.fstat(number).st_mode):
                found.append(number)
        except OSError:
            # The directory that was listed.
            continue
    return sorted(found)[: channel.MOST_DESCRIPTORS]
