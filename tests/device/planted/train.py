"""A regression in PyTorch into which faults are planted: see tests/device/guard.

The setting `workload.fault` says what the script does once the file `$PLANT/now` exists. Phases without it never look at the file.
"""

import os
import pathlib
import time

import torch
from torch import nn

import pawl_launch
from pawl_launch import pytorch

BATCHES = 100_000

run = pawl_launch.init(batch_per_gpu=64, learning_rate=1e-3)
device = pytorch.setup(run)
fault = run.settings.workload.get("fault", "")
plant = pathlib.Path(os.environ["PLANT"])
width = int(run.config["width"])
with device:
    inner = [layer for _ in range(6) for layer in (nn.Linear(width, width), nn.GELU())]
    network = nn.Sequential(nn.Linear(64, width), nn.GELU(), *inner, nn.Linear(width, 1))
model = pytorch.prepare(run, network, device)
optimizer = torch.optim.AdamW(network.parameters(), **pytorch.optimizer_arguments(run))
pytorch.resume(run, network, optimizer)
generator = torch.Generator(device=device)
leaked = []
# A launch may run in a process of an interpreter that is kept warm.
(plant / f"rank-{run.rank}").write_text(str(os.getpid()))


def batch(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator.manual_seed(seed)
    x = torch.randn(run.batch_size, 64, generator=generator, device=device)
    return x, x[:, :8].sum(1, keepdim=True).sin()


def evaluate() -> dict[str, float]:
    with torch.no_grad():
        x, y = batch(1)
        return {"loss": nn.functional.mse_loss(network(x), y).item()}


def batches():
    for index in range(BATCHES):
        if fault == "loader" and (plant / "now").exists():
            time.sleep(0.05)
        yield index


for index in run.steps(batches(), evaluate=evaluate, items_per_epoch=BATCHES * run.batch_size * run.world_size):
    x, y = batch(2 + index * run.world_size + run.rank)
    is_now = fault and (plant / "now").exists()
    loss = nn.functional.mse_loss(model(x), y)
    if is_now and fault == "nan":
        loss = loss * float("nan")
    if is_now and fault == "spike":
        loss = loss + 100
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if is_now and fault == "kernel":
        with torch.no_grad():
            for _ in range(2):
                network(x.repeat(2, 1))
                network(x.repeat(2, 1))
    if is_now and fault == "leak":
        leaked.append(torch.ones(int(run.config["leak"]), device=device))
    run.step(loss=loss.detach())
    pytorch.save(run, network, optimizer)
