"""A script that computes nothing: its steps take the time, and end as, its settings say. The standard library suffices."""

import os
import signal
import time

import pawl_launch


class Items:
    """A data set of 400 items, in batches."""

    def __init__(self, batch_size: int) -> None:
        self.batch_size = batch_size
        self.dataset = range(400)

    def __iter__(self):  # type: ignore[no-untyped-def]
        return iter([self.batch_size] * (400 // self.batch_size))


run = pawl_launch.init()
seconds = 0.09
if run.settings.one_of("compile", "None", "Graph") == "Graph":
    seconds /= 3
if run.settings.one_of("activation_checkpointing", "None", "Full") == "Full":
    seconds *= 2
seconds /= run.settings.workload.get("factor", 1)
fault = run.settings.workload.get("fault")
resumed = run.get_checkpoint()
weight = float((resumed / "weight").read_text()) if resumed else 1.0

for size in run.steps(Items(run.batch_size), evaluate=lambda: {"loss": weight}):
    time.sleep(seconds)
    weight *= 0.999
    if fault and run.step_count == 4:
        if fault == "OutOfMemory":
            raise type("OutOfMemoryError", (RuntimeError,), {})("CUDA out of memory. Tried to allocate 2.00 GiB")
        if fault == "Hang":
            signal.pause()
    run.step(items=size, loss=float("nan") if fault == "NonFinite" and run.step_count == 4 else weight)
    if run.should_checkpoint:
        with run.checkpoint() as directory:
            (directory / "weight").write_text(str(weight))
    if os.environ.get("SLOW_TRAINING") and run.kind == "Train":
        time.sleep(0.05)
