"""A LightningModule without layers that FSDP2 cannot shard."""

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import pawl_launch
import pawl_launch.lightning
from pawl_launch import pytorch


def sums(count: int, seed: int) -> TensorDataset:
    """Vectors, and their sums."""
    x = torch.randn(count, 16, generator=torch.Generator().manual_seed(seed))
    return TensorDataset(x, x.sum(dim=1, keepdim=True))


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(16, 16), nn.ReLU()) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = x + block(x)
        return x


class Sum(lightning.LightningModule):
    def __init__(self, optimizer: dict[str, object]) -> None:
        super().__init__()
        self.network = Network()
        self.head = nn.Linear(16, 1)
        self.optimizer = optimizer

    def loss(self, batch: list[torch.Tensor]) -> torch.Tensor:
        x, y = batch
        return nn.functional.mse_loss(self.head(self.network(x)), y)

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        return self.loss(batch)

    def validation_step(self, batch: list[torch.Tensor], index: int) -> None:
        self.log("val_loss", self.loss(batch), sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), **self.optimizer)


run = pawl_launch.init(batch_per_gpu=4, learning_rate=3e-3)
lightning.seed_everything(run.seed, verbose=False)
module = pawl_launch.lightning.prepare(Sum(pytorch.optimizer_arguments(run)))
trainer = lightning.Trainer(**pawl_launch.lightning.arguments())
training = DataLoader(sums(4096, seed=1), shuffle=True, **pytorch.loader_arguments(run))
trainer.fit(module, training, DataLoader(sums(512, seed=2), batch_size=128), ckpt_path=pawl_launch.lightning.checkpoint())
