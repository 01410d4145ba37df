"""Fabric around an ordinary loop."""
import argparse

import torch
from lightning.fabric import Fabric
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def run(hparams):
    fabric = Fabric(accelerator="cpu", devices=1, precision=hparams.precision)
    fabric.seed_everything(hparams.seed)
    images = torch.rand(6400, 784)
    dataset = TensorDataset(images, (images[:, :10].argmax(1)))
    loader = fabric.setup_dataloaders(DataLoader(dataset, batch_size=hparams.batch_size, shuffle=True))
    model = nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
    optimizer = torch.optim.Adadelta(model.parameters(), lr=hparams.lr)
    model, optimizer = fabric.setup(model, optimizer)
    for epoch in range(1, hparams.epochs + 1):
        for batch_idx, (data, target) in enumerate(loader):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(data), target)
            fabric.backward(loss)
            optimizer.step()
            if batch_idx == 0 or (batch_idx + 1) % hparams.log_interval == 0:
                print(f"Train Epoch: {epoch} [{batch_idx * len(data)}/{len(dataset)} ({100.0 * batch_idx / len(loader):.0f}%)]\tLoss: {loss.item():.6f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Fabric example")
    parser.add_argument("--batch-size", type=int, default=64, metavar="N")
    parser.add_argument("--epochs", type=int, default=14, metavar="N")
    parser.add_argument("--lr", type=float, default=1.0, metavar="LR")
    parser.add_argument("--precision", type=str, default="32-true", choices=["32-true", "bf16-mixed", "64-true"])
    parser.add_argument("--seed", type=int, default=1, metavar="S")
    parser.add_argument("--log-interval", type=int, default=10, metavar="N")
    run(parser.parse_args())
