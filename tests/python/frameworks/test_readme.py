"""The scripts of the page 'Bring your script' run as they are, by hand and in launches; and a script that lacks one of their lines
is given the advice of its framework."""

import json
import re
import subprocess
import sys
from typing import Any

import pytest
from conftest import ROOT, Launch, environment

PAGE = (ROOT / "trainer-image/python/README.md").read_text()
NAMES = ["pytorch", "huggingface", "lightning", "accelerate"]
# The first block has no framework.
SCRIPTS = dict(zip(NAMES, re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)[1:]))


@pytest.mark.parametrize("framework", NAMES)
def test_by_hand(framework: str, launch: Launch) -> None:
    path = launch.directory / "train.py"
    path.write_text(SCRIPTS[framework])
    env = {name: value for name, value in environment().items() if not name.startswith("PAWL_")}
    done = subprocess.run([sys.executable, str(path)], cwd=launch.directory, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("framework", NAMES)
def test_a_training_learns_and_keeps_a_checkpoint(framework: str, launch: Launch) -> None:
    launch.train(items=512)
    launch.plan["settings"] = {"batchPerGpu": 8, "globalBatch": 16, "compile": "None", "precision": "fp32"}
    if framework != "huggingface":
        launch.plan["settings"] |= {"optimizerKernel": "PerTensor", "learningRate": "3e-3"}
    code, report = launch.run(SCRIPTS[framework])
    assert (code, report["outcome"], report["items"]) == (0, "Done", 512), report.get("message")
    first, last = (report[name]["metrics"]["loss"] for name in ("firstValidation", "validation"))
    assert last < first and report["lastCheckpoint"]["items"] == 512
    assert launch.run(SCRIPTS[framework])[0] == 0, "it resumes at the end"


QUALITY = {"kind": "Quality", "budget": {"items": 32}}
PREFLIGHT: dict[str, Any] = {"kind": "Preflight", "budget": {}}


def phase(**settings: Any) -> dict[str, Any]:
    return {"settings": {"batchPerGpu": 4, **settings}}


LIGHTNING_ARGUMENTS = "**pawl_launch.lightning.arguments(max_epochs=1)"
VAL_LOSS = "log the validation loss as `val_loss` in validation_step; logged: valid/mse"
BATCH_SIZE = "settings.batchPerGpu: the training DataLoader has batch_size 16, the launch 4"


@pytest.mark.parametrize(
    ("framework", "replaced", "plan", "expected"),
    [
        ("lightning", ('"val_loss"', '"valid/mse"'), QUALITY, VAL_LOSS),
        ("lightning", ("loader, held_out,", "loader,"), QUALITY, "give trainer.fit() val_dataloaders"),
        ("lightning", (LIGHTNING_ARGUMENTS, "max_epochs=1"), PREFLIGHT, "with **pawl_launch.lightning.arguments()"),
        ("lightning", ("**pytorch.loader_arguments(run)", "batch_size=16"), PREFLIGHT, BATCH_SIZE),
        ("huggingface", ("callbacks=[hf.PawlCallback()],", ""), PREFLIGHT, "make the Trainer with callbacks=[hf.PawlCallback()]"),
        ("huggingface", (', "labels": row}', "}"), QUALITY, "eval_loss: not among the metrics"),
        ("huggingface", ("**hf.model_arguments()", ""), phase(attention="Flash"), "make the model with **hf.model_arguments()"),
        ("accelerate", ('{"loss":', '{"mse":'), QUALITY, "run.steps(evaluate=...): no metric 'loss', only mse"),
        ("accelerate", ("**pawl_launch.accelerate.arguments()", ""), phase(compile="Fuse"), "make the Accelerator with"),
        ("pytorch", ("pytorch.prepare(run, network, device)", "network"), phase(compile="Fuse"), "pytorch.prepare(run, model"),
    ],
    ids=lambda value: value if isinstance(value, str) else json.dumps(value),
)
def test_advice(framework: str, replaced: tuple[str, str], plan: dict[str, Any], expected: str, launch: Launch) -> None:
    assert replaced[0] in SCRIPTS[framework]
    launch.plan |= plan
    code, report = launch.run(SCRIPTS[framework].replace(*replaced))
    assert code in (20, 21) and expected in report["message"], report
