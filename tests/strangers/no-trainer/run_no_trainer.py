"""Accelerate without a trainer: a progress bar without a loss, perplexity after each epoch."""
import argparse
import math

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, TensorDataset
from tqdm.auto import tqdm


def main():
    parser = argparse.ArgumentParser(description="Train a model without a trainer")
    parser.add_argument("--per_device_train_batch_size", type=int, default=8)
    parser.add_argument("--learning_rate", type=float, default=5e-4)
    parser.add_argument("--num_train_epochs", type=int, default=3)
    parser.add_argument("--max_train_steps", type=int, default=None)
    parser.add_argument("--gradient_accumulation_steps", type=int, default=1)
    parser.add_argument("--seed", type=int, default=None)
    args = parser.parse_args()
    accelerator = Accelerator(gradient_accumulation_steps=args.gradient_accumulation_steps)
    set_seed(args.seed or 0)
    ids = (torch.arange(32) * 3 + torch.randint(97, (2048, 1))) % 97
    loader = DataLoader(TensorDataset(ids), batch_size=args.per_device_train_batch_size, shuffle=True)
    model = torch.nn.Sequential(torch.nn.Embedding(97, 64), torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.Linear(64, 97))
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.learning_rate)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    most = args.max_train_steps or args.num_train_epochs * len(loader)
    bar, done = tqdm(range(most), disable=not accelerator.is_local_main_process), 0
    for epoch in range(args.num_train_epochs):
        for (batch,) in loader:
            with accelerator.accumulate(model):
                loss = torch.nn.functional.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            if accelerator.sync_gradients:
                bar.update(1)
                done += 1
            if done >= most:
                break
        print(f"epoch {epoch}: perplexity: {math.exp(loss.item())}")


if __name__ == "__main__":
    main()
