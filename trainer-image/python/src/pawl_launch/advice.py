"""What a script lacks, in the words of the library that it uses: a user of a Trainer has no loop to change."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace


@dataclass(frozen=True)
class Advice:
    """Remedies, each the part of a message after its last colon."""

    begin: str
    """The script ended before its first step."""
    go_on: str
    """The script ended before its budget was used up."""
    validate: str
    """No validation was reported."""
    resume: str
    """The checkpoint was not read."""
    save: str
    """No checkpoint was written."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """By setting: what reads it."""

    def read(self, names: Iterable[str]) -> str:
        """What reads the settings of these names of the manifest, each remedy once."""
        return ", and ".join(dict.fromkeys(self.settings.get(name) or _read(name) for name in names))


def _read(name: str) -> str:
    own = name.removeprefix("workload.")
    in_python = re.sub("[A-Z]", lambda letter: f"_{letter[0].lower()}", name)
    where = f"run.settings.{in_python}" if own == name else f"run.settings.workload[{own!r}]"
    return f"read {where} before the first step"


_LOOP = "iterate over run.steps(loader), which yields batches until the launch is done"
_PLAIN = Advice(
    begin=_LOOP,
    go_on=_LOOP,
    validate="give run.steps(evaluate=...) a function that returns the validation metrics",
    resume="load the files of run.get_checkpoint() before the first step",
    save="after run.step(), add 'if run.should_checkpoint:' with a block 'with run.checkpoint() as directory:' that writes the state",
)

_LOADER = "make the DataLoader with **pawl_launch.pytorch.loader_arguments(run)"
_OPTIMIZER = "make the optimizer with **pawl_launch.pytorch.optimizer_arguments(run)"
_COMMON = {
    "batchPerGpu": _LOADER,
    "loaderWorkers": _LOADER,
    "loaderPrefetch": _LOADER,
    "loaderPinned": _LOADER,
    "loaderPersistent": _LOADER,
    "optimizerKernel": _OPTIMIZER,
    "learningRate": _OPTIMIZER,
    "weightDecay": _OPTIMIZER,
    "attention": "run the model in 'with pawl_launch.pytorch.attention(run):'",
    "loaderAsyncCopy": "copy batches by pawl_launch.pytorch.to_device(run, tensor, device)",
}
_PREPARE = "apply it by model = pawl_launch.pytorch.prepare(run, model, device)"
_SETUP = "call pawl_launch.pytorch.setup(run)"
_ACCELERATOR = "make the Accelerator with **pawl_launch.accelerate.arguments()"
_MODULE = "apply it by module = pawl_launch.lightning.prepare(module)"
_TRAINER_STOPPED = "remove what stops the Trainer, such as a callback for early stopping: the launch determines its end"

# By module of this package; the first one that the script has imported applies.
_BY_MODULE = {
    "hf": Advice(
        begin="make the Trainer with callbacks=[hf.PawlCallback()], and call trainer.train()",
        go_on=_TRAINER_STOPPED,
        validate="give the Trainer an eval_dataset",
        resume="call trainer.train(resume_from_checkpoint=hf.checkpoint())",
        save="make the Trainer with callbacks=[hf.PawlCallback()]",
        settings={"attention": "make the model with **hf.model_arguments()"},
    ),
    "lightning": Advice(
        begin="make the Trainer with **pawl_launch.lightning.arguments(), and call trainer.fit()",
        go_on=_TRAINER_STOPPED,
        validate="give trainer.fit() val_dataloaders, and log the validation loss as `val_loss` in validation_step",
        resume="call trainer.fit(ckpt_path=pawl_launch.lightning.checkpoint())",
        save="make the Trainer with **pawl_launch.lightning.arguments()",
        settings=_COMMON | {"compile": _MODULE, "sharding": _MODULE},
    ),
    "accelerate": replace(
        _PLAIN,
        resume="call pawl_launch.accelerate.resume(accelerator) after accelerator.prepare()",
        save="call pawl_launch.accelerate.save(accelerator) after run.step()",
        settings=_COMMON
        | dict.fromkeys(("accumulationSteps", "globalBatch", "precision", "compile", "sharding"), _ACCELERATOR),
    ),
    "pytorch": replace(
        _PLAIN,
        resume="call pawl_launch.pytorch.resume(run, model, optimizer) before the first step",
        save="call pawl_launch.pytorch.save(run, model, optimizer) after run.step()",
    ),
}
_PYTORCH_SETTINGS = _COMMON | {
    "compile": _PREPARE,
    "memoryFormat": _PREPARE,
    "sharding": _PREPARE,
    "precision": f"{_SETUP}, and run the model in 'with pawl_launch.pytorch.autocast(run, device):'",
    "deterministic": _SETUP,
}


def advice() -> Advice:
    """The remedies for this script."""
    imported = [known for module, known in _BY_MODULE.items() if f"{__package__}.{module}" in sys.modules]
    found = imported[0] if imported else _PLAIN
    if found.settings or "torch" not in sys.modules:
        return found
    return replace(found, settings=_PYTORCH_SETTINGS)
