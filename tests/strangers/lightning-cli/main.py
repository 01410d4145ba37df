"""LightningCLI: the options are the trainer's and those of the classes."""
import lightning as L
import torch
from lightning.pytorch.cli import LightningCLI
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Regressor(L.LightningModule):
    def __init__(self, hidden: int = 128, learning_rate: float = 1e-3):
        super().__init__()
        self.save_hyperparameters()
        self.layers = nn.Sequential(nn.Linear(64, hidden), nn.GELU(), nn.Linear(hidden, hidden), nn.GELU(), nn.Linear(hidden, 1))

    def training_step(self, batch, _):
        loss = nn.functional.mse_loss(self.layers(batch[0]), batch[1])
        self.log("loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch, _):
        self.log("val_loss", nn.functional.mse_loss(self.layers(batch[0]), batch[1]), prog_bar=True)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.hparams.learning_rate)


class Data(L.LightningDataModule):
    def __init__(self, batch_size: int = 16, num_workers: int = 0):
        super().__init__()
        self.batch_size, self.num_workers = batch_size, num_workers
        x = torch.rand(6400, 64)
        self.data = TensorDataset(x, x.sum(1, keepdim=True).sin())

    def train_dataloader(self):
        return DataLoader(self.data, batch_size=self.batch_size, shuffle=True, num_workers=self.num_workers)

    def val_dataloader(self):
        return DataLoader(TensorDataset(*self.data[:320]), batch_size=self.batch_size)


if __name__ == "__main__":
    LightningCLI(Regressor, Data, seed_everything_default=1, save_config_callback=None)
