"""Runs the PyTorch peer of the workload `forex`, with what a comparison needs beside it: an export of what it trains on, a mode whose whole step is one CUDA
graph, and sampling.

  python forex_peer.py PATH/TO/forex_vae_sssd_peer.py [--export FOLDER] [--captured] [--forecasts N] [ARGUMENTS OF THE PEER]

--export writes init.safetensors (first weights), data.safetensors (bars, float64), plan.safetensors (the bar with which each window ends, in the order of
training) and losses.json to FOLDER. --captured: bars and features are on the device, and forward pass, backward pass, clipping, update, learning rate and the
choice of the windows are one CUDA graph, which is replayed without any work on the host. --forecasts: after training, 64 samples by 20 DDIM steps for N windows at
a time, with the step in a CUDA graph as well where training was captured. The peer is not modified: what its `main` builds is caught.
"""
import argparse
import contextlib
import importlib.util
import json
import math
import pathlib
import statistics
import sys

import torch

SAMPLES, DDIM_STEPS = 64, 20


def write(path, tensors):
    kinds = {torch.float32: "F32", torch.float64: "F64", torch.int64: "I64"}
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
            out.write(tensor.contiguous().cpu().view(torch.uint8).numpy().tobytes())


class Built(Exception):
    """The peer's `main` has read its arguments and made its data."""


def windows(a, data):
    """The bars with which the windows of all micro-steps end, (micro-steps, batch): the same draws as the peer's."""
    count = max(a.train_steps, a.warmup + 50) * a.accum
    draws = [torch.Generator().manual_seed((a.seed * 1_000_003 + s) * 64) for s in range(count)]
    return torch.stack([torch.randint(*data.train, (a.batch,), generator=g) for g in draws])


def precision(a, device):
    amp = {"bf16": torch.bfloat16}.get(a.precision)
    return torch.autocast(device.type, dtype=amp or torch.bfloat16, enabled=amp is not None)


def timed(run, count):
    """Milliseconds of each of `count` calls."""
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
    marks[0].record()
    for mark in marks[1:]:
        run()
        mark.record()
    torch.cuda.synchronize()
    return [start.elapsed_time(end) for start, end in zip(marks, marks[1:])]


@contextlib.contextmanager
def constants():
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
    torch.tensor = tensor
    yield
    torch.tensor = make


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


def compiled(a, model):
    """Compiles the parts that the peer compiles. The whole step is captured, so that they need no graphs of their own."""
    if a.compile == "none":
        return
    # Each feed-forward network and each timeframe has shapes of its own.
    torch._dynamo.config.recompile_limit = 256
    build = lambda part: torch.compile(part, mode=a.compile_mode)
    model.vae.encoder, model.vae.decoder = build(model.vae.encoder), build(model.vae.decoder)
    if a.compile == "all":
        model.head, model.encoder.fusion = build(model.head), build(model.encoder.fusion)
        for blocks in model.encoder.blocks.values():
            for block in blocks:
                block.ffn = build(block.ffn)


def train_captured(peer, a, data, model):
    """Trains with one CUDA graph per step; the report and the loss of each step."""
    device = torch.device("cuda")
    total = max(a.train_steps, a.warmup + 50)
    plan = windows(a, data).to(device)
    factor = lambda s: min(1.0, (s + 1) / max(1, a.lr_warmup)) * (
        1e-6 / a.lr + (1 - 1e-6 / a.lr) * 0.5 * (1 + math.cos(math.pi * min(1.0, s / total))))
    numbers = lambda of: torch.tensor([of(s) for s in range(total)], device=device)
    rates, betas = numbers(lambda s: a.lr * factor(s)), numbers(lambda s: 1.0 / (1.0 + math.exp(-0.002 * (s - 5000))))
    count, rate = torch.zeros(1, dtype=torch.int64, device=device), torch.zeros((), device=device)
    losses = torch.zeros(total, device=device)
    groups = peer.decay_groups(model, a.weight_decay)
    compiled(a, model)
    optimizer = torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.999), eps=1e-8, fused=True, capturable=True)

    def step():
        rate.copy_(rates[count][0])
        with precision(a, device):
            loss, _ = model(data.batch(plan[count][0]), betas[count][0])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.index_copy_(0, count, loss.detach().reshape(1))
        count.add_(1).remainder_(total)

    first = {name: value.clone() for name, value in model.state_dict().items()}
    with constants():
        graph = captured(step)
    # The runs before the capture leave no trace.
    with torch.no_grad():
        for name, value in model.state_dict().items():
            value.copy_(first[name])
        for state in optimizer.state.values():
            for value in state.values():
                value.zero_()
        count.zero_()
    timed(graph.replay, a.warmup)
    median = statistics.median(timed(graph.replay, total - a.warmup))
    report = dict(samples_per_s=1e3 * a.batch / median, peak_mem_gib=torch.cuda.max_memory_allocated() / 2**30)
    return report, losses[: a.train_steps].double().tolist()


