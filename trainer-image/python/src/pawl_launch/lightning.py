"""The Trainer of Lightning under Pawl.

    run = pawl_launch.init(batch_per_gpu=32)
    trainer = lightning.Trainer(**pawl_launch.lightning.arguments(max_epochs=3))
    trainer.fit(module, train_loader, val_loader, ckpt_path=pawl_launch.lightning.checkpoint())

The loaders use ``run.batch_size``. The validation loss is the metric ``val_loss`` or ``loss``. Outside of Pawl, all of it has
no effect.
"""

from __future__ import annotations

import importlib
import logging
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from .joining import handle_signals, init
from .outcome import InvalidPlan, Unsupported
from .place import DataPlace, Loaders
from .run import Run
from .sharding import resharding, shard

if TYPE_CHECKING:
    _Callback: Any = object
else:
    # The library is imported with this module, which is imported only by scripts that use the library.
    try:
        from lightning.pytorch import Callback as _Callback
    except ImportError:
        from pytorch_lightning import Callback as _Callback

_FILE = "lightning.ckpt"
_NEVER = 2**31
_log = logging.getLogger("pawl_launch")


def arguments(**own: Any) -> dict[str, Any]:
    """Arguments of ``Trainer``: the script's ``own``, and over them those that the launch needs, with a callback.

    Raises:
        Unsupported: Lightning or the device does not support a setting.
    """
    run = init()
    if run.by_hand:
        return own
    run.settings.add_defaults({"accumulation_steps": own.get("accumulate_grad_batches", 1)})
    accumulation = run.accumulation_steps
    result = own | {
        "callbacks": [*own.get("callbacks", []), PawlCallback(run)],
        "accumulate_grad_batches": accumulation,
        "accelerator": "cpu" if run.device == "cpu" else "gpu",
        "devices": run.local_world_size if run.world_size > 1 else 1,
        "num_nodes": max(1, run.world_size // run.local_world_size),
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        # The evaluation before the first step.
        "num_sanity_val_steps": -1 if run.validates_first else 0,
        "max_time": None,
    }
    if not run.tracks:
        result["logger"] = False
    return result | _settings(run) | _length(run, accumulation)


def checkpoint() -> str | None:
    """The checkpoint for ``trainer.fit(ckpt_path=...)``."""
    run = init()
    path = run.get_checkpoint()
    if path is not None and run.resumes_weights_only:
        raise Unsupported(
            "train.resumeFrom.weightsOnly: fit() resumes whole checkpoints only: load the state_dict of "
            f"run.get_checkpoint() / '{_FILE}' instead"
        )
    return None if path is None else str(path / _FILE)


def prepare(module: Any) -> Any:
    """The module for the settings ``compile`` and ``sharding``. Each of its children is sharded by itself, unless the module
    has a ``configure_model`` of its own.

    Raises:
        Unsupported: The module has parameters outside of its children, or FSDP2 cannot shard it.
    """
    import torch

    run = init()
    reshard = resharding(run)
    if reshard is not None and type(module).configure_model.__module__.startswith(("lightning.", "pytorch_lightning.")):
        _shard_children(run, module, reshard)
    mode = {"None": None, "Fuse": "default", "Graph": "reduce-overhead"}[run.settings.compile]
    return module if mode is None else torch.compile(module, mode=mode)


def _shard_children(run: Run, module: Any, reshard: bool) -> None:
    """Shards the children when the Trainer has made the mesh: it calls ``training_step``, so that the hooks of the module's
    own ``forward`` would not run."""
    if any(True for _ in module.parameters(recurse=False)):
        raise Unsupported(
            "settings.sharding: the LightningModule has parameters of its own: move them into a child, or shard it in "
            "configure_model()"
        )

    def configure_model() -> None:
        for child in module.children():
            if any(True for _ in child.parameters()):
                shard(run, child, module.device_mesh["data_parallel"], reshard)

    module.configure_model = configure_model


def _settings(run: Run) -> dict[str, Any]:
    settings = run.settings
    found: dict[str, Any] = {}
    if settings.is_given("precision"):
        precision = settings.one_of("precision", "fp32", "tf32", "bf16", "fp16")
        if run.device == "cpu" and precision in ("tf32", "fp16"):
            raise Unsupported(f"settings.precision: {precision} needs a GPU: use fp32 or bf16")
        import torch

        torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
        found["precision"] = {"bf16": "bf16-mixed", "fp16": "16-mixed"}.get(precision, "32-true")
    if settings.is_given("gradient_clip"):
        found["gradient_clip_val"] = settings.gradient_clip
    if settings.is_given("deterministic"):
        found["deterministic"] = settings.deterministic
    if resharding(run) is not None:
        if found.get("precision") == "16-mixed":
            raise Unsupported("settings.sharding: Lightning's ModelParallelStrategy does not support fp16: use bf16")
        found["strategy"] = _fsdp(run)
    elif settings.is_given("sharding"):
        found["strategy"] = "ddp" if run.world_size > 1 else "auto"
    return found


def _fsdp(run: Run) -> Any:
    """Lightning's strategy for FSDP2, with checkpoints in one file, as with DDP."""
    package = _Callback.__module__.partition(".callbacks")[0]
    strategy = importlib.import_module(f"{package}.strategies").ModelParallelStrategy
    return strategy(data_parallel_size=run.world_size, tensor_parallel_size=1, save_distributed_checkpoint=False)


def _length(run: Run, accumulation: int) -> dict[str, Any]:
    epochs = run.budget.epochs
    steps = -1 if epochs is not None else max(1, run.budget.most_steps(run.batch_size * accumulation) or 0)
    found: dict[str, Any] = {"max_steps": steps, "max_epochs": -1 if epochs is None else epochs}
    if not run.validates:
        return found | {"limit_val_batches": 0}
    # Never by itself: the callback decides when.
    return found | {"val_check_interval": _NEVER, "check_val_every_n_epoch": None}


class PawlCallback(_Callback):  # type: ignore[misc]
    """Measures the Trainer's steps, and decides when it saves and stops. Part of :func:`arguments`."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._ended_step = 0.0
        self._items = 0
        self._loss: Any = None
        self._first: dict[str, float] | None = None
        self._begun = False
        self._place: DataPlace | None = None

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self._begin(trainer)
        self._place = _place(trainer, self._run)
        self._time_broadcasts(trainer.fit_loop.epoch_loop)

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        # The Trainer skips all of the training when the checkpoint is at its end.
        if not self._begun:
            self._begin(trainer)

    def _begin(self, trainer: Any) -> None:
        run = self._run
        self._begun = True
        # The Trainer has replaced it by its own, which ends training without a checkpoint.
        handle_signals()
        # The launch's budget is its length: a least number of epochs or steps would make Lightning ignore its end.
        trainer.fit_loop.min_epochs = trainer.fit_loop.epoch_loop.min_steps = None
        # Before the start, which ends a preflight.
        _require_batch_size(trainer, run)
        # The callback stops the Trainer, at its last step at the latest.
        run.start(items_per_epoch=_items_per_epoch(trainer, run), until_done=True)
        run.reads(getattr(trainer, "train_dataloader", None))
        if trainer.global_step != run.step_count:
            raise Unsupported(
                f"fit() begins at step {trainer.global_step}, the checkpoint is of step {run.step_count}: call "
                "trainer.fit(..., ckpt_path=lightning.checkpoint())"
            )
        if self._first is not None and run.should_evaluate:
            run.report(_validation(self._first))
        # The checkpoint may be at the end of the budget. A validation that is due needs a step before.
        if run.is_done and not run.should_evaluate:
            trainer.should_stop = True

    def _time_broadcasts(self, loop: Any) -> None:
        """Counts Lightning's collective before each batch as a wait for other ranks, not for the loader. Its method is private:
        where it has another name, nothing is changed."""
        name = "_broadcast_sigterm_tensor"
        broadcast = getattr(loop, name, None)
        # fit() may have been called before.
        if broadcast is None or name in vars(loop):
            return

        def timed() -> None:
            with self._run.waiting():
                broadcast()
            self._ended_step = time.perf_counter()

        setattr(loop, name, timed)

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        # The first epoch has begun already.
        if self._place is not None and self._place.batches:
            self._place.end_epoch()
            self._place.renew(self._run.seed)

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        if self._place is not None:
            self._place.see(batch)
        self._run.begin_step(time.perf_counter() - self._ended_step if self._ended_step else 0.0)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        run = self._run
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        if loss is not None:
            # Divided by the number of micro-steps already.
            self._loss = loss.detach() if self._loss is None else self._loss + loss.detach()
        self._items += run.batch_size
        if trainer.global_step > run.step_count:
            accumulation = trainer.accumulate_grad_batches
            run.step(items=run.batch_size * accumulation, processed=self._items, loss=self._loss)
            self._items, self._loss = 0, None
            if run.is_done:
                trainer.should_stop = True
            # The number of batches between validations: one follows now, or none.
            trainer.val_check_batch = 1 if run.should_evaluate else _NEVER
            # The validation decides whether the checkpoint is the best one.
            if not run.should_evaluate:
                self._save(trainer)
        self._ended_step = time.perf_counter()

    def on_validation_batch_end(self, *arguments: Any, **named: Any) -> None:
        self._run.heartbeat()

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        run = self._run
        metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
        if trainer.sanity_checking:
            self._first = metrics
            return
        if run.should_evaluate:
            run.report(_validation(metrics))
        trainer.val_check_batch = _NEVER
        if run.is_done:
            trainer.should_stop = True
        self._save(trainer)

    def _save(self, trainer: Any) -> None:
        run = self._run
        if run.should_checkpoint:
            with run.checkpoint() as directory:
                # All ranks call it; it decides which of them write.
                trainer.save_checkpoint(directory / _FILE)
        run.end_if_stopped()


class _Fetched(Loaders):
    """The batches that Lightning fetches: it counts those of a resumed epoch, but begins with the first one again."""

    def __init__(self, fetcher: Any, loaders: list[Any]) -> None:
        super().__init__(loaders)
        self._fetcher = fetcher

    def __iter__(self) -> Iterator[Any]:
        iter(self._fetcher)
        return self._batches()

    def _batches(self) -> Iterator[Any]:
        for batch, *_ in iter(lambda: next(self._fetcher, None), None):
            # Lightning adds those that were seen before.
            self._fetcher.fetched -= 1
            yield batch


def _place(trainer: Any, run: Run) -> DataPlace | None:
    """The place in the training data, from which Lightning continues; ``None`` where it is not kept, or where Lightning restores
    the loaders by their own states."""
    if not run.keeps_checkpoints:
        return None
    fetcher = getattr(trainer.fit_loop, "_data_fetcher", None)
    loaders = getattr(getattr(fetcher, "combined_loader", None), "flattened", None)
    if loaders is None:
        # Their names are private.
        _log.warning("this version of Lightning is not known: an epoch that is resumed begins with its first batch again")
        return None
    if all(hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict") for loader in loaders):
        return None
    place = run.place_in(_Fetched(fetcher, loaders))
    if place.batches >= trainer.num_training_batches:
        place.end_epoch()
        loop = trainer.fit_loop.epoch_loop
        if not getattr(loop, "restarted_on_train_batch_end", False):
            # After the validation at the end of an epoch, Lightning would add a batch to it.
            loop.batch_progress.reset_on_run()
    place.begin(run.seed)
    return place


def _validation(metrics: dict[str, float]) -> dict[str, float]:
    """The validation metrics among those that the module has logged.

    Raises:
        InvalidPlan: There is no validation loss.
    """
    found = {name.removeprefix("val_"): value for name, value in metrics.items() if name.startswith("val_")}
    if "loss" not in found and "loss" in metrics:
        found["loss"] = metrics["loss"]
    if "loss" not in found:
        logged = ", ".join(metrics) or "nothing"
        raise InvalidPlan(f"val_loss: not logged: log the validation loss as `val_loss` in validation_step; logged: {logged}")
    return found


def _require_batch_size(trainer: Any, run: Run) -> None:
    """Fails where the training loader has another batch size than the manifest: items would be counted that no step has seen.

    Raises:
        Unsupported: It has.
    """
    # A loader with a batch sampler of its own, or one that is not PyTorch's, has none.
    size = getattr(trainer.train_dataloader, "batch_size", None)
    if run.settings.is_given("batch_per_gpu") and isinstance(size, int) and size != run.batch_size:
        raise Unsupported(
            f"settings.batchPerGpu: the training DataLoader has batch_size {size}, the launch {run.batch_size}: give it "
            "batch_size=run.batch_size, or **pawl_launch.pytorch.loader_arguments(run)"
        )


def _items_per_epoch(trainer: Any, run: Run) -> int | None:
    batches = trainer.num_training_batches
    return None if batches == float("inf") else int(batches) * run.batch_size * run.world_size
