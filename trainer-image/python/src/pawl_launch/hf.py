"""The Trainer of Hugging Face Transformers under Pawl.

    model = AutoModelForCausalLM.from_config(config, **hf.model_arguments())
    trainer = Trainer(model, TrainingArguments(**hf.arguments(output_dir="out")), callbacks=[hf.PawlCallback()], ...)
    trainer.train(resume_from_checkpoint=hf.checkpoint())

``pawl_launch.init()`` is needed only to read the seed or settings of the script's own. Outside of Pawl, all of it has no effect.
Settings that the manifest does not give keep the script's values.
"""

from __future__ import annotations

import json
import math
import shutil
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .joining import init
from .outcome import InvalidPlan, Unsupported
from .placement import is_cpu
from .run import Run
from .sharding import require_gpus, require_same_format, resharding

if TYPE_CHECKING:
    _Callback: Any = object
else:
    # The library is imported with this module, which is imported only by scripts that use the library.
    from transformers import TrainerCallback as _Callback


def arguments(**own: Any) -> dict[str, Any]:
    """Arguments of ``TrainingArguments``: the script's ``own``, and over them those that the launch needs.

    The setting ``workload.optim`` names any optimizer of the Trainer, such as ``adamw_bnb_8bit``.

    Raises:
        Unsupported: The Trainer or the device does not support a setting.
    """
    run = init()
    if run.by_hand:
        return own
    run.hide_single_rank()
    run.settings.add_defaults(
        {
            "batch_per_gpu": own.get("per_device_train_batch_size", 8),
            "accumulation_steps": own.get("gradient_accumulation_steps", 1),
        }
    )
    result = own | {
        "per_device_train_batch_size": run.batch_size,
        "gradient_accumulation_steps": run.accumulation_steps,
        "seed": run.seed,
        # A number of items has no meaning with a smaller last batch.
        "dataloader_drop_last": True,
        # Replaces losses that are NaN: the launch must end instead.
        "logging_nan_inf_filter": False,
        "save_strategy": "no",
        "eval_strategy": "no",
        "load_best_model_at_end": False,
        "eval_on_start": False,
        "disable_tqdm": True,
        # Not all trackers that are installed, as Transformers 4: one without a key would end the training.
        "report_to": own.get("report_to", "none"),
        "use_cpu": is_cpu(run),
    }
    if not run.tracks:
        # The callback decides when to log; reading the loss waits for the device.
        result |= {"logging_strategy": "no", "logging_first_step": False, "report_to": "none"}
    result |= _precision(run) | _optimization(run) | _sharding(run) | _loader(run)
    return result | _length(run)


def model_arguments() -> dict[str, Any]:
    """Arguments of ``from_config`` and ``from_pretrained`` for the setting ``attention``: Math is the eager implementation,
    Flash that of PyTorch's ``scaled_dot_product_attention``."""
    run = init()
    if not run.settings.is_given("attention"):
        return {}
    flash = run.settings.one_of("attention", "Math", "Flash") == "Flash"
    return {"attn_implementation": "sdpa" if flash else "eager"}


def checkpoint() -> str | None:
    """The checkpoint for ``trainer.train(resume_from_checkpoint=...)``, after the Trainer has been made.

    Raises:
        Unsupported: Only the weights of the checkpoint are wanted, or it was written with FSDP and the Trainer does not use it.
    """
    run = init()
    path = run.get_checkpoint()
    if path is not None and run.resumes_weights_only:
        raise Unsupported(
            "train.resumeFrom.weightsOnly: the Trainer resumes whole checkpoints only: load the model with "
            "from_pretrained(run.get_checkpoint()) instead"
        )
    if path is None:
        return None
    require_same_format(path)
    return str(path)


