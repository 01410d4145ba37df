"""A character-level model of names, with a loader that prepares each batch in Python."""
import argparse
import time

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset


class Words(Dataset):
    def __init__(self, words, length):
        self.words, self.length = words, length

    def __len__(self):
        return len(self.words)

    def __getitem__(self, index):
        # Each name is augmented, which takes a few milliseconds of Python.
        word = self.words[index]
        for _ in range(1500):
            word = "".join(sorted(word))[::-1]
        ids = torch.zeros(self.length + 1, dtype=torch.long)
        ids[1 : len(self.words[index]) + 1] = torch.tensor([ord(c) - 96 for c in self.words[index]])
        return ids[:-1], ids[1:]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Make more names")
    parser.add_argument("--work-dir", "-o", type=str, default="out", help="output working directory")
    parser.add_argument("--max-steps", type=int, default=2000, help="max number of optimization steps to run for")
    parser.add_argument("--device", type=str, default="cpu")
    parser.add_argument("--seed", type=int, default=3407)
    parser.add_argument("--num-workers", "-n", type=int, default=0, help="number of data workers")
    parser.add_argument("--n-embd", type=int, default=64)
    parser.add_argument("--n-embd2", type=int, default=64)
    parser.add_argument("--batch-size", "-b", type=int, default=32)
    parser.add_argument("--learning-rate", "-l", type=float, default=5e-4)
    parser.add_argument("--weight-decay", "-w", type=float, default=0.01)
    args = parser.parse_args()
    print(vars(args))

    torch.manual_seed(args.seed)
    words = ["".join(chr(97 + (i * k + k) % 26) for k in range(3 + i % 9)) for i in range(2048)]
    loader = DataLoader(Words(words, 12), batch_size=args.batch_size, shuffle=True, num_workers=args.num_workers,
                        persistent_workers=args.num_workers > 0)
    model = nn.Sequential(nn.Embedding(27, args.n_embd), nn.Flatten(), nn.Linear(12 * args.n_embd, args.n_embd2), nn.Tanh(),
                          nn.Linear(args.n_embd2, 12 * 27)).to(args.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.learning_rate, weight_decay=args.weight_decay)
    step, batches = 0, iter(loader)
    while args.max_steps < 0 or step < args.max_steps:
        t0 = time.time()
        try:
            x, y = next(batches)
        except StopIteration:
            batches = iter(loader)
            x, y = next(batches)
        logits = model(x.to(args.device)).view(-1, 27)
        loss = F.cross_entropy(logits, y.to(args.device).flatten())
        model.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            print(f"step {step} | loss {loss.item():.4f} | step time {(time.time() - t0) * 1000:.2f}ms")
        step += 1
