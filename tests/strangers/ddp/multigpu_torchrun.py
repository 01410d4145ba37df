"""The usual tutorial on data parallel training: two ranks by torchrun, snapshots, no loss printed."""
import argparse
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Trainer:
    def __init__(self, model, data, optimizer, save_every, path):
        self.rank, self.data, self.optimizer = int(os.environ["LOCAL_RANK"]), data, optimizer
        self.save_every, self.path, self.epochs_run = save_every, path, 0
        if os.path.exists(path):
            snapshot = torch.load(path)
            model.load_state_dict(snapshot["MODEL_STATE"])
            self.epochs_run = snapshot["EPOCHS_RUN"]
            print(f"Resuming training from snapshot at Epoch {self.epochs_run}")
        self.model = DDP(model)

    def train(self, epochs):
        for epoch in range(self.epochs_run, epochs):
            print(f"[GPU{self.rank}] Epoch {epoch} | Batchsize: {self.data.batch_size} | Steps: {len(self.data)}", flush=True)
            self.data.sampler.set_epoch(epoch)
            for source, targets in self.data:
                self.optimizer.zero_grad()
                torch.nn.functional.mse_loss(self.model(source), targets).backward()
                self.optimizer.step()
            if self.rank == 0 and epoch % self.save_every == 0:
                torch.save({"MODEL_STATE": self.model.module.state_dict(), "EPOCHS_RUN": epoch}, self.path)
                print(f"Epoch {epoch} | Training snapshot saved at {self.path}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="simple distributed training job")
    parser.add_argument("total_epochs", type=int, help="Total epochs to train the model")
    parser.add_argument("save_every", type=int, help="How often to save a snapshot")
    parser.add_argument("--batch_size", default=32, type=int, help="Input batch size on each device (default: 32)")
    args = parser.parse_args()
    dist.init_process_group(backend="gloo")
    dataset = TensorDataset(torch.rand(2048, 20), torch.rand(2048, 1))
    model = torch.nn.Linear(20, 1)
    loader = DataLoader(dataset, batch_size=args.batch_size, sampler=DistributedSampler(dataset))
    Trainer(model, loader, torch.optim.SGD(model.parameters(), lr=1e-3), args.save_every, "snapshot.pt").train(args.total_epochs)
    dist.destroy_process_group()
