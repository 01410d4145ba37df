"""Python values as JSON and back: what a loader or a random number generator calls its state. Nothing is pickled, so that
reading a checkpoint never runs code."""

from __future__ import annotations

import base64
import sys
from collections.abc import Mapping
from typing import Any


def encode(value: Any) -> Any:
    """The value as JSON: numbers, texts, bytes, tuples, lists, mappings, arrays of NumPy and tensors.

    Raises:
        TypeError: It contains anything else.
    """
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (bytes, bytearray)):
        return {"bytes": base64.b64encode(value).decode()}
    if isinstance(value, list):
        return [encode(each) for each in value]
    if isinstance(value, tuple):
        return {"tuple": [encode(each) for each in value]}
    if isinstance(value, Mapping):
        return {"map": [[encode(key), encode(each)] for key, each in value.items()]}
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    if torch is not None and isinstance(value, torch.Tensor):
        flat = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        found = {"dtype": str(value.dtype).removeprefix("torch."), "shape": list(value.shape)}
        return {"tensor": found | {"data": base64.b64encode(bytes(flat.tolist())).decode()}}
    if numpy is not None and isinstance(value, numpy.generic):
        return encode(value.item())
    if numpy is not None and isinstance(value, numpy.ndarray) and not value.dtype.hasobject:
        found = {"dtype": value.dtype.str, "shape": list(value.shape)}
        return {"array": found | {"data": base64.b64encode(value.tobytes()).decode()}}
    raise TypeError(f"{type(value).__name__} has no form in JSON")


def decode(content: Any) -> Any:
    """The value of which :func:`encode` made ``content``; tensors are on the CPU.

    Raises:
        ValueError: It is not of :func:`encode`.
    """
    if isinstance(content, list):
        return [decode(each) for each in content]
    if not isinstance(content, dict):
        return content
    [(kind, inner)] = content.items()
    if kind == "bytes":
        return base64.b64decode(inner)
    if kind == "tuple":
        return tuple(decode(each) for each in inner)
    if kind == "map":
        return {decode(key): decode(each) for key, each in inner}
    if kind == "tensor":
        import torch

        flat = torch.tensor(list(base64.b64decode(inner["data"])), dtype=torch.uint8)
        return flat.view(getattr(torch, inner["dtype"])).reshape(inner["shape"])
    if kind == "array":
        import numpy

        return numpy.frombuffer(base64.b64decode(inner["data"]), numpy.dtype(inner["dtype"])).reshape(inner["shape"]).copy()
    raise ValueError(f"{kind} is not a kind of value")
