"""The settings become the arguments of the frameworks that have their effect."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import Launch, environment

HF = "hf.arguments(output_dir='out', per_device_train_batch_size=2)"
HF_OWN = "hf.arguments(output_dir='out', bf16=True, optim='adafactor', dataloader_num_workers=2)"
LIGHTNING = "lightning.arguments(max_epochs=3)"
ACCELERATE = "accelerate.arguments()"
CASES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    (HF, {}, {"per_device_train_batch_size": 2, "seed": 7, "max_steps": 7, "logging_nan_inf_filter": False}),
    (HF, {"batchPerGpu": 4, "globalBatch": 24}, {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 6}),
    (HF, {"precision": "fp32"}, {"bf16": False, "fp16": False, "tf32": False}),
    (HF, {"precision": "tf32"}, {"bf16": False, "fp16": False, "tf32": True}),
    (HF, {"precision": "bf16"}, {"bf16": True, "fp16": False}),
    (HF, {"precision": "fp16"}, {"bf16": False, "fp16": True}),
    (HF, {"compile": "None"}, {"torch_compile": False}),
    (HF, {"compile": "Fuse"}, {"torch_compile": True, "torch_compile_mode": "default"}),
    (HF, {"compile": "Graph"}, {"torch_compile": True, "torch_compile_mode": "reduce-overhead"}),
    (HF, {"optimizerKernel": "PerTensor"}, {"optim": "adamw_torch"}),
    (HF, {"optimizerKernel": "Fused"}, {"optim": "adamw_torch_fused"}),
    (HF, {"workload": {"optim": "adamw_bnb_8bit"}}, {"optim": "adamw_bnb_8bit"}),
    (HF, {"activationCheckpointing": "Full"}, {"gradient_checkpointing": True}),
    (
        HF,
        {"loaderWorkers": 3, "loaderPrefetch": 5, "loaderPinned": True},
        {"dataloader_num_workers": 3, "dataloader_prefetch_factor": 5, "dataloader_pin_memory": True},
    ),
    (HF, {"sharding": "None"}, {"fsdp": None}),
    (HF, {"sharding": "Zero2"}, {"fsdp_config": {"version": 2, "reshard_after_forward": False}}),
    (
        HF,
        {"sharding": "Full", "activationCheckpointing": "Full"},
        {
            "fsdp": True,
            "fsdp_config": {"version": 2, "reshard_after_forward": True, "activation_checkpointing": True},
            "gradient_checkpointing": False,
        },
    ),
    (
        f"TrainingArguments(**{HF}).fsdp_plugin_args",
        {"sharding": "Zero2"},
        {"fsdp_version": 2, "reshard_after_forward": False, "auto_wrap_policy": "TRANSFORMER_BASED_WRAP"},
    ),
    (HF, {"gradientClip": "0.5", "learningRate": "1e-4"}, {"max_grad_norm": 0.5, "learning_rate": 1e-4}),
    # What the manifest does not give is the script's.
    (HF_OWN, {}, {"bf16": True, "optim": "adafactor", "dataloader_num_workers": 2}),
    ("hf.model_arguments()", {"attention": "Math"}, {"attn_implementation": "eager"}),
    ("hf.model_arguments()", {"attention": "Flash"}, {"attn_implementation": "sdpa"}),
    (LIGHTNING, {"precision": "bf16"}, {"precision": "bf16-mixed"}),
    (LIGHTNING, {"precision": "fp16"}, {"precision": "16-mixed"}),
    (LIGHTNING, {"precision": "tf32"}, {"precision": "32-true"}),
    (LIGHTNING, {"batchPerGpu": 2, "globalBatch": 8}, {"accumulate_grad_batches": 4, "max_steps": 7, "limit_val_batches": 0}),
    (LIGHTNING, {"gradientClip": "1.5"}, {"gradient_clip_val": 1.5, "accelerator": "gpu", "devices": 1}),
    (LIGHTNING, {"sharding": "None"}, {"strategy": "ddp"}),
    ("{'strategy': type(lightning.arguments()['strategy']).__name__}", {"sharding": "Full"}, {"strategy": "ModelParallelStrategy"}),
    ("vars(accelerate.arguments()['fsdp_plugin'])", {"sharding": "Full"}, {"fsdp_version": 2, "reshard_after_forward": True}),
    ("vars(accelerate.arguments()['fsdp_plugin'])", {"sharding": "Zero2"}, {"reshard_after_forward": False}),
    (ACCELERATE, {"sharding": "None"}, {"fsdp_plugin": None}),
    (ACCELERATE, {"precision": "bf16"}, {"mixed_precision": "bf16"}),
    (ACCELERATE, {"precision": "tf32"}, {"mixed_precision": "no"}),
    (ACCELERATE, {"batchPerGpu": 2, "globalBatch": 8}, {"gradient_accumulation_steps": 4, "cpu": False}),
    ("{'mode': accelerate.arguments()['dynamo_plugin'].mode}", {"compile": "Graph"}, {"mode": "reduce-overhead"}),
    ("pytorch.optimizer_arguments(run)", {"optimizerKernel": "Fused", "learningRate": "0.1"}, {"fused": True, "lr": 0.1}),
    (
        "pytorch.loader_arguments(run)",
        {"batchPerGpu": 6, "loaderWorkers": 2, "loaderPrefetch": 3, "loaderPersistent": True},
        {"batch_size": 6, "num_workers": 2, "prefetch_factor": 3, "persistent_workers": True, "pin_memory": False},
    ),
    ("pytorch.loader_arguments(run)", {"loaderPersistent": True}, {"prefetch_factor": None, "persistent_workers": False}),
]

# One process for all cases: importing the frameworks takes longer than the rest.
SCRIPT = """
import json, os, sys
import pawl_launch.placement
# This machine may not have the GPU of the launch.
pawl_launch.placement.is_cpu = lambda run: run.device == "cpu"
import pawl_launch, pawl_launch.hf as hf, pawl_launch.lightning as lightning, pawl_launch.accelerate as accelerate
from pawl_launch import joining, pytorch
from transformers import TrainingArguments
found = []
for expression, settings in json.loads(open(sys.argv[1]).read()):
    plan = json.load(open(os.environ["PAWL_PLAN"]))
    json.dump(plan | {"settings": settings}, open(os.environ["PAWL_PLAN"], "w"))
    joining._run = None
    # Sharding needs several ranks.
    os.environ["PAWL_WORLD_SIZE"] = "2" if "sharding" in settings else "1"
    run = pawl_launch.init()
    found.append(eval(expression))
