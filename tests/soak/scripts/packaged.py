"""A training script with the package. What it trains is a function of the batches alone: one that is lost or repeated changes the
model."""

import json
import time

import pawl_launch

SECONDS = 0.1
BATCHES = 100

run = pawl_launch.init(batch_per_gpu=8, learning_rate=0.05)
rate = run.settings.learning_rate
weight = 1.0
saved = run.get_checkpoint()
if saved is not None:
    weight = json.loads((saved / "weight.json").read_text())


def evaluate() -> dict[str, float]:
    return {"loss": weight * weight}


for batch in run.steps(range(BATCHES), evaluate=evaluate, items_per_epoch=BATCHES * run.batch_size):
    time.sleep(SECONDS)
    weight += rate * (1.0 / (1 + batch % 7) - weight)
    run.step(loss=weight * weight)
    if run.should_checkpoint:
        with run.checkpoint() as directory:
            if run.rank == 0:
                (directory / "weight.json").write_text(json.dumps(weight))
run.finish()
