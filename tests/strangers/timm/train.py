"""Training of an image model of the package timm: a parser for a file of options and one for the rest, counts anew in each epoch."""
import argparse
import logging
import time

import timm
import torch
import yaml

_logger = logging.getLogger("train")
config_parser = parser = argparse.ArgumentParser(description="Training Config", add_help=False)
parser.add_argument("-c", "--config", default="", type=str, metavar="FILE", help="YAML config file specifying default arguments")
parser = argparse.ArgumentParser(description="Image Training")
group = parser.add_argument_group("Dataset parameters")
group.add_argument("--data-dir", metavar="DIR", help="path to dataset (root dir)")
group = parser.add_argument_group("Model parameters")
group.add_argument("--model", default="test_efficientnet", type=str, metavar="MODEL", help="Name of model to train")
group.add_argument("--num-classes", type=int, default=10, metavar="N")
group.add_argument("-b", "--batch-size", type=int, default=8, metavar="N", help="Input batch size for training")
group.add_argument("--grad-accum-steps", type=int, default=1, metavar="N")
group.add_argument("--channels-last", action="store_true", default=False, help="Use channels_last memory layout")
group.add_argument("--torchcompile", nargs="?", type=str, default=None, const="inductor", help="Enable compilation w/ specified backend")
group = parser.add_argument_group("Optimizer parameters")
group.add_argument("--lr", type=float, default=0.05, metavar="LR")
group.add_argument("--epochs", type=int, default=30, metavar="N", help="number of epochs to train")
group = parser.add_argument_group("Miscellaneous parameters")
group.add_argument("--seed", type=int, default=42, metavar="S")
group.add_argument("--log-interval", type=int, default=5, metavar="N", help="how many batches to wait before logging")
group.add_argument("-j", "--workers", type=int, default=0, metavar="N", help="how many training processes to use")
group.add_argument("--amp", action="store_true", default=False, help="use AMP for mixed precision training")
group.add_argument("--amp-dtype", default="bfloat16", type=str)


def _parse_args():
    args_config, remaining = config_parser.parse_known_args()
    if args_config.config:
        parser.set_defaults(**yaml.safe_load(open(args_config.config)))
    return parser.parse_args(remaining)


def main():
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    args = _parse_args()
    torch.manual_seed(args.seed)
    model = timm.create_model(args.model, num_classes=args.num_classes)
    _logger.info(f"Model {args.model} created, param count:{sum(m.numel() for m in model.parameters())}")
    if args.channels_last:
        model = model.to(memory_format=torch.channels_last)
    if args.torchcompile:
        model = torch.compile(model, backend=args.torchcompile)
    labels = torch.randint(args.num_classes, (480,))
    data = torch.utils.data.TensorDataset(torch.rand(480, 3, 96, 96) + labels.view(-1, 1, 1, 1) / 10, labels)
    loader = torch.utils.data.DataLoader(data, batch_size=args.batch_size, shuffle=True, num_workers=args.workers)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    for epoch in range(args.epochs):
        model.train()
        total, count, start = 0.0, 0, time.time()
        for index, (images, target) in enumerate(loader):
            if args.channels_last:
                images = images.contiguous(memory_format=torch.channels_last)
            with torch.autocast("cpu", dtype=getattr(torch, args.amp_dtype), enabled=args.amp):
                loss = torch.nn.functional.cross_entropy(model(images), target) / args.grad_accum_steps
            loss.backward()
            if (index + 1) % args.grad_accum_steps == 0:
                optimizer.step()
                optimizer.zero_grad()
            total, count = total + loss.item() * args.grad_accum_steps * len(images), count + len(images)
            if index % args.log_interval == 0:
                took = (time.time() - start) / (index + 1)
                _logger.info(f"Train: {epoch} [{index:>4d}/{len(loader)} ({100.0 * index / (len(loader) - 1):>3.0f}%)]  Loss: {loss.item():#.3g} ({total / count:#.3g})  "
                             f"Time: {took:.3f}s, {len(images) / took:>7.2f}/s  LR: {args.lr:.3e}")


if __name__ == "__main__":
    main()
