"""Hugging Face Accelerate under Pawl: the explicit loop, with the arguments of an ``Accelerator``.

    run = pawl_launch.init(batch_per_gpu=32)
    accelerator = Accelerator(**pawl_launch.accelerate.arguments())
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    pawl_launch.accelerate.resume(accelerator)
    for batch in run.steps(loader, evaluate=evaluate):
        with accelerator.accumulate(model):
            ...
        if accelerator.sync_gradients:
            run.step(loss=total)
            pawl_launch.accelerate.save(accelerator)
"""

from __future__ import annotations

from typing import Any

from .joining import init
from .outcome import Unsupported
from .placement import is_cpu
from .sharding import require_gpus, require_same_format, resharding


def arguments(**own: Any) -> dict[str, Any]:
    """Arguments of ``Accelerator``: the script's ``own``, and over them those that the settings give.

    Raises:
        Unsupported: The device does not support a setting.
    """
    run = init()
    if run.by_hand:
        return own
    run.hide_single_rank()
    settings = run.settings
    settings.add_defaults({"accumulation_steps": own.get("gradient_accumulation_steps", 1)})
    found: dict[str, Any] = {"gradient_accumulation_steps": run.accumulation_steps, "cpu": is_cpu(run)}
    if not run.tracks:
        found["log_with"] = None
    if settings.is_given("precision"):
        precision = settings.one_of("precision", "fp32", "tf32", "bf16", "fp16")
        if run.device == "cpu" and precision in ("tf32", "fp16"):
            raise Unsupported(f"settings.precision: {precision} needs a GPU: use fp32 or bf16")
        import torch

        torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
        found["mixed_precision"] = precision if precision in ("bf16", "fp16") else "no"
    if settings.is_given("compile") and settings.compile != "None":
        from accelerate.utils import TorchDynamoPlugin

        mode = "default" if settings.compile == "Fuse" else "reduce-overhead"
        found["dynamo_plugin"] = TorchDynamoPlugin(backend="inductor", mode=mode)
    reshard = resharding(run)
    if reshard is not None:
        require_gpus(run)
        from accelerate.utils import FullyShardedDataParallelPlugin

        # Blocks are the classes that a model of Transformers names, or those of the script's own plugin.
        plugin = own.get("fsdp_plugin") or FullyShardedDataParallelPlugin(
            fsdp_version=2, auto_wrap_policy="transformer_based_wrap", state_dict_type="FULL_STATE_DICT"
        )
        plugin.reshard_after_forward = reshard
        found["fsdp_plugin"] = plugin
    elif settings.is_given("sharding"):
        found["fsdp_plugin"] = None
    return own | found


def resume(accelerator: Any) -> None:
    """Loads the checkpoint of the launch, if there is one, into what the accelerator has prepared.

    Raises:
        Unsupported: Only the weights of the checkpoint are wanted, or it was written with FSDP and the accelerator does not use it.
    """
    run = init()
    path = run.get_checkpoint()
    if path is not None:
        if run.resumes_weights_only:
            raise Unsupported(
                "train.resumeFrom.weightsOnly: load_state() resumes whole checkpoints only: load the weights of "
                "run.get_checkpoint() into the model instead"
            )
        require_same_format(path)
        accelerator.load_state(str(path))


def save(accelerator: Any) -> None:
    """Writes a checkpoint if one is due."""
    run = init()
    if run.should_checkpoint:
        with run.checkpoint() as directory:
            accelerator.save_state(str(directory))
