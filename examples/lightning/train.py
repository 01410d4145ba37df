"""Trains a small recurrent network on sine waves that are made on the spot, with the Trainer of Lightning.

python train.py              by hand
pawl run cpu.yaml            measured by Pawl (SCRIPTS: the directory of this file)
"""

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import pawl_launch
import pawl_launch.lightning
from pawl_launch import pytorch

LENGTH = 24


def waves(count: int, seed: int) -> TensorDataset:
    """Noisy sine waves of random frequency and phase; the target is their next value."""
    generator = torch.Generator().manual_seed(seed)
    frequency, phase = torch.rand(2, count, 1, generator=generator)
    time = torch.arange(LENGTH + 1)
    wave = torch.sin((0.2 + frequency) * time + 6.3 * phase)
    noisy = wave + 0.05 * torch.randn(wave.shape, generator=generator)
    return TensorDataset(noisy[:, :-1, None], wave[:, -1:])


class Forecast(lightning.LightningModule):
    """Predicts the next value of a wave."""

    def __init__(self, hidden: int, optimizer: dict[str, object]) -> None:
        super().__init__()
        self.recurrent = nn.GRU(1, hidden, batch_first=True)
        self.head = nn.Linear(hidden, 1)
        self.optimizer = optimizer

    def loss(self, batch: list[torch.Tensor]) -> torch.Tensor:
        x, y = batch
        states, _ = self.recurrent(x)
        return nn.functional.mse_loss(self.head(states[:, -1]), y)

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        return self.loss(batch)

    def validation_step(self, batch: list[torch.Tensor], index: int) -> None:
        self.log("val_loss", self.loss(batch), sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), **self.optimizer)


def main() -> None:
    run = pawl_launch.init(batch_per_gpu=32, learning_rate=3e-3)
    lightning.seed_everything(run.seed, verbose=False)
    module = pawl_launch.lightning.prepare(Forecast(run.config.get("hidden", 32), pytorch.optimizer_arguments(run)))
    trainer = lightning.Trainer(**pawl_launch.lightning.arguments(max_epochs=3))
    trainer.fit(
        module,
        DataLoader(waves(4096, seed=1), shuffle=True, **pytorch.loader_arguments(run)),
        DataLoader(waves(512, seed=2), batch_size=128),
        ckpt_path=pawl_launch.lightning.checkpoint(),
    )


if __name__ == "__main__":
    main()
