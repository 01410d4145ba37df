"""A training script that knows nothing of Pawl: arguments, a loop, lines of output, and files in a directory."""

import argparse
import time
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, required=True)
parser.add_argument("--batch-size", type=int, default=1)
parser.add_argument("--seconds", type=float, default=0.06)
parser.add_argument("--compile", action="store_true")
parser.add_argument("--recompute", action="store_true")
parser.add_argument("--rounding", type=float, default=0.0)
parser.add_argument("--fault", default="none")
parser.add_argument("--checkpoints", type=Path, required=True)
parser.add_argument("--resume", type=Path)
arguments = parser.parse_args()

seconds = arguments.seconds / (3 if arguments.compile else 1) * (2 if arguments.recompute else 1)
first = int(arguments.resume.name.removeprefix("step-")) if arguments.resume else 0
print(f"begins after step {first}")
for step in range(first + 1, arguments.steps + 1):
    time.sleep(seconds)
    loss = float("nan") if arguments.fault == "NonFinite" and step == 8 else 0.999**step
    if arguments.fault == "OutOfMemory" and step == 8:
        # As PyTorch raises it: a traceback, then `torch.OutOfMemoryError: ...`.
        error = type("OutOfMemoryError", (RuntimeError,), {"__module__": "torch"})
        raise error("CUDA out of memory. Tried to allocate 2.00 GiB")
    if arguments.compile:
        loss *= 1 + arguments.rounding * min(1.0, step / 10)
    if arguments.fault == "Hang" and step == 8:
        time.sleep(1000)
    # With tabs and a carriage return, as a progress bar does.
    print(f"\rstep {step}/{arguments.steps}\tloss {loss:.6f}", end="\n" if step % 5 == 0 else "")
    if step % 20 == 0:
        (arguments.checkpoints / f"step-{step}").mkdir()
print(f"\nvalidation loss {0.999**arguments.steps:.6f} accuracy 0.5")