print(json.dumps(found, default=repr), flush=True)
os._exit(0)
"""


@pytest.fixture(scope="module")
def mapped(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each case evaluates to, in a launch with its settings, on a GPU."""
    launch = Launch(tmp_path_factory.mktemp("mapping"))
    cases = launch.directory / "cases.json"
    cases.write_text(json.dumps([[expression, settings] for expression, settings, _ in CASES]))
    (launch.directory / "plan.json").write_text(json.dumps(launch.plan))
    command = [sys.executable, "-c", SCRIPT, str(cases)]
    env = launch.environment() | {"PAWL_DEVICE": "cuda:0", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize("number", range(len(CASES)), ids=lambda number: f"{CASES[number][0]} {json.dumps(CASES[number][1])}")
def test_settings_become_arguments(number: int, mapped: list[dict[str, Any]]) -> None:
    expected = CASES[number][2]
    assert {name: mapped[number].get(name, "absent") for name in expected} == expected


@pytest.mark.parametrize("arguments", ["hf.arguments(output_dir='out')", "accelerate.arguments()"])
def test_a_gpu_that_pytorch_does_not_see_is_unsupported(arguments: str, launch: Launch) -> None:
    """The framework itself would train on the CPU."""
    script = f"import pawl_launch; from pawl_launch import accelerate, hf; pawl_launch.init(); {arguments}"
    (launch.directory / "plan.json").write_text(json.dumps(launch.plan))
    env = launch.environment() | {"PAWL_DEVICE": "cuda:0", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True)
    assert done.returncode == 20, done.stderr
    assert "the launch has a GPU, but PyTorch" in done.stderr


def test_by_hand_the_arguments_are_the_scripts(tmp_path: Path) -> None:
    script = "import pawl_launch.hf as hf, pawl_launch.lightning as l; print(hf.arguments(a=1), l.arguments(b=2), hf.checkpoint())"
    done = subprocess.run([sys.executable, "-c", script], env=environment(), capture_output=True, text=True, check=True)
    assert done.stdout == "{'a': 1} {'b': 2} None\n"


TRACKERS = """
import json, os, sys
import pawl_launch, pawl_launch.hf as hf, pawl_launch.lightning as lightning, pawl_launch.accelerate as accelerate
from pawl_launch import joining
found = {}
for plan in json.loads(sys.argv[1]):
    json.dump(plan, open(os.environ["PAWL_PLAN"], "w"))
    joining._run = None
    tracks = pawl_launch.init().tracks
    trainer = hf.arguments(output_dir="out", report_to=["mlflow"], logging_steps=5)
    logger = lightning.arguments(logger="own")["logger"]
    found[plan["kind"]] = [tracks, trainer["report_to"], trainer.get("logging_strategy"), logger, accelerate.arguments(log_with="wandb")["log_with"]]
print(json.dumps(found), flush=True)
os._exit(0)
"""


def test_only_the_training_has_the_trackers_of_the_script(launch: Launch) -> None:
    measured = launch.plan | {"kind": "Measure"}
    quality = launch.plan | {"kind": "Quality", "budget": {"items": 40}}
    plans = [measured, quality, launch.train(items=40).plan]
    (launch.directory / "plan.json").write_text(json.dumps(measured))
    command = [sys.executable, "-c", TRACKERS, json.dumps(plans)]
    done = subprocess.run(command, env=launch.environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    quiet = [False, "none", "no", False, None]
    train = [True, ["mlflow"], None, "own", "wandb"]
    assert json.loads(done.stdout.splitlines()[-1]) == {"Measure": quiet, "Quality": quiet, "Train": train}
