"""The process of a rank: SIGTERM, uncaught exceptions, and an end of the script before the end of its budget."""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType, TracebackType

_IMPORTED = time.monotonic()


def seconds_since_start() -> float:
    """Seconds since the start of this process; since the import of this package where the kernel does not say."""
    try:
        with open("/proc/self/stat", encoding="ascii") as stat:
            started = int(stat.read().rsplit(")", 1)[1].split()[19]) / os.sysconf("SC_CLK_TCK")
        return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - started)
    except (OSError, ValueError, IndexError, AttributeError):
        return time.monotonic() - _IMPORTED


def exit_now(code: int) -> None:
    """Ends the process without the cleanup of the interpreter, which can wait for ranks that are gone."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            pass
    os._exit(code)


class Hooks:
    """Calls of the interpreter and the kernel. Processes forked by the script, such as loader workers, ignore them."""

    def __init__(
        self,
        on_stop: Callable[[], None],
        on_error: Callable[[BaseException], int],
        on_exit: Callable[[], int | None],
    ) -> None:
        self._on_stop = on_stop
        self._on_error = on_error
        self._on_exit = on_exit
        self._process = os.getpid()

    def install(self) -> None:
        """Installs the hooks."""
        previous = sys.excepthook

        def excepthook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
            previous(kind, error, trace)
            if os.getpid() == self._process:
                exit_now(self._on_error(error))

        sys.excepthook = excepthook
        atexit.register(self._exit)
        self.handle_signals()

    def handle_signals(self) -> None:
        """Handles SIGTERM; only the main thread can."""
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self._terminate)

    def _exit(self) -> None:
        if os.getpid() != self._process:
            return
        code = self._on_exit()
        if code is not None:
            exit_now(code)

    def _terminate(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() == self._process:
            self._on_stop()
            return
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)
