"""Applies the settings to a plain PyTorch script. Each function reads the settings that it applies.

==========================  =====================================================================================
Setting                     Applied by
==========================  =====================================================================================
seed, deterministic, tf32   :func:`setup`
batchPerGpu, loader*        :func:`loader_arguments`
precision                   :func:`autocast`, :func:`scaler` (fp16)
compile, memoryFormat       :func:`prepare`
sharding                    :func:`prepare`, with :func:`resume` and :func:`save`
optimizerKernel             :func:`optimizer_arguments`, with ``learning_rate`` and ``weight_decay``
attention                   :func:`attention`
loaderAsyncCopy             :func:`to_device`
==========================  =====================================================================================
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from .run import Run
from .sharding import resharding, shard

_FILE = "state.pt"


def setup(run: Run) -> Any:
    """Seeds the random number generators, sets the arithmetic of matrix products, joins the process group of a launch of
    several ranks, and returns the ``torch.device`` of this rank."""
    import torch

    device = torch.device(run.device if not run.by_hand else "cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    random.seed(run.seed)
    torch.manual_seed(run.seed)
    torch.use_deterministic_algorithms(bool(run.settings.deterministic))
    tf32 = run.settings.one_of("precision", "fp32", "tf32", "bf16", "fp16") == "tf32"
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    torch.backends.cudnn.allow_tf32 = tf32
    distributed = torch.distributed
    if run.world_size > 1 and distributed.is_available() and not distributed.is_initialized():
        distributed.init_process_group("nccl" if device.type == "cuda" else "gloo")
    return device


def loader_arguments(run: Run) -> dict[str, Any]:
    """Arguments of a training ``DataLoader``. Its generator makes the order of an epoch a function of seed and epoch."""
    import torch

    workers = int(run.settings.loader_workers)
    prefetch, persistent = int(run.settings.loader_prefetch), bool(run.settings.loader_persistent)
    return {
        "batch_size": run.batch_size,
        "num_workers": workers,
        # Without workers, PyTorch refuses these two.
        "prefetch_factor": prefetch if workers else None,
        "persistent_workers": persistent and workers > 0,
        "pin_memory": bool(run.settings.loader_pinned),
        "generator": torch.Generator(),
        "drop_last": True,
    }


def autocast(run: Run, device: Any) -> AbstractContextManager[None]:
    """The context of the forward pass for the setting ``precision``."""
    import torch

    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(run.settings.precision)
    return nullcontext() if dtype is None else torch.autocast(device.type, dtype)


def scaler(run: Run, device: Any) -> Any:
    """The ``GradScaler``, which does nothing unless ``precision`` is fp16."""
    import torch

    return torch.amp.GradScaler(device.type, enabled=run.settings.precision == "fp16")


def prepare(run: Run, model: Any, device: Any, blocks: Iterable[Any] | None = None) -> Any:
    """Moves the model to the device and applies ``memoryFormat``, ``sharding`` and ``compile``; data parallel on several ranks.

    With ``sharding``, ``model`` itself is sharded by FSDP2: make its optimizer afterwards. ``blocks`` are the modules whose
    parameters are gathered together, by default the members of each ``ModuleList``.

    Raises:
        Unsupported: FSDP2 cannot shard this model or on these ranks.
    """
    import torch

    last = run.settings.one_of("memory_format", "ChannelsFirst", "ChannelsLast") == "ChannelsLast"
    model = model.to(device, memory_format=torch.channels_last if last else torch.preserve_format)
    reshard = resharding(run)
    if reshard is not None:
        mesh = torch.distributed.device_mesh.init_device_mesh(device.type, (run.world_size,))
        shard(run, model, mesh, reshard, blocks)
    elif run.world_size > 1:
        model = torch.nn.parallel.DistributedDataParallel(model, device_ids=[device] if device.type == "cuda" else None)
    mode = {"None": None, "Fuse": "default", "Graph": "reduce-overhead"}[run.settings.compile]
    return model if mode is None else torch.compile(model, mode=mode)


def resume(run: Run, model: Any, optimizer: Any) -> None:
    """Loads the checkpoint of the launch that :func:`save` has written, if there is one: it may be of another number of ranks or
    another ``sharding``. The model is the one that was given to :func:`prepare`, not what it returned."""
    import torch
    from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict, set_optimizer_state_dict

    path = run.get_checkpoint()
    if path is None:
        return
    state, options = torch.load(path / _FILE, map_location="cpu"), StateDictOptions(full_state_dict=True)
    set_model_state_dict(model, state["model"], options=options)
    if not run.resumes_weights_only:
        set_optimizer_state_dict(model, optimizer, state["optimizer"], options=options)


def save(run: Run, model: Any, optimizer: Any) -> None:
    """Writes a checkpoint of the model and the optimizer if one is due. The model is the one that was given to
    :func:`prepare`."""
    import torch
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict

    if not run.should_checkpoint:
        return
    with run.checkpoint() as directory:
        # All ranks take part; rank 0 has the result.
        found, states = get_state_dict(model, optimizer, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
        if run.rank == 0:
            torch.save({"model": found, "optimizer": states}, directory / _FILE)


def optimizer_arguments(run: Run) -> dict[str, Any]:
    """Arguments of a PyTorch optimizer: ``fused``, and ``lr`` and ``weight_decay`` where manifest or script set them."""
    fused = run.settings.one_of("optimizer_kernel", "PerTensor", "Fused") == "Fused"
    rate, decay = run.settings.learning_rate, run.settings.weight_decay
    arguments: dict[str, Any] = {"fused": True} if fused else {"foreach": False}
    if rate is not None:
        arguments["lr"] = rate
    if decay is not None:
        arguments["weight_decay"] = decay
    return arguments


def attention(run: Run) -> AbstractContextManager[Any]:
    """The context in which ``scaled_dot_product_attention`` uses the backend of the setting ``attention``."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    flash = run.settings.one_of("attention", "Math", "Flash") == "Flash"
    context: AbstractContextManager[Any] = sdpa_kernel(SDPBackend.FLASH_ATTENTION if flash else SDPBackend.MATH)
    return context


def to_device(run: Run, tensor: Any, device: Any) -> Any:
    """The tensor on the device; with ``loaderAsyncCopy``, the copy overlaps with computation (of pinned memory)."""
    return tensor.to(device, non_blocking=bool(run.settings.loader_async_copy))
