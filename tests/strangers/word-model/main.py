"""A word-level language model: a recurrent network, gradients clipped, perplexities."""
import argparse
import math
import time

import torch
from torch import nn

parser = argparse.ArgumentParser(description="Word-level language model")
parser.add_argument("--data", type=str, default="./data", help="location of the data corpus")
parser.add_argument("--model", type=str, default="LSTM")
parser.add_argument("--emsize", type=int, default=64)
parser.add_argument("--nhid", type=int, default=64)
parser.add_argument("--lr", type=float, default=5, help="initial learning rate")
parser.add_argument("--clip", type=float, default=0.25)
parser.add_argument("--epochs", type=int, default=40, help="upper epoch limit")
parser.add_argument("--batch_size", type=int, default=8, metavar="N", help="batch size")
parser.add_argument("--bptt", type=int, default=20, help="sequence length")
parser.add_argument("--seed", type=int, default=1111)
parser.add_argument("--log-interval", type=int, default=20, metavar="N", help="report interval")
args = parser.parse_args()

torch.manual_seed(args.seed)
ntokens = 200


def corpus(length):
    ids = torch.arange(length)
    return (ids * ids // 7 + ids % 11) % ntokens


def batchify(data, bsz):
    nbatch = data.size(0) // bsz
    return data.narrow(0, 0, nbatch * bsz).view(bsz, -1).t().contiguous()


train_data, val_data = batchify(corpus(30_000), args.batch_size), batchify(corpus(4_000), 10)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.rnn = nn.Embedding(ntokens, args.emsize), nn.LSTM(args.emsize, args.nhid, 2)
        self.decoder = nn.Linear(args.nhid, ntokens)

    def forward(self, x, hidden):
        output, hidden = self.rnn(self.encoder(x), hidden)
        return self.decoder(output).view(-1, ntokens), tuple(h.detach() for h in hidden)


model, criterion, lr = Net(), nn.CrossEntropyLoss(), args.lr


def get_batch(source, i):
    seq_len = min(args.bptt, len(source) - 1 - i)
    return source[i : i + seq_len], source[i + 1 : i + 1 + seq_len].view(-1)


def initial(bsz):
    return torch.zeros(2, bsz, args.nhid), torch.zeros(2, bsz, args.nhid)


def evaluate(source):
    model.eval()
    total, hidden = 0.0, initial(10)
    with torch.no_grad():
        for i in range(0, source.size(0) - 1, args.bptt):
            data, targets = get_batch(source, i)
            output, hidden = model(data, hidden)
            total += len(data) * criterion(output, targets).item()
    return total / (len(source) - 1)


def train(epoch):
    model.train()
    total, start, hidden = 0.0, time.time(), initial(args.batch_size)
    for batch, i in enumerate(range(0, train_data.size(0) - 1, args.bptt)):
        data, targets = get_batch(train_data, i)
        model.zero_grad()
        output, hidden = model(data, hidden)
        loss = criterion(output, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip)
        for p in model.parameters():
            p.data.add_(p.grad, alpha=-lr)
        total += loss.item()
        if batch % args.log_interval == 0 and batch > 0:
            cur_loss, elapsed = total / args.log_interval, time.time() - start
            print(f"| epoch {epoch:3d} | {batch:5d}/{len(train_data) // args.bptt:5d} batches | lr {lr:02.2f} | "
                  f"ms/batch {elapsed * 1000 / args.log_interval:5.2f} | loss {cur_loss:5.2f} | ppl {math.exp(cur_loss):8.2f}", flush=True)
            total, start = 0.0, time.time()


for epoch in range(1, args.epochs + 1):
    start = time.time()
    train(epoch)
    val_loss = evaluate(val_data)
    print("-" * 89)
    print(f"| end of epoch {epoch:3d} | time: {time.time() - start:5.2f}s | valid loss {val_loss:5.2f} | valid ppl {math.exp(val_loss):8.2f}")
    print("-" * 89, flush=True)
