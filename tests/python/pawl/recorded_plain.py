"""A training script that knows nothing of Pawl, and whose model is a record of what trained it: `[step up to here, learning rate, seed]`.

A checkpoint is a directory of two files; the second one is written last. If the file `diverge` exists beside the script's record of
damage, the training diverges in the middle, once: a checkpoint of that moment is damaged, and says so.
"""

import argparse
import json
import os
import sys
import time
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, required=True)
parser.add_argument("--batch-size", type=int, required=True)
parser.add_argument("--learning-rate", type=float, required=True)
parser.add_argument("--seed", type=int, required=True)
parser.add_argument("--kind", required=True)
parser.add_argument("--checkpoints", type=Path, required=True)
parser.add_argument("--resume", type=Path)
parser.add_argument("--notes", type=Path, required=True)
arguments = parser.parse_args()

EVERY = 10
weights: list[list[float]] = []
if arguments.resume is not None:
    try:
        content = json.loads((arguments.resume / "weights.json").read_text())
        (arguments.resume / "state.json").read_text()
        weights = content["weights"]
        assert not content["diverged"]
    except (OSError, ValueError, KeyError, AssertionError):
        (arguments.notes / "damage-was-resumed").touch()
        raise


def save(step: int, diverged: bool) -> None:
    directory = arguments.checkpoints / f"step-{step}"
    directory.mkdir(parents=True, exist_ok=True)
    written = arguments.checkpoints / f".step-{step}.partial"
    written.write_text(json.dumps({"weights": weights, "diverged": diverged}))
    os.replace(written, directory / "weights.json")
    written.write_text(json.dumps({"step": step}))
    os.replace(written, directory / "state.json")


of_this = [arguments.learning_rate, arguments.seed]
first = weights[-1][0] if weights else 0
diverges = arguments.kind == "Train" and (arguments.notes / "diverge").exists()
for step in range(int(first) + 1, arguments.steps + 1):
    time.sleep(0.008)
    if weights and weights[-1][1:] == of_this:
        weights[-1][0] = step
    else:
        weights.append([step, *of_this])
    if diverges and step % EVERY == 0 and step >= first + 30:
        (arguments.notes / "diverge").unlink()
        # The line that says so is written after the damage, and the checkpoint is there before anybody has read it.
        sys.stdout.write(f"step {step}/{arguments.steps} loss nan\n")
        sys.stdout.flush()
        save(step, True)
        time.sleep(60)
    if step % EVERY == 0:
        save(step, False)
    # After a checkpoint, it is not known to be good until the next loss.
    if step % 4 == 0 or step == arguments.steps:
        print(f"step {step}/{arguments.steps} loss {0.5 + 0.01 * (step % 3):.4f}", flush=True)
print("validation loss 0.5", flush=True)
