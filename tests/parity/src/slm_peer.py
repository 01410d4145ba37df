"""Runs the PyTorch peer of the workload `slm`, and writes its initial weights, data and losses to a directory.

  python slm_peer.py PATH/TO/slm_peer.py FOLDER [ARGUMENTS OF THE PEER]

Writes to FOLDER: model.safetensors (initial weights, with Hugging Face names), adapters.safetensors (trainable adapters, if any), train.bin and
validation.bin (token ids, 32-bit), order.bin (the offset of the first token of each window, 64-bit) and losses.json. The peer is not modified: its
functions are patched to write the model once it is built, and the losses where the peer stacks them for its report.
"""
import importlib.util
import json
import pathlib
import sys

import torch


def name_of(parameter):
    """The Hugging Face name of a parameter of the peer, or the PEFT name of an adapter."""
    parts = parameter.split(".")
    if parts[0] in ("embed", "norm", "lm_head"):
        return {"embed": "model.embed_tokens", "norm": "model.norm", "lm_head": "lm_head"}[parts[0]] + ".weight"
    layer = f"model.layers.{parts[1]}"
    if parts[2] in ("norm1", "norm2"):
        return f"{layer}.{'input' if parts[2] == 'norm1' else 'post_attention'}_layernorm.weight"
    matrix = f"{layer}.{'self_attn' if parts[2] == 'attn' else 'mlp'}.{parts[3]}"
    return f"base_model.model.{matrix}.lora_{parts[-1]}.weight" if parts[-1] in "AB" else f"{matrix}.weight"


def write(path, tensors):
    kinds = {torch.float32: "F32", torch.bfloat16: "BF16"}
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


def main():
    program, folder = sys.argv[1], pathlib.Path(sys.argv[2])
    spec = importlib.util.spec_from_file_location("peer", program)
    peer = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(peer)
    build, stack, markov, text = peer.build, torch.stack, peer.markov_stream, peer.text_stream
    seen = {}

    def built(arguments, sizes, device):
        model, count = build(arguments, sizes, device)
        weights = {name_of(name): value.detach() for name, value in model.named_parameters()}
        adapters = {name: value for name, value in weights.items() if "lora_" in name}
        write(folder / "model.safetensors", {name: value for name, value in weights.items() if name not in adapters})
        if adapters:
            write(folder / "adapters.safetensors", adapters)
        stream, cut = seen["stream"], int(0.95 * len(seen["stream"]))
        (folder / "train.bin").write_bytes(stream[:cut].to(torch.int32).numpy().tobytes())
        (folder / "validation.bin").write_bytes(stream[cut:].to(torch.int32).numpy().tobytes())
        # The same as the peer's `window` with one process.
        starts, steps = [], max(arguments.train_steps, arguments.warmup + 50) * arguments.accum
        for s in range(steps):
            g = torch.Generator().manual_seed((arguments.seed * 1_000_003 + s) * 64)
            starts.append(torch.randint(0, cut - arguments.seq - 1, (arguments.batch, 1), generator=g).flatten())
        (folder / "order.bin").write_bytes(torch.cat(starts).to(torch.int64).numpy().tobytes())
        seen["steps"] = arguments.train_steps
        return model, count

    def stacked(tensors, *rest):
        out = stack(tensors, *rest)
        # The losses are the only scalars that the peer stacks with one value per step.
        if "losses" not in seen and len(tensors) == seen.get("steps") and out.ndim == 1:
            seen["losses"] = True
            (folder / "losses.json").write_text(json.dumps(out.double().tolist()))
        return out

    def kept(make):
        def stream(*arguments):
            seen["stream"] = make(*arguments)
            return seen["stream"]
        return stream

    peer.build, torch.stack, peer.markov_stream, peer.text_stream = built, stacked, kept(markov), kept(text)
    sys.argv = [program, *sys.argv[3:]]
    peer.main()


if __name__ == "__main__":
    main()