def _precision(run: Run) -> dict[str, Any]:
    if not run.settings.is_given("precision"):
        return {}
    precision = run.settings.one_of("precision", "fp32", "tf32", "bf16", "fp16")
    if run.device == "cpu" and precision in ("tf32", "fp16"):
        raise Unsupported(f"settings.precision: {precision} needs a GPU: use fp32 or bf16")
    arguments: dict[str, Any] = {"bf16": precision == "bf16", "fp16": precision == "fp16"}
    if run.device != "cpu":
        arguments["tf32"] = precision == "tf32"
    return arguments


def _optimization(run: Run) -> dict[str, Any]:
    settings = run.settings
    found: dict[str, Any] = {}
    if settings.is_given("compile"):
        mode = {"None": None, "Fuse": "default", "Graph": "reduce-overhead"}[settings.compile]
        found["torch_compile"] = mode is not None
        if mode is not None:
            found["torch_compile_mode"] = mode
    if settings.is_given("optimizer_kernel"):
        found["optim"] = "adamw_torch_fused" if settings.optimizer_kernel == "Fused" else "adamw_torch"
    if "optim" in settings.workload:
        found["optim"] = settings.workload["optim"]
    if settings.is_given("activation_checkpointing"):
        full = settings.one_of("activation_checkpointing", "None", "Full") == "Full"
        found["gradient_checkpointing"] = full
        if full:
            found["gradient_checkpointing_kwargs"] = {"use_reentrant": False}
    names = {
        "learning_rate": "learning_rate",
        "weight_decay": "weight_decay",
        "warmup_steps": "warmup_steps",
        "gradient_clip": "max_grad_norm",
        "deterministic": "full_determinism",
        "eval_batch": "per_device_eval_batch_size",
    }
    return found | {argument: getattr(settings, name) for name, argument in names.items() if settings.is_given(name)}


def _sharding(run: Run) -> dict[str, Any]:
    if not run.settings.is_given("sharding"):
        return {}
    reshard = resharding(run)
    if reshard is None:
        return {"fsdp": None, "fsdp_config": None}
    require_gpus(run)
    config: dict[str, Any] = {"version": 2, "reshard_after_forward": reshard}
    if run.settings.activation_checkpointing == "Full":
        # That of the model would gather the parameters of each block once more.
        return {"fsdp": True, "fsdp_config": config | {"activation_checkpointing": True}, "gradient_checkpointing": False}
    return {"fsdp": True, "fsdp_config": config}


def _loader(run: Run) -> dict[str, Any]:
    names = {
        "loader_workers": "dataloader_num_workers",
        "loader_prefetch": "dataloader_prefetch_factor",
        "loader_pinned": "dataloader_pin_memory",
        "loader_persistent": "dataloader_persistent_workers",
    }
    given = {argument: getattr(run.settings, name) for name, argument in names.items() if run.settings.is_given(name)}
    if not given.get("dataloader_num_workers"):
        # Without workers, PyTorch refuses these two.
        given.pop("dataloader_prefetch_factor", None)
        given.pop("dataloader_persistent_workers", None)
    return given


def _length(run: Run) -> dict[str, Any]:
    """The number of steps of the launch, which also determines the schedule of the learning rate."""
    budget = run.budget
    if budget.has_known_end and run.is_done and _has_length(run.get_checkpoint()):
        # At the end of its steps, a Trainer that resumes would take one more; without epochs, it takes none. Data without a length
        # allow no number of epochs: there, it does take one.
        return {"num_train_epochs": 0, "max_steps": -1, "lr_scheduler_type": "constant", "lr_scheduler_kwargs": None}
    if budget.epochs is not None:
        return {"num_train_epochs": budget.epochs, "max_steps": -1}
    return {"max_steps": max(1, run.budget.most_steps(run.batch_size * run.accumulation_steps) or 0)}


def _has_length(checkpoint: Path | None) -> bool:
    """Whether the training data of the Trainer that wrote ``checkpoint`` has a length: without one, it counts no epochs."""
    state = checkpoint / "trainer_state.json" if checkpoint is not None else None
    if state is None or not state.is_file():
        return False
    return bool(json.loads(state.read_text()).get("num_train_epochs", sys.maxsize) < sys.maxsize)


