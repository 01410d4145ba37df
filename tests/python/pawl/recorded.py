"""A training script whose model is a record of what trained it: `(items up to here, learning rate, seed)`, with a check sum."""

import hashlib
import json
import sys
import time
from pathlib import Path

import pawl_launch

run = pawl_launch.init(batch_per_gpu=8, learning_rate=0.1)
rate, size = float(run.settings.learning_rate), run.batch_size


def seal(weights: list[list[float]]) -> str:
    return hashlib.sha256(json.dumps(weights).encode()).hexdigest()


resumed = run.get_checkpoint()
weights: list[list[float]] = []
if resumed is not None:
    try:
        content = json.loads((resumed / "weights.json").read_text())
        weights = content["weights"]
        assert content["seal"] == seal(weights)
    except (ValueError, KeyError, AssertionError):
        (Path(sys.argv[1]) / "damage-was-resumed").touch()
        raise


class Loader:
    """4,096 items, in the same order each time."""

    dataset = range(4096)

    def __iter__(self):
        return iter([self.dataset[i : i + size] for i in range(0, 4096, size)])


for batch in run.steps(Loader(), evaluate=lambda: {"loss": 0.5}):
    time.sleep(0.008)
    run.step(items=len(batch), loss=0.5)
    if weights and weights[-1][1:] == [rate, run.seed]:
        weights[-1][0] = run.items
    else:
        weights.append([run.items, rate, run.seed])
    if run.should_checkpoint:
        with run.checkpoint() as directory:
            (directory / "weights.json").write_text(json.dumps({"weights": weights, "seal": seal(weights)}))
