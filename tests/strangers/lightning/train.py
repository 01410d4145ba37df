"""A LightningModule with the Trainer's progress bar."""
import argparse

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Autoencoder(L.LightningModule):
    def __init__(self, lr):
        super().__init__()
        self.lr = lr
        self.layers = nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 16), nn.Linear(16, 256), nn.ReLU(), nn.Linear(256, 784))

    def training_step(self, batch, _):
        loss = nn.functional.mse_loss(self.layers(batch[0]), batch[0])
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch, _):
        self.log("val_loss", nn.functional.mse_loss(self.layers(batch[0]), batch[0]), prog_bar=True)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.lr)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch_size", type=int, default=32)
    parser.add_argument("--max_epochs", type=int, default=5)
    parser.add_argument("--num_workers", type=int, default=0)
    parser.add_argument("--precision", type=str, default="32-true")
    parser.add_argument("--lr", type=float, default=1e-3)
    args = parser.parse_args()
    L.seed_everything(0)
    data = TensorDataset(torch.rand(9600, 784))
    train = DataLoader(data, batch_size=args.batch_size, shuffle=True, num_workers=args.num_workers)
    val = DataLoader(TensorDataset(torch.rand(320, 784)), batch_size=args.batch_size)
    trainer = L.Trainer(max_epochs=args.max_epochs, accelerator="cpu", precision=args.precision, logger=False, enable_checkpointing=False)
    trainer.fit(Autoencoder(args.lr), train, val)


if __name__ == "__main__":
    main()
