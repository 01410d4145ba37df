"""Trains a small convolutional network on images that are made on the spot.

    python train.py              by hand
    pawl run cpu.yaml            measured by Pawl (SCRIPTS: the directory of this file)
"""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import pawl_launch
from pawl_launch import pytorch

CLASSES = 8
SIZE = 16


def images(count: int, seed: int) -> TensorDataset:
    """Noisy gratings; the class is their direction, but for a tenth of them."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(CLASSES, (count,), generator=generator)
    angles = labels * (torch.pi / CLASSES)
    line = torch.linspace(-1, 1, SIZE)
    x, y = torch.meshgrid(line, line, indexing="xy")
    along = angles.cos()[:, None, None] * x + angles.sin()[:, None, None] * y
    pixels = torch.sin(8 * along + 6 * torch.rand(count, 1, 1, generator=generator))
    noisy = pixels + torch.randn(pixels.shape, generator=generator)
    wrong = torch.rand(count, generator=generator) < 0.1
    return TensorDataset(noisy[:, None], torch.where(wrong, torch.randint(CLASSES, (count,), generator=generator), labels))


class Network(nn.Module):
    """Three blocks of convolutions; ``recompute`` keeps no activations of their inside."""

    def __init__(self, width: int, recompute: bool) -> None:
        super().__init__()
        channels = [1, width, 2 * width, 4 * width]
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Conv2d(a, b, 3, padding=1), nn.ReLU(), nn.Conv2d(b, b, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
            for a, b in zip(channels, channels[1:])
        )
        self.head = nn.Linear(channels[-1], CLASSES)
        self.recompute = recompute

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.recompute and self.training else block(x)
        return self.head(x.mean(dim=(2, 3)))


def main() -> None:
    run = pawl_launch.init(batch_per_gpu=32, learning_rate=1e-3)
    device = pytorch.setup(run)
    recompute = run.settings.one_of("activation_checkpointing", "None", "Full") == "Full"
    network = Network(run.config.get("width", 8), recompute)
    model = pytorch.prepare(run, network, device)
    optimizer = torch.optim.AdamW(network.parameters(), **pytorch.optimizer_arguments(run))
    scaler = pytorch.scaler(run, device)
    accumulation = run.accumulation_steps

    data, held_out = images(4096, seed=1), images(512, seed=2)
    sampler = DistributedSampler(data, run.world_size, run.rank, seed=run.seed) if run.world_size > 1 else None
    loader = DataLoader(data, shuffle=sampler is None, sampler=sampler, **pytorch.loader_arguments(run))
    pytorch.resume(run, network, optimizer)

    def evaluate() -> dict[str, float]:
        network.eval()
        with torch.no_grad():
            logits = torch.cat([network(x.to(device)) for x in held_out.tensors[0].split(128)])
        network.train()
        labels = held_out.tensors[1].to(device)
        return {
            "loss": nn.functional.cross_entropy(logits, labels).item(),
            "accuracy": (logits.argmax(1) == labels).float().mean().item(),
        }

    total = torch.zeros((), device=device)
    for index, (x, y) in enumerate(run.steps(loader, evaluate=evaluate), start=1):
        x, y = pytorch.to_device(run, x, device), pytorch.to_device(run, y, device)
        with pytorch.autocast(run, device):
            loss = nn.functional.cross_entropy(model(x), y) / accumulation
        scaler.scale(loss).backward()
        total += loss.detach()
        if index % accumulation:
            continue
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        run.step(items=len(x) * accumulation, loss=total)
        total = torch.zeros((), device=device)
        pytorch.save(run, network, optimizer)


if __name__ == "__main__":
    main()
