"""A graph network of the package torch_geometric: the whole graph in each step, one line per epoch."""
import argparse
import time

import torch
import torch.nn.functional as F
from torch_geometric.nn import GCNConv

parser = argparse.ArgumentParser()
parser.add_argument("--dataset", type=str, default="generated")
parser.add_argument("--hidden_channels", type=int, default=64)
parser.add_argument("--lr", type=float, default=0.01)
parser.add_argument("--epochs", type=int, default=400)
parser.add_argument("--compile", action="store_true", help="Compile the model")
args = parser.parse_args()

torch.manual_seed(0)
nodes, features, classes = 3000, 200, 7
y = torch.randint(classes, (nodes,))
x = torch.rand(nodes, features) + F.one_hot(y, features) * 0.5
edge_index = torch.randint(nodes, (2, 20_000))
masks = torch.arange(nodes) % 10
train_mask, val_mask, test_mask = masks < 6, (masks >= 6) & (masks < 8), masks >= 8


class GCN(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = GCNConv(features, args.hidden_channels), GCNConv(args.hidden_channels, classes)

    def forward(self, x, edge_index):
        return self.conv2(F.relu(self.conv1(F.dropout(x, 0.5, self.training), edge_index)), edge_index)


model = GCN()
run = torch.compile(model) if args.compile else model
optimizer = torch.optim.Adam(model.parameters(), lr=args.lr, weight_decay=5e-4)


def train():
    model.train()
    optimizer.zero_grad()
    loss = F.cross_entropy(run(x, edge_index)[train_mask], y[train_mask])
    loss.backward()
    optimizer.step()
    return float(loss)


@torch.no_grad()
def test():
    model.eval()
    pred = run(x, edge_index).argmax(dim=-1)
    return [float((pred[mask] == y[mask]).float().mean()) for mask in (train_mask, val_mask, test_mask)]


times = []
for epoch in range(1, args.epochs + 1):
    start = time.time()
    loss = train()
    train_acc, val_acc, test_acc = test()
    print(f"Epoch: {epoch:03d}, Loss: {loss:.4f}, Train: {train_acc:.4f}, Val: {val_acc:.4f}, Test: {test_acc:.4f}", flush=True)
    times.append(time.time() - start)
print(f"Median time per epoch: {torch.tensor(times).median():.4f}s")
