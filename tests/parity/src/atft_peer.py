"""Runs the PyTorch peer of the workload `atft-gat-fan`, with what a comparison needs beside it: an export of what it trains on, and a mode whose whole step is
one CUDA graph, with graph attention over sorted edges.

  python atft_peer.py PATH/TO/atft_gat_fan_peer.py [--export FOLDER] [--captured] [--without-dropout] [ARGUMENTS OF THE PEER]

--export writes init.safetensors (first weights), data.safetensors (features, returns, and groups of the stocks), plan.safetensors (the days of each step) and
losses.json to FOLDER. --captured: the panel and the graphs of its days are on the device, and the choice of the windows, forward pass, backward pass, clipping,
update and learning rate are one CUDA graph, which is replayed without any work on the host; edges are padded, sorted by the node in which they end, and summed
over its segment, as are the gradients of both ends. On a CPU the same step runs without a CUDA graph. The peer is not modified: what its `main` builds is caught.
"""
import argparse
import importlib.util
import json
import math
import pathlib
import statistics
import sys
import time
from typing import NamedTuple

import torch
import torch.nn.functional as F


def write(path, tensors):
    kinds = {torch.float32: "F32", torch.int64: "I64"}
    header, at = {}, 0
    for name, tensor in tensors.items():
        size = tensor.numel() * tensor.element_size()
        header[name] = {"dtype": kinds[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as out:
        out.write(len(text).to_bytes(8, "little") + text)
        for tensor in tensors.values():
            out.write(tensor.contiguous().cpu().numpy().tobytes())


class Built(Exception):
    """The peer's `main` has read its arguments and made its data."""


def plan(a, horizon):
    """The days of all steps, (steps, days): the same draws as the peer's."""
    first, last = 60 + a.seq, a.days - horizon - 1
    split = last - a.eval_days - horizon
    draws = [torch.Generator().manual_seed((a.seed * 1_000_003 + s) * 64) for s in range(max(a.train_steps, a.warmup + 50) * a.accum)]
    return torch.stack([torch.randint(first, split, (a.batch // a.stocks,), generator=g) for g in draws])


# ----------------------------------------------------------------------------- sorted edges
class Edges(NamedTuple):
    """Edges of some days, sorted by target. Each day has one segment more than stocks, which holds its padding."""
    target: torch.Tensor    # (E) segment in which an edge ends
    source: torch.Tensor    # (E) segment in which it begins; the graphs are symmetric
    reverse: torch.Tensor   # (E) place of the edge in the other direction
    offsets: torch.Tensor   # (segments + 1)
    real: torch.Tensor      # (E, 1) 1, and 0 for padding
    droppable: torch.Tensor  # (E) neither padding nor a loop
    stocks: int


class Gather(torch.autograd.Function):
    """Rows `index` of `x`, a row for each segment. `order` sorts the edges by `index`; none where they are sorted."""

    @staticmethod
    def forward(ctx, x, index, order, offsets):
        ctx.order, ctx.offsets = order, offsets
        return x.index_select(0, index)

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient if ctx.order is None else gradient.index_select(0, ctx.order)
        return sums(gradient, ctx.offsets), None, None, None


class Sum(torch.autograd.Function):
    """The sums of the rows of each segment; `index` is the segment of each row."""

    @staticmethod
    def forward(ctx, x, index, offsets):
        ctx.index = index
        return sums(x, offsets)

    @staticmethod
    def backward(ctx, gradient):
        return gradient.index_select(0, ctx.index), None, None


def sums(x, offsets):
    return torch.segment_reduce(x.contiguous(), "sum", offsets=offsets, axis=0, unsafe=True)


def attend(self, x, src, edges, ea):
    """`GATLayer.forward` over `Edges`; `src` is not used."""
    nodes, days = x.shape[0], x.shape[0] // edges.stocks
    padded = lambda t: F.pad(t.view(days, edges.stocks, -1), (0, 0, 0, 1)).flatten(0, 1)
    h = self.lin(self.drop(x)).view(nodes, self.h, self.c)
    score = lambda weight: padded((h * weight).sum(-1))
    e = Gather.apply(score(self.a_src), edges.source, edges.reverse, edges.offsets) + \
        Gather.apply(score(self.a_dst), edges.target, None, edges.offsets)
    if self.lin_edge is not None:
        e = e + (self.lin_edge(ea).view(-1, self.h, self.c) * self.a_edge).sum(-1)
    e = F.leaky_relu(e, 0.2).float()
    if self.training and self.edge_p > 0:
        drop = (torch.rand(e.shape[0], device=e.device) < self.edge_p) & edges.droppable
        e = e.masked_fill(drop[:, None], float("-inf"))
    top = torch.segment_reduce(e.detach(), "max", offsets=edges.offsets, axis=0, unsafe=True)
    exp = torch.exp(e - top.index_select(0, edges.target))
    al = exp / Gather.apply(Sum.apply(exp, edges.target, edges.offsets), edges.target, None, edges.offsets)
    rows = Gather.apply(padded(h), edges.source, edges.reverse, edges.offsets).view(-1, self.h, self.c)
    out = Sum.apply((al.to(h.dtype)[..., None] * rows).flatten(1), edges.target, edges.offsets)
    out = out.view(days, edges.stocks + 1, self.h, self.c)[:, :-1].reshape(nodes, self.h, self.c)
    al = al * edges.real
    ent = -(al * torch.log(al + 1e-8)).sum() / (nodes * self.h)
    out = (out.flatten(1) if self.concat else out.mean(1)) + self.bias
    return (out if self.out is None else self.out(out)), ent, al.square().sum() / (edges.real.sum() * self.h)


class Panel:
    """The peer's panel on the device, with the graphs of its blocks of 20 days, all padded to the same number of edges."""

    def __init__(self, panel, a, device):
        self.stocks, self.seq, self.device = a.stocks, a.seq, device
        self.features, self.z, self.raw = (t.to(device) for t in (panel.feats, panel.z, panel.raw))
        blocks = [panel.graph(20 * block) for block in range(-(-a.days // 20))]
        most = max(len(source) for source, _, _ in blocks)
        self.tables = [torch.stack(of).to(device) for of in zip(*(self.padded(*graph, most) for graph in blocks))]

    def padded(self, source, target, attributes, most):
        more = most - len(source)
        fill = lambda t, value: torch.cat([t, torch.full((more,), value, dtype=t.dtype)])
        source, target = fill(source, self.stocks), fill(target, self.stocks)
        # The edges sorted by source, then by target: the i-th of them is the other direction of the i-th by target.
        reverse = torch.argsort(source * (self.stocks + 1) + target, stable=True)
        offsets = torch.searchsorted(target.contiguous(), torch.arange(self.stocks + 2))
        real = torch.arange(most) < most - more
        return source, target, reverse, offsets, real, real & (source != target), F.pad(attributes, (0, 0, 0, more))

    def batch(self, days):
        """What the model and the loss take, of `days` on the device."""
        count = len(days)
        rows = days[:, None] + torch.arange(1 - self.seq, 1, device=self.device)
        x = self.features[rows].permute(0, 2, 1, 3).reshape(count * self.stocks, self.seq, -1).contiguous()
        source, target, reverse, offsets, real, droppable, attributes = (t[days // 20] for t in self.tables)
        number = torch.arange(count, device=self.device)[:, None]
        place = lambda t, stride: (t + number * stride).flatten()
        edges = source.shape[1]
        ends = torch.cat([place(offsets[:, :-1], edges), torch.full((1,), count * edges, device=self.device)])
        graph = Edges(place(target, self.stocks + 1), place(source, self.stocks + 1), place(reverse, edges), ends, real.flatten()[:, None].float(),
                      droppable.flatten(), self.stocks)
        return dict(x=x, z=self.z[days], raw=self.raw[days], src=None, dst=graph, ea=attributes.flatten(0, 1))


# ----------------------------------------------------------------------------- training
def kept_constants(peer):
    """Small tensors from host numbers, as the peer makes them for each batch, are made once: a capture allows no copy from the host."""
    make, known = torch.tensor, {}

    def tensor(values, **of):
        # The compiler makes tensors of its own.
        if not isinstance(values, tuple):
            return make(values, **of)
        key = (values, *of.items())
        if key not in known:
            known[key] = make(values, **of)
        return known[key]
    peer.torch.tensor = tensor


def captured(step, warm_up=3):
    """A CUDA graph of `step`, after some runs outside of it."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(warm_up):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph


def timed(run, count, cuda):
    """Milliseconds of each of `count` calls."""
    if not cuda:
        marks = [time.perf_counter()]
        for _ in range(count):
            run()
            marks.append(time.perf_counter())
        return [1e3 * (end - start) for start, end in zip(marks, marks[1:])]
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
    marks[0].record()
    for mark in marks[1:]:
        run()
        mark.record()
    torch.cuda.synchronize()
    return [start.elapsed_time(end) for start, end in zip(marks, marks[1:])]


def train_captured(peer, a, panel, model, days):
    """Trains with one CUDA graph per step; the report and the loss of each step."""
    cuda = torch.cuda.is_available() and a.device != "cpu"
    device = torch.device("cuda" if cuda else "cpu")
    total = max(a.train_steps, a.warmup + 50)
    data, days = Panel(panel, a, device), days.to(device)
    warm = max(1, total // 20)
    factor = lambda s: min(1.0, (s + 1) / warm) * (0.002 + 0.998 * 0.5 * (1 + math.cos(math.pi * min(1.0, s / total))))
    rates = torch.tensor([a.lr * factor(s) for s in range(total)], device=device)
    count, rate = torch.zeros(1, dtype=torch.int64, device=device), torch.zeros((), device=device)
    losses = torch.zeros(total, device=device)
    decays = lambda name, parameter: parameter.ndim >= 2 and "norm" not in name
    of = lambda wanted: [parameter for name, parameter in model.named_parameters() if decays(name, parameter) == wanted]
    groups = [dict(params=of(True), weight_decay=a.weight_decay), dict(params=of(False), weight_decay=0.0)]
    optimizer = torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.999), eps=1e-8, fused=cuda, capturable=cuda)
    weights = dict(pinball=0.3, mse=0.1, huber=0.1, rankic=0.5, ic=0.3, sharpe=0.1)
    amp = {"bf16": torch.bfloat16}.get(a.precision)
    first = {name: value.clone() for name, value in model.state_dict().items()}
    # The whole step is captured: the parts need no graphs of their own.
    for part in [] if a.compile == "none" else ["tft", "prediction_head"] if a.compile == "selective" else ["tft", "gat", "fan", "san", "prediction_head"]:
        setattr(model, part, torch.compile(getattr(model, part), dynamic=False))

    def step():
        rate.copy_(rates[count][0])
        with torch.autocast(device.type, dtype=amp or torch.bfloat16, enabled=amp is not None):
            batch = data.batch(days[count][0])
            forecasts, regularization = model(batch)
        loss = peer.loss_fn(forecasts, batch, a.stocks, weights) + regularization
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.index_copy_(0, count, loss.detach().reshape(1))
        count.add_(1).remainder_(total)

    kept_constants(peer)
    run = step
    if cuda:
        run = captured(step).replay
        # The runs before the capture leave no trace.
        with torch.no_grad():
            trained = dict(model.named_parameters()) | dict(model.named_buffers())
            for name, value in trained.items():
                value.copy_(first[name.replace("_orig_mod.", "")])
            for state in optimizer.state.values():
                for value in state.values():
                    value.zero_()
            count.zero_()
    timed(run, a.warmup, cuda)
    median = statistics.median(timed(run, total - a.warmup, cuda))
    report = dict(samples_per_s=1e3 * a.batch / median, edges=data.tables[0].shape[1] * len(days[0]))
    if cuda:
        report["peak_mem_gib"] = torch.cuda.max_memory_allocated() / 2**30
    return report, losses[: a.train_steps].double().tolist()


def main():
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("peer")
    parser.add_argument("--export", type=pathlib.Path)
    parser.add_argument("--captured", action="store_true")
    parser.add_argument("--without-dropout", action="store_true")
    own, rest = parser.parse_known_args()
    spec = importlib.util.spec_from_file_location("peer", own.peer)
    peer = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(peer)
    build, make_panel, clock, seen = peer.ATFT, peer.Panel, peer.StepClock, {}

    def panel_of(*arguments):
        seen["panel"] = make_panel(*arguments)
        return seen["panel"]

    def model_of(a):
        if own.without_dropout:
            a.head_dropout = 0.0
        model = build(a)
        for layer in model.gat.layers if own.without_dropout else []:
            layer.edge_p = 0.0
        seen.update(a=a, model=model, days=plan(a, max(peer.HORIZONS)))
        if own.export:
            panel = seen["panel"]
            write(own.export / "init.safetensors", {name: value.detach() for name, value in model.named_parameters()})
            write(own.export / "plan.safetensors", {"days": seen["days"]})
            write(own.export / "data.safetensors", dict(features=panel.feats, returns=torch.nan_to_num(panel.raw), daily=panel.r,
                                                        sectors=panel.sector, segments=panel.market_id))
        if own.captured:
            raise Built
        return model

    class Clock(clock):
        """Asked for its times when the steps are done: there `main` has their losses."""

        def ms(self):
            seen["losses"] = torch.stack(sys._getframe(1).f_locals["losses"]).double().tolist()
            return super().ms()

    peer.ATFT, peer.Panel, peer.StepClock = model_of, panel_of, Clock
    sys.argv = [own.peer, *rest]
    report = {}
    try:
        peer.main()
    except Built:
        a = seen["a"]
        peer.GATLayer.forward = attend
        cuda = torch.cuda.is_available() and a.device != "cpu"
        model = (seen["model"].cuda() if cuda else seen["model"]).train()
        if cuda:
            torch.cuda.reset_peak_memory_stats()
        report, seen["losses"] = train_captured(peer, a, seen["panel"], model, seen["days"])
    if own.export:
        (own.export / "losses.json").write_text(json.dumps(seen["losses"]))
    print(json.dumps(report))


if __name__ == "__main__":
    main()
