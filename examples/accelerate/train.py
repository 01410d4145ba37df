"""Trains a small classifier on points that are made on the spot, with Accelerate.

python train.py              by hand
pawl run cpu.yaml            measured by Pawl (SCRIPTS: the directory of this file)
"""

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import pawl_launch
import pawl_launch.accelerate
from pawl_launch import pytorch


def spirals(count: int, seed: int) -> TensorDataset:
    """Points on two spirals; the class is the spiral, but for a tenth of them."""
    generator = torch.Generator().manual_seed(seed)
    label = torch.randint(2, (count,), generator=generator)
    angle = 9 * torch.rand(count, generator=generator).sqrt()
    turn = angle + torch.pi * label
    points = angle[:, None] / 9 * torch.stack([turn.cos(), turn.sin()], dim=1)
    wrong = torch.rand(count, generator=generator) < 0.1
    return TensorDataset(points + 0.01 * torch.randn(points.shape, generator=generator), torch.where(wrong, 1 - label, label))


def main() -> None:
    run = pawl_launch.init(batch_per_gpu=32, learning_rate=3e-3)
    set_seed(run.seed)
    accelerator = Accelerator(**pawl_launch.accelerate.arguments())
    width = run.config.get("width", 64)
    model = nn.Sequential(nn.Linear(2, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 2))
    optimizer = torch.optim.AdamW(model.parameters(), **pytorch.optimizer_arguments(run))
    loader = DataLoader(spirals(8192, seed=1), shuffle=True, **pytorch.loader_arguments(run))
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    pawl_launch.accelerate.resume(accelerator)
    held_out, labels = (tensor.to(accelerator.device) for tensor in spirals(512, seed=2).tensors)

    def evaluate() -> dict[str, float]:
        model.eval()
        with torch.no_grad():
            logits = model(held_out)
        model.train()
        accuracy = (logits.argmax(1) == labels).float().mean().item()
        return {"loss": nn.functional.cross_entropy(logits, labels).item(), "accuracy": accuracy}

    # The mean over the micro-steps of a step.
    total = torch.zeros((), device=accelerator.device)
    for x, y in run.steps(loader, evaluate=evaluate):
        with accelerator.accumulate(model):
            loss = nn.functional.cross_entropy(model(x), y)
            total += loss.detach() / run.accumulation_steps
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            run.step(loss=total)
            total = torch.zeros((), device=accelerator.device)
            pawl_launch.accelerate.save(accelerator)


if __name__ == "__main__":
    main()
