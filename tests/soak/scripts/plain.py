"""A training script that knows nothing of Pawl: it prints steps and losses, saves every few steps, and starts from the file that it is
given. What it trains is a function of the steps alone: a step that is lost or repeated changes the model."""

import argparse
import json
import os
import pathlib
import time

SAVE_EVERY = 10
SECONDS = 0.1

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, required=True)
parser.add_argument("--batch", type=int, required=True)
parser.add_argument("--rate", type=float, required=True)
parser.add_argument("--output", type=pathlib.Path, required=True)
parser.add_argument("--resume", default="")
arguments = parser.parse_args()

step, weight = 0, 1.0
if arguments.resume:
    saved = json.loads(pathlib.Path(arguments.resume).read_text())
    step, weight = saved["step"], saved["weight"]
print(f"batches of {arguments.batch}", flush=True)
arguments.output.mkdir(parents=True, exist_ok=True)

while step < arguments.steps:
    time.sleep(SECONDS)
    step += 1
    # Each step pulls to a place of its own: the sum tells which steps were taken.
    weight += arguments.rate * (1.0 / (1 + step % 7) - weight)
    print(f"step {step}: loss {weight * weight:.9f}", flush=True)
    if step % SAVE_EVERY == 0 or step == arguments.steps:
        path = arguments.output / f"checkpoint-{step}.json"
        part = arguments.output / f".{path.name}.part"
        with part.open("w") as file:
            json.dump({"step": step, "weight": weight}, file)
            file.flush()
            os.fsync(file.fileno())
        part.rename(path)
        for old in sorted(arguments.output.glob("checkpoint-*.json"), key=lambda it: int(it.stem.split("-")[1]))[:-3]:
            old.unlink(missing_ok=True)
print(f"step {step}: validation loss {weight * weight:.9f}", flush=True)