def sample(a, data, model, count, capture):
    """Forecasts of windows per second: DDIM without randomness."""
    device = torch.device("cuda")
    model.eval()
    batch = {name: value.to(device) for name, value in data.batch(torch.arange(data.val[0], data.val[0] + count)).items()}
    times = [(a.T * (DDIM_STEPS - s) // DDIM_STEPS, a.T * (DDIM_STEPS - s - 1) // DDIM_STEPS) for s in range(DDIM_STEPS)]
    kept = {t: model.alpha_bar[t].item() for pair in times for t in pair}

    @torch.no_grad()
    def forecast():
        with precision(a, device):
            context = model.encoder(batch).float()
            noisy = torch.randn(count, SAMPLES, 4, a.z_dim, device=device)
            shape = (count, SAMPLES, 4)
            for now, after in times:
                given = [noisy, model.t_table[now].expand(*shape, -1), context[:, None, None].expand(*shape, -1),
                         model.horizon_emb.weight[None, None].expand(*shape, -1)]
                velocity = model.head(torch.cat(given, -1)).float()
                signal, noise = math.sqrt(kept[now]), math.sqrt(1 - kept[now])
                clean, estimate = signal * noisy - noise * velocity, noise * noisy + signal * velocity
                noisy = math.sqrt(kept[after]) * clean + math.sqrt(1 - kept[after]) * estimate
            return model.target_proj(noisy * model.latent_scale).squeeze(-1)

    run = captured(forecast).replay if capture else forecast
    timed(run, 5)
    return 1e3 * count / statistics.median(timed(run, 30))


def main():
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("peer")
    parser.add_argument("--export", type=pathlib.Path)
    parser.add_argument("--captured", action="store_true")
    parser.add_argument("--forecasts", type=int, default=0)
    own, rest = parser.parse_known_args()
    spec = importlib.util.spec_from_file_location("peer", own.peer)
    peer = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(peer)
    build, make_data, simulate, stack, seen = peer.ForexModel, peer.ForexData, peer.simulate_bars, torch.stack, {}

    def model_of(a):
        model = build(a)
        seen.update(a=a, model=model)
        if own.export:
            write(own.export / "init.safetensors", {name: value.detach() for name, value in model.named_parameters()})
            write(own.export / "plan.safetensors", {"bars": windows(a, seen["data"])})
            bars = {name: torch.from_numpy(seen["bars"][name]) for name in ("open", "high", "low", "close", "volume")}
            write(own.export / "data.safetensors", {name: values.double() for name, values in bars.items()})
        if own.captured:
            raise Built
        return model

    def kept(name, make):
        def call(*arguments):
            seen[name] = make(*arguments)
            return seen[name]
        return call

    def stacked(tensors, *more):
        out = stack(tensors, *more)
        # The losses are the only scalars that the peer stacks with one value per step.
        if "a" in seen and out.ndim == 1 and len(tensors) == seen["a"].train_steps:
            seen["losses"] = out.double().tolist()
        return out

    peer.ForexModel, peer.ForexData, peer.simulate_bars = model_of, kept("data", make_data), kept("bars", simulate)
    sys.argv = [own.peer, *rest]
    report = {}
    try:
        if not own.captured:
            torch.stack = stacked
        peer.main()
    except Built:
        model = seen["model"].cuda().train()
        torch.cuda.reset_peak_memory_stats()
        report, seen["losses"] = train_captured(peer, seen["a"], seen["data"], model)
    torch.stack = stack
    if own.export:
        (own.export / "losses.json").write_text(json.dumps(seen["losses"]))
    if own.forecasts:
        report["forecasts_per_s"] = sample(seen["a"], seen["data"], seen["model"], own.forecasts, own.captured)
    print(json.dumps(report))


if __name__ == "__main__":
    main()
