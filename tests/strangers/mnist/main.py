"""Digits (generated): a small convolutional network."""
import argparse

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


def digits(count, seed):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(10, (count,), generator=generator)
    images = torch.rand(count, 1, 28, 28, generator=generator)
    images[torch.arange(count), 0, labels * 2, :] += 1.0
    return TensorDataset(images, labels)


def train(args, model, loader, optimizer, epoch):
    model.train()
    for batch_idx, (data, target) in enumerate(loader):
        optimizer.zero_grad()
        loss = F.nll_loss(model(data), target)
        loss.backward()
        optimizer.step()
        if batch_idx % args.log_interval == 0:
            print(f"Train Epoch: {epoch} [{batch_idx * len(data)}/{len(loader.dataset)} ({100.0 * batch_idx / len(loader):.0f}%)]\tLoss: {loss.item():.6f}")
            if args.dry_run:
                break


def test(model, loader):
    model.eval()
    loss, correct = 0.0, 0
    with torch.no_grad():
        for data, target in loader:
            output = model(data)
            loss += F.nll_loss(output, target, reduction="sum").item()
            correct += (output.argmax(1) == target).sum().item()
    count = len(loader.dataset)
    print(f"\nTest set: Average loss: {loss / count:.4f}, Accuracy: {correct}/{count} ({100.0 * correct / count:.0f}%)\n")


def main():
    parser = argparse.ArgumentParser(description="Digits")
    parser.add_argument("--batch-size", type=int, default=32, metavar="N", help="input batch size for training")
    parser.add_argument("--test-batch-size", type=int, default=500, metavar="N", help="input batch size for testing")
    parser.add_argument("--epochs", type=int, default=14, metavar="N", help="number of epochs to train")
    parser.add_argument("--lr", type=float, default=0.05, metavar="LR", help="learning rate")
    parser.add_argument("--dry-run", action="store_true", help="quickly check a single pass")
    parser.add_argument("--seed", type=int, default=1, metavar="S", help="random seed")
    parser.add_argument("--log-interval", type=int, default=10, metavar="N", help="batches between lines")
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(1352, 10), nn.LogSoftmax(1))
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
    loader = DataLoader(digits(9600, 0), batch_size=args.batch_size, shuffle=True)
    test_loader = DataLoader(digits(1000, 1), batch_size=args.test_batch_size)
    for epoch in range(1, args.epochs + 1):
        train(args, model, loader, optimizer, epoch)
        test(model, test_loader)


if __name__ == "__main__":
    main()