class PawlCallback(_Callback):  # type: ignore[misc]
    """Measures the Trainer's steps, and decides when it logs, evaluates, saves and stops."""

    def __init__(self) -> None:
        self._run = init()
        self._micro_steps = 0
        self._ended_step = 0.0

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        run = self._run
        if run.by_hand:
            return
        if args.logging_nan_inf_filter or args.eval_strategy != "no":
            raise InvalidPlan("TrainingArguments: not those of hf.arguments(): use TrainingArguments(**hf.arguments(...))")
        # The callback stops the Trainer, at its last step at the latest.
        run.start(items_per_epoch=_items_per_epoch(kwargs.get("train_dataloader"), args, run.world_size), until_done=True)
        run.reads(kwargs.get("train_dataloader"))
        # The Trainer reads it after this callback.
        args.eval_on_start = run.should_evaluate
        if state.global_step != run.step_count:
            raise Unsupported(
                f"the Trainer begins at step {state.global_step}, the checkpoint is of step {run.step_count}: call "
                "trainer.train(resume_from_checkpoint=hf.checkpoint())"
            )

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if not self._run.by_hand:
            # The batches of the step were fetched since the end of the last one.
            self._run.begin_step(time.perf_counter() - self._ended_step if self._ended_step else 0.0)

    def on_substep_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._micro_steps += 1

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        run = self._run
        if run.by_hand:
            return
        micro_steps, self._micro_steps = self._micro_steps + 1, 0
        batch = args.per_device_train_batch_size
        # The last step of an epoch may have fewer micro-steps: its budget is that of a whole step, its work is not.
        run.step(items=batch * args.gradient_accumulation_steps, processed=batch * micro_steps)
        self._ended_step = time.perf_counter()
        # The Trainer logs before it saves: weights that are NaN are not saved.
        control.should_log |= run.window_ended or run.should_checkpoint
        control.should_evaluate |= run.should_evaluate
        control.should_save |= run.should_checkpoint
        control.should_training_stop |= run.is_done
        if not run.should_checkpoint:
            run.end_if_stopped()

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        if not self._run.by_hand and logs is not None and "loss" in logs:
            self._run.record_loss(logs["loss"])
            self._ended_step = time.perf_counter()

    def on_prediction_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._run.heartbeat()

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: dict[str, Any], **kwargs: Any) -> None:
        run = self._run
        if run.by_hand or not run.should_evaluate:
            return
        speed = ("_runtime", "_per_second", "_compilation_time")
        named = {name.removeprefix("eval_"): value for name, value in metrics.items() if not name.endswith(speed)}
        named = {name: value for name, value in named.items() if name != "epoch" and isinstance(value, (int, float))}
        if "loss" not in named:
            logged = ", ".join(f"eval_{name}" for name in named) or "nothing"
            raise InvalidPlan(
                f"eval_loss: not among the metrics of the evaluation: give the Trainer one eval_dataset whose items have labels, "
                f"so that the model returns a loss; logged: {logged}"
            )
        run.report(named)
        control.should_save |= run.should_checkpoint
        control.should_training_stop |= run.is_done

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        run = self._run
        if run.by_hand:
            return
        run.barrier()
        written = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        with run.checkpoint() as directory:
            if run.local_rank == 0:
                for file in written.iterdir():
                    shutil.move(file, directory / file.name)
                written.rmdir()
        run.end_if_stopped()


def _items_per_epoch(loader: Any, args: Any, world_size: int) -> int | None:
    try:
        steps = math.ceil(len(loader) / args.gradient_accumulation_steps)
    except TypeError:
        return None
    return int(steps * args.per_device_train_batch_size * args.gradient_accumulation_steps * world_size)
