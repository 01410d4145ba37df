"""A small GPT: options are the constants at the top, overridden by files of assignments and --name=value."""
import math
import time
from contextlib import nullcontext

import torch
from torch import nn
from torch.nn import functional as F

# -----------------------------------------------------------------------------
out_dir = "out"
eval_interval = 100
log_interval = 5
eval_iters = 5
eval_only = False
always_save_checkpoint = False
gradient_accumulation_steps = 4
batch_size = 4
block_size = 64
n_layer = 2
n_head = 4
n_embd = 128
dropout = 0.0
learning_rate = 1e-3
max_iters = 600
warmup_iters = 20
device = "cuda" if torch.cuda.is_available() else "cpu"
dtype = "float32"
compile = False
seed = 1337
# -----------------------------------------------------------------------------
exec(open("configurator.py").read())

torch.manual_seed(seed)
ptdtype = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}[dtype]
ctx = nullcontext() if dtype == "float32" else torch.autocast(device_type=device, dtype=ptdtype)
text = torch.tensor([(i * 7 + i // 3) % 61 + (i % 4) for i in range(50_000)])
data = {"train": text[:45_000], "val": text[45_000:]}
vocab_size = 65


def get_batch(split):
    source = data[split]
    ix = torch.randint(len(source) - block_size - 1, (batch_size,))
    x = torch.stack([source[i : i + block_size] for i in ix])
    y = torch.stack([source[i + 1 : i + 1 + block_size] for i in ix])
    return x.to(device), y.to(device)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(n_embd), nn.LayerNorm(n_embd)
        self.attn, self.proj = nn.Linear(n_embd, 3 * n_embd), nn.Linear(n_embd, n_embd)
        self.up, self.down = nn.Linear(n_embd, 4 * n_embd), nn.Linear(4 * n_embd, n_embd)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (h.view(b, t, n_head, c // n_head).transpose(1, 2) for h in self.attn(self.ln_1(x)).split(n_embd, dim=2))
        scores = (q @ k.transpose(-2, -1)) / math.sqrt(k.size(-1))
        scores = scores.masked_fill(torch.ones(t, t, device=x.device).tril() == 0, float("-inf"))
        x = x + self.proj((F.softmax(scores, dim=-1) @ v).transpose(1, 2).reshape(b, t, c))
        return x + self.down(F.gelu(self.up(self.ln_2(x))))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab_size, n_embd), nn.Embedding(block_size, n_embd)
        self.blocks = nn.ModuleList(Block() for _ in range(n_layer))
        self.ln_f, self.head = nn.LayerNorm(n_embd), nn.Linear(n_embd, vocab_size, bias=False)

    def forward(self, idx, targets):
        x = self.wte(idx) + self.wpe(torch.arange(idx.size(1), device=idx.device))
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.ln_f(x)).flatten(0, 1), targets.flatten())


raw_model = Model().to(device)
model = torch.compile(raw_model) if compile else raw_model
optimizer = torch.optim.AdamW(raw_model.parameters(), lr=learning_rate)


@torch.no_grad()
def estimate_loss():
    model.eval()
    out = {split: torch.stack([model(*get_batch(split)) for _ in range(eval_iters)]).mean() for split in ("train", "val")}
    model.train()
    return out


t0 = time.time()
for iter_num in range(max_iters + 1):
    for group in optimizer.param_groups:
        group["lr"] = learning_rate * min(1, (iter_num + 1) / warmup_iters)
    if iter_num % eval_interval == 0:
        losses = estimate_loss()
        print(f"step {iter_num}: train loss {losses['train']:.4f}, val loss {losses['val']:.4f}")
    for _ in range(gradient_accumulation_steps):
        with ctx:
            loss = model(*get_batch("train")) / gradient_accumulation_steps
        loss.backward()
    torch.nn.utils.clip_grad_norm_(raw_model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    dt, t0 = time.time() - t0, time.time()
    if iter_num % log_interval == 0:
        print(f"iter {iter_num}: loss {loss.item() * gradient_accumulation_steps:.4f}, time {dt * 1000:.2f}ms")
