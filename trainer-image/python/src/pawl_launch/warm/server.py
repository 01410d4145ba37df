"""The warm interpreter: imports the libraries of a script, then forks a process for each launch of an attempt."""

from __future__ import annotations

import ctypes
import gc
import os
import random
import selectors
import signal
import socket
import sys
from pathlib import Path
from typing import Any

from . import channel
from .script import Script

_DEATH_SIGNAL = 1
"""``PR_SET_PDEATHSIG`` of prctl(2)."""
_PATIENCE = 30.0
"""Seconds in which a launch must have sent its request."""
_IDLE = 30.0
"""Seconds without a launch after which the attempt is over, or another interpreter serves its launches."""


def arguments(words: list[str]) -> tuple[Path, int, Script]:
    """The arguments of :func:`serve`, from the command line."""
    at, agent, script = words
    return Path(at), int(agent), Script(Path(script), [])


def serve(at: Path, agent: int, script: Script) -> Script | None:
    """Serves the launches of an attempt until there are none for some time, or the process ``agent`` ends. Returns in each forked process, with what it has to run;
    ``None`` in the server, at its end."""
    end = os.pidfd_open(agent)
    # Not the directory of the first launch, nor modules in it.
    os.chdir("/")
    script.enter()
    script.import_libraries()
    if _has_initialized_cuda():
        print("pawl_launch.warm: an import initializes CUDA, which a forked process cannot use", file=sys.stderr)
        sys.exit(1)
    # Collections would copy the memory that the launches share.
    gc.freeze()
    return _Server(at, end, script).serve()


def _has_initialized_cuda() -> bool:
    """Whether this process has opened the device file of CUDA's memory manager."""
    for name in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{name}").startswith("/dev/nvidia-uvm"):
                return True
        except OSError:
            continue
    return False


class _Server:
    def __init__(self, at: Path, end: int, script: Script) -> None:
        self._script = script
        self._end = end
        self._wakeup, notify = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._notify = notify
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.set_wakeup_fd(notify)
        self._launches: dict[int, socket.socket] = {}
        self._selector = selectors.DefaultSelector()
        self._listener = self._listen(at)
        for source in (self._listener, end, self._wakeup):
            self._selector.register(source, selectors.EVENT_READ)

    def _listen(self, at: Path) -> socket.socket:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        directory = os.open(at.parent, os.O_RDONLY)
        # Under another name until it listens.
        early, ready = f"{at.name}.{os.getpid()}", f"{at.name}.socket"
        listener.bind(f"/proc/self/fd/{directory}/{early}")
        listener.listen()
        os.rename(early, ready, src_dir_fd=directory, dst_dir_fd=directory)
        os.close(directory)
        return listener

    def serve(self) -> Script | None:
        while True:
            ready = self._selector.select(timeout=None if self._launches else _IDLE)
            if not ready and not self._launches:
                return None
            for key, _ in ready:
                if key.fileobj == self._end:
                    # Launches end with this process.
                    return None
                if key.fileobj == self._listener:
                    launch = self._accept()
                    if launch is not None:
                        return launch
                elif key.fileobj == self._wakeup:
                    self._reap()
                else:
                    self._kill(key.data)

    def _accept(self) -> Script | None:
        connection, _ = self._listener.accept()
        try:
            connection.settimeout(_PATIENCE)
            request, descriptors = channel.receive(connection)
            connection.settimeout(None)
        except (EOFError, OSError):
            connection.close()
            return None
        sys.stdout.flush()
        sys.stderr.flush()
        process = os.fork()
        if process == 0:
            return self._become(request, descriptors, connection)
        for descriptor in descriptors:
            os.close(descriptor)
        self._launches[process] = connection
        self._selector.register(connection, selectors.EVENT_READ, process)
        try:
            channel.send(connection, process)
        except OSError:
            self._kill(process)
        return None

    def _become(self, request: dict[str, Any], descriptors: list[int], connection: socket.socket) -> Script:
        """Turns a forked process into a launch: all that a new process would have of its own."""
        ctypes.CDLL(None).prctl(_DEATH_SIGNAL, signal.SIGKILL)
        signal.set_wakeup_fd(-1)
        for handled in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(handled, signal.SIG_DFL)
        self._selector.close()
        for other in (self._listener, connection, *self._launches.values()):
            other.close()
        for number in (self._end, self._wakeup, self._notify):
            os.close(number)
        os.setpgid(0, request["group"])
        received = iter(descriptors)
        for number, given in enumerate(request["standard"]):
            if given is not None:
                descriptor = next(received)
                os.dup2(descriptor, number)
                os.close(descriptor)
        for descriptor in received:
            os.set_inheritable(descriptor, True)
        os.environ.clear()
        os.environ.update(request["environment"])
        os.chdir(request["directory"])
        random.seed()
        numpy = sys.modules.get("numpy")
        if numpy is not None:
            numpy.random.seed()
        return Script(self._script.path, request["arguments"])

    def _reap(self) -> None:
        """Reports the launches that have ended."""
        os.read(self._wakeup, 4096)
        for process in list(self._launches):
            ended, status = os.waitpid(process, os.WNOHANG)
            if ended:
                connection = self._launches.pop(process)
                self._forget(connection)
                try:
                    channel.send(connection, status)
                except OSError:
                    # Its client was killed.
                    pass
                connection.close()

    def _kill(self, process: int) -> None:
        """Ends a launch whose client has ended."""
        self._forget(self._launches[process])
        os.kill(process, signal.SIGKILL)

    def _forget(self, connection: socket.socket) -> None:
        if connection in self._selector.get_map():
            self._selector.unregister(connection)
