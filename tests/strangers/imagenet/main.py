"""Image classification with random images: meters, epochs, an evaluation after each."""
import argparse
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

parser = argparse.ArgumentParser(description="Image training")
parser.add_argument("data", metavar="DIR", nargs="?", default="imagenet")
parser.add_argument("-a", "--arch", metavar="ARCH", default="small")
parser.add_argument("-j", "--workers", default=0, type=int, metavar="N", help="number of data loading workers")
parser.add_argument("--epochs", default=90, type=int, metavar="N", help="number of total epochs to run")
parser.add_argument("-b", "--batch-size", default=16, type=int, metavar="N", help="mini-batch size")
parser.add_argument("--lr", "--learning-rate", default=0.1, type=float, metavar="LR", dest="lr")
parser.add_argument("--momentum", default=0.9, type=float)
parser.add_argument("--wd", "--weight-decay", default=1e-4, type=float, dest="weight_decay")
parser.add_argument("-p", "--print-freq", default=10, type=int, metavar="N", help="print frequency (default: 10)")
parser.add_argument("--seed", default=None, type=int)
parser.add_argument("--dummy", action="store_true", help="use fake data to benchmark")


class Images(Dataset):
    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        label = index % 10
        image = torch.rand(3, 48, 48, generator=generator) + label / 10
        for _ in range(12):  # augmentation
            image = torch.nn.functional.interpolate(image[None], size=(56, 56), mode="bilinear")[0, :, 4:52, 4:52]
        return image, label


class AverageMeter:
    def __init__(self, name, fmt):
        self.name, self.fmt, self.sum, self.count, self.val = name, fmt, 0.0, 0, 0.0

    def update(self, value, n=1):
        self.val, self.sum, self.count = value, self.sum + value * n, self.count + n

    def __str__(self):
        return f"{self.name} {self.val:{self.fmt}} ({self.sum / max(1, self.count):{self.fmt}})"


def run(loader, model, criterion, prefix, args, optimizer=None):
    meters = [AverageMeter("Time", "6.3f"), AverageMeter("Data", "6.3f"), AverageMeter("Loss", ".4e"), AverageMeter("Acc@1", "6.2f")]
    end = time.time()
    for i, (images, target) in enumerate(loader):
        meters[1].update(time.time() - end)
        output = model(images)
        loss = criterion(output, target)
        meters[2].update(loss.item(), images.size(0))
        meters[3].update((output.argmax(1) == target).float().mean().item() * 100, images.size(0))
        if optimizer:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        meters[0].update(time.time() - end)
        end = time.time()
        if i % args.print_freq == 0:
            print(f"{prefix}[{i + 1:3d}/{len(loader)}]\t" + "\t".join(map(str, meters)), flush=True)
    return meters


def main():
    args = parser.parse_args()
    torch.manual_seed(args.seed or 0)
    model = nn.Sequential(nn.Conv2d(3, 16, 3, 2), nn.ReLU(), nn.Conv2d(16, 32, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(4),
                          nn.Flatten(), nn.Linear(512, 10))
    print(f"=> creating model '{args.arch}'")
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), args.lr, momentum=args.momentum, weight_decay=args.weight_decay)
    loader = DataLoader(Images(1600), batch_size=args.batch_size, shuffle=True, num_workers=args.workers)
    val_loader = DataLoader(Images(160), batch_size=args.batch_size, num_workers=args.workers)
    for epoch in range(args.epochs):
        model.train()
        run(loader, model, criterion, f"Epoch: [{epoch}]", args, optimizer)
        model.eval()
        with torch.no_grad():
            meters = run(val_loader, model, criterion, "Test: ", args)
        print(f" * Acc@1 {meters[3].sum / meters[3].count:.3f}")


if __name__ == "__main__":
    main()
