"""Runs a script of a framework with a fault in a backward pass, as a GPU would cause it: planted.py SCRIPT FAULT.

Faults are OutOfMemory and Hang, Warm (the first 16 backward passes are slow) and Slower (each is slower than the one before);
`none` only counts the backward passes, and prints their number at the end. With SLOW, each backward pass of a training takes that
many seconds more.
"""

import atexit
import json
import os
import runpy
import signal
import sys
import time
from typing import Any

import torch

script, fault = sys.argv[1:]
with open(os.environ["PAWL_PLAN"]) as plan:
    training = json.load(plan)["kind"] == "Train"
pause = float(os.environ.get("SLOW", 0)) if training else 0.0
real, passes = torch.Tensor.backward, 0


def backward(*arguments: Any, **options: Any) -> Any:
    global passes
    passes += 1
    time.sleep({"Warm": 0.08 if passes <= 16 else 0.02, "Slower": 0.004 * passes}.get(fault, pause))
    if passes == 8 and fault == "OutOfMemory":
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
    while passes == 8 and fault == "Hang":
        signal.pause()
    return real(*arguments, **options)


torch.Tensor.backward = backward  # type: ignore[method-assign]
atexit.register(lambda: print(f"{passes} backward passes"))
sys.argv = [script]
sys.path[0] = os.path.dirname(script)
runpy.run_path(script, run_name="__main__")
