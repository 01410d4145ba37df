"""The strangers: scripts as people have them, which know nothing of Pawl. Each has the interface of a kind of public script, or is a program of
the package itself; data are generated and small.

`phases` are those that `pawl tune` must at least propose; `accepts` those that are so much faster, by construction, that they must be kept. `says`
is what the proposal, or the refusal of one that `refuses`, must name. `progress` is a pattern of a line of progress with a count that grows,
of steps or of items, by which the script is measured by hand.
"""
from dataclasses import dataclass, field


@dataclass
class Stranger:
    name: str
    what: str
    command: list[str]
    progress: str = ""
    prepare: list[str] = field(default_factory=list)
    phases: set[str] = field(default_factory=set)
    accepts: set[str] = field(default_factory=set)
    says: str = ""
    refuses: bool = False


CORPUS = [
    Stranger("gpt", "GPT trainer with a configurator", ["train.py", "--eval_iters=2"], r"iter (\d+):",
             phases={"compile", "one-micro-batch"}, accepts={"one-micro-batch"}),
    Stranger("char-model", "character model, argparse", ["names.py"], r"step (\d+) \|", phases={"loader-workers"}, accepts={"loader-workers"},
             says="bound by its data loader"),
    Stranger("imagenet", "image classification with meters and epochs", ["main.py", "--dummy", "-j", "0"], r"Epoch: \[\d+\]\[ *(\d+)/",
             phases={"loader-workers"}, says="bound by its data loader"),
    Stranger("word-model", "word-level model", ["main.py"], r"\| epoch +\d+ \| +(\d+)/", phases={"larger-batch"}, accepts={"larger-batch"}),
    Stranger("mnist", "digits", ["main.py"], r"Train Epoch: \d+ \[(\d+)/", phases={"larger-batch"}),
    Stranger("ddp", "tutorial on data parallel training, by torchrun", ["multigpu_torchrun.py", "50", "10"], refuses=True,
             says="print the step and the training loss"),
    Stranger("clm", "Trainer with a causal model", ["run_clm.py", "--output_dir", "out", "--do_train", "--do_eval", "--logging_steps", "10",
                                                    "--eval_strategy", "steps", "--eval_steps", "100", "--report_to", "none"],
             phases={"compile"}),
    Stranger("instructions", "fine-tuning on instructions, by the Trainer",
             ["train.py", "--data_path", "data.json", "--output_dir", "out", "--logging_steps", "5", "--report_to", "none"],
             prepare=["python3", "prepare.py"]),
    Stranger("no-trainer", "Accelerate without a trainer, no loss printed", ["run_no_trainer.py"], refuses=True,
             says="print the step and the training loss"),
    Stranger("lightning", "Lightning's Trainer", ["train.py"], r"Epoch \d+: .*?(\d+)/\d+ "),
    Stranger("lightning-cli", "LightningCLI", ["main.py", "fit", "--trainer.logger=false", "--trainer.enable_checkpointing=false",
                                               "--trainer.accelerator=cpu"], r"Epoch \d+: .*?(\d+)/\d+ "),
    Stranger("fabric", "Lightning Fabric, without a validation", ["train_fabric.py"], refuses=True, says="no validation loss was seen"),
    Stranger("timm", "model of timm, options in two parsers", ["train.py", "--model", "test_resnet"], r"Train: \d+ \[ *(\d+)/",
             phases={"compile"}),
    Stranger("diffusion", "diffusion model of diffusers, Accelerate", ["train_unconditional.py"], r"Epoch \d+: .*?(\d+)/\d+ ",
             phases={"compile"}),
    # An epoch is a step of it; that a line per epoch is one of its steps cannot be told.
    Stranger("graph", "graph network of PyTorch Geometric", ["gcn.py"], refuses=True, says="print the step and the training loss"),
    Stranger("hydra", "options by hydra, without a validation", ["train.py"], r"step (\d+) ", phases={"compile"}),
]
