"""A script that logs its losses to MLflow, as it would without Pawl."""

import math
import time

import mlflow
import pawl_launch

run = pawl_launch.init(batch_per_gpu=4)
graph = run.settings.compile == "Graph"


def loss() -> float:
    return 1.0 / math.sqrt(1 + run.items)


mlflow.set_experiment("of-the-script")
with mlflow.start_run(run_name=run.kind):
    run.get_checkpoint()
    for size in run.steps([run.batch_size] * 100, evaluate=lambda: {"loss": loss(), "accuracy": 0.5}, items_per_epoch=400):
        time.sleep(0.01 if graph else 0.02)
        run.step(items=size, loss=loss())
        mlflow.log_metric("loss", loss(), step=run.step_count)
        if run.should_checkpoint:
            with run.checkpoint() as directory:
                (directory / "state").write_text("x")
