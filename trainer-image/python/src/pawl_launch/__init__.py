"""Makes a training script a trainer of Pawl.

>>> import pawl_launch
>>> run = pawl_launch.init(batch_per_gpu=32)
>>> run.by_hand, run.settings.batch_per_gpu
(True, 32)

A script calls :func:`init`, reads its settings from ``run.settings``, iterates over ``run.steps(loader)`` and calls
``run.step()`` after every optimizer step. Outside of Pawl the same script runs as before. :mod:`pawl_launch.pytorch`,
:mod:`pawl_launch.hf`, :mod:`pawl_launch.lightning` and :mod:`pawl_launch.accelerate` apply the settings to these libraries. :mod:`pawl_launch.jobs`
runs jobs and reads their evidence, such as in a notebook.
"""

from .joining import init
from .outcome import (
    CheckpointUnreadable,
    InvalidPlan,
    LaunchEnd,
    LaunchError,
    LossSpike,
    NonFinite,
    Outcome,
    StorageFull,
    Unsupported,
)
from .run import Run
from .settings import Settings

__all__ = [
    "CheckpointUnreadable",
    "InvalidPlan",
    "LaunchEnd",
    "LaunchError",
    "LossSpike",
    "NonFinite",
    "Outcome",
    "Run",
    "Settings",
    "StorageFull",
    "Unsupported",
    "init",
]
