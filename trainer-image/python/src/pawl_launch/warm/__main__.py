"""``python -m pawl_launch.warm train.py ARGUMENTS``."""

from __future__ import annotations

import sys
from pathlib import Path

from . import client, server
from .script import Script

USAGE = "usage: python -m pawl_launch.warm SCRIPT.py [ARGUMENT...]"


def main() -> None:
    """Runs a script, or serves as the warm interpreter of the launches of an attempt."""
    if sys.argv[1:2] == ["--serve"]:
        launch = server.serve(*server.arguments(sys.argv[2:]))
    else:
        if not sys.argv[1:] or not sys.argv[1].endswith(".py"):
            sys.exit(USAGE)
        # Absolute: a launch has a working directory of its own.
        launch = client.run(Script(Path(sys.argv[1]).absolute(), sys.argv[2:]))
    if launch is not None:
        launch.run()


main()
