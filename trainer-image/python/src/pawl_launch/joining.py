"""Joins the launch of this process."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .outcome import LaunchEnd, LaunchError
from .plan import Rank, read_plan
from .process import Hooks
from .progress import Position, Reporter
from .run import Run
from .throughput import Throughput

_log = logging.getLogger("pawl_launch")
_run: Run | None = None
_hooks: Hooks | None = None


def init(**defaults: Any) -> Run:
    """Takes part in the launch that the environment describes; outside of Pawl, a run by hand.

    ``defaults`` are the script's own defaults of settings that the manifest leaves absent, by their names in Python, such as
    ``batch_per_gpu=32, learning_rate=1e-3``. A second call returns the same run.

    Raises:
        InvalidPlan: A default is not a setting.
    """
    global _run
    if _run is None:
        _run = _join(defaults)
    else:
        _run.settings.add_defaults(defaults)
    return _run


def handle_signals() -> None:
    """Handles SIGTERM again, after a framework has installed its own handler."""
    if _hooks is not None:
        _hooks.handle_signals()


def _join(defaults: Mapping[str, Any]) -> Run:
    global _hooks
    path = os.environ.get("PAWL_PLAN")
    if not path:
        return Run(None, Rank.from_environment(), defaults)
    reporter: Reporter | None = None
    try:
        rank, plan = Rank.from_environment(), read_plan(Path(path))
        reporter = Reporter(plan, rank, Throughput(0), Position())
        run = Run(plan, rank, defaults)
    except LaunchError as error:
        # The hooks of a run are not installed yet.
        if reporter is not None:
            reporter.report(error.outcome, str(error))
        _log.error("%s", error)
        raise SystemExit(error.outcome.exit_code) from error
    _hooks = Hooks(run.request_stop, run.fail, lambda: _script_ended(run))
    _hooks.install()
    return run


def _script_ended(run: Run) -> int | None:
    """Reports the end of the launch at the end of the script; the exit code if that is not a good one."""
    try:
        run.finish()
    except LaunchEnd as end:
        return end.outcome.exit_code
    except LaunchError as error:
        _log.error("%s", error)
        return run.fail(error)
    run.leave()
    return None
