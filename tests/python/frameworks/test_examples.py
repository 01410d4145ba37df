"""The examples as launches: each framework measures, trains, stops, resumes, and ends with the outcome of its failure."""

import itertools
import json
import random
import signal
import socket
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, Launch, wait_until

FRAMEWORKS = ["pytorch", "huggingface", "lightning", "accelerate"]
PLANTED = Path(__file__).with_name("planted.py")
PROBE = Path(__file__).with_name("probe.py")
every_framework = pytest.mark.parametrize("framework", FRAMEWORKS)


# Exit handlers run in the reverse order of their registration: this one after that of the package.
GROUPS = """
import atexit, torch
atexit.register(lambda: print("in a group:", torch.distributed.is_initialized()))
import pawl_launch
from pawl_launch import pytorch
run = pawl_launch.init()
pytorch.setup(run)
for _ in run.steps([run.batch_size] * 8, items_per_epoch=64):
    run.step()
"""


def script(framework: str) -> Path:
    return ROOT / "examples" / framework / "train.py"


# A script listens only after its imports: these are neither ports that Linux gives to connections of its own accord, nor those
# that agents choose.
PORTS = itertools.cycle(random.sample(range(10_000, 20_000), 10_000))


def is_free(number: int) -> bool:
    with socket.socket() as listener:
        return listener.connect_ex(("127.0.0.1", number)) != 0


def port() -> str:
    """A port on which nothing listens, another one in each call."""
    return str(next(number for number in PORTS if is_free(number)))


def torchrun(rank: int, world_size: int, master_port: str) -> dict[str, str]:
    """The variables of PyTorch's ``env://``, as the agent sets them."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": master_port,
        "CUDA_VISIBLE_DEVICES": "",
    }


def ended(launch: Launch, path: Path, world_size: int = 1) -> list[tuple[int, dict[str, Any]]]:
    """Runs all ranks to their end; the exit code and the report of each."""
    at = port()
    ranks = [launch.start(path, rank, world_size, **torchrun(rank, world_size, at)) for rank in range(world_size)]
    for process in ranks:
        out, err = process.communicate(timeout=300)
        print(out, err)
    return [(process.returncode, launch.report(rank)) for rank, process in enumerate(ranks)]


def settings(**more: Any) -> dict[str, Any]:
    return {"batchPerGpu": 4, "globalBatch": 16, "learningRate": "3e-3", **more}


@every_framework
def test_measure(framework: str, launch: Launch) -> None:
    launch.plan["settings"] = settings()
    [(code, report)] = ended(launch, script(framework))
    assert (code, report["outcome"], report["steps"], report["items"]) == (0, "Done", 7, 112)
    speed = report["itemsPerSecond"] * report["stepSeconds"]["median"]
    assert 4 < speed < 64, "16 items a step, within the noise of a busy machine"
    assert report["losses"] and 0 <= report["loaderWaitShare"] <= 1 and report["peakMemoryBytes"] > 1 << 20


@pytest.mark.parametrize(("fault", "steps", "steady"), [("Warm", 42, None), ("Slower", 102, False)])
@every_framework
def test_a_measurement_has_further_windows_until_its_speed_is_steady(
    framework: str, fault: str, steps: int, steady: bool | None, launch: Launch
) -> None:
    launch.plan |= {"settings": settings(batchPerGpu=16), "budget": {"warmupSteps": 2, "windowSteps": 20}}
    process = launch.start(PLANTED, arguments=[str(script(framework)), fault], **torchrun(0, 1, port()))
    _, err = process.communicate(timeout=300)
    report = launch.report()
    assert (process.returncode, report["outcome"], report.get("steady")) == (0, "Done", steady), err
    assert report["steps"] == steps


@every_framework
def test_preflight(framework: str, launch: Launch) -> None:
    launch.plan |= {"kind": "Preflight", "budget": {}, "settings": settings()}
    [(code, report)] = ended(launch, script(framework))
    assert (code, report["outcome"], report.get("steps", 0)) == (0, "Done", 0)
    assert report["itemsPerEpoch"] > 1000
    launch.plan["settings"]["ropeCache"] = "Cached"
    [(code, report)] = ended(launch, script(framework))
    assert code == 20 and "settings.ropeCache: not used by this script" in report["message"]


@every_framework
def test_training_stops_and_resumes(framework: str, launch: Launch) -> None:
    launch.train(items=1_000_000)
    launch.plan["settings"] = settings()
    process = launch.start(script(framework), **torchrun(0, 1, port()))
    wait_until(lambda: launch.progress().get("step", 0) > 3)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=120)
    report = launch.report()
    assert (process.returncode, report["outcome"]) == (30, "Stopped"), err
    stopped = report["lastCheckpoint"]
    assert stopped["step"] == report["steps"] > 3

    launch.plan["budget"]["items"] = stopped["items"] + 48
    launch.plan["checkpoint"]["expected"] = stopped
    [(code, report)] = ended(launch, script(framework))
    assert (code, report["items"], report["steps"]) == (0, stopped["items"] + 48, stopped["step"] + 3)
    assert report["firstValidation"]["items"] == 0 and report["validation"]["items"] == report["items"]
    assert report["validation"]["metrics"]["loss"] < report["firstValidation"]["metrics"]["loss"], "it has learned"


@pytest.mark.parametrize("length", [{"items": 32}, {"epochs": 1}], ids=["items", "epochs"])
@every_framework
def test_a_checkpoint_at_the_end_of_the_budget_is_reported_again(
    framework: str, length: dict[str, int], launch: Launch
) -> None:
    launch.train(items=32)
    launch.plan["budget"] = length
    launch.plan["settings"] = settings(batchPerGpu=64, globalBatch=256) if "epochs" in length else settings()
    reports = [ended(launch, script(framework))[0] for _ in range(2)]
    first, again = (report for _, report in reports)
    assert [(code, report["outcome"]) for code, report in reports] == [(0, "Done")] * 2
    assert first["items"] == again["items"] == length.get("items", first["itemsPerEpoch"])
    assert first["validation"] == again["validation"] and again["validation"]["items"] == first["items"]
    if framework == "lightning":
        return  # It evaluates nothing before the first step after a checkpoint.
    # As the checkpoint of another job, from which a job resumes: its validation is not known.
    [manifest] = launch.directory.glob("checkpoints/*/pawl.json")
    kept = json.loads(manifest.read_text())
    # Without its hash, which would not match any more: as an earlier version has written it.
    del kept["state"]["validation"], kept["sha256"]
    manifest.write_text(json.dumps(kept))
    [(code, report)] = ended(launch, script(framework))
    assert (code, report["items"]) == (0, first["items"]), report["message"]
    assert report["validation"] == {**first["validation"], "metrics": pytest.approx(first["validation"]["metrics"])}


@every_framework
def test_validation_is_at_equal_items(framework: str, launch: Launch) -> None:
    launch.train(items=128)
    launch.plan["budget"]["evalEveryItems"] = 32
    losses = []
    for batch in (4, 16):
        launch.plan["settings"] = settings(batchPerGpu=batch)
        launch.plan["checkpoint"]["resume"] = False
        [(code, report)] = ended(launch, script(framework))
        assert (code, report["items"], report["validation"]["items"]) == (0, 128, 128)
        losses.append(report["validation"]["metrics"]["loss"])
    # The same seed and the same items per step: the same training, in fewer micro-steps.
    assert losses[0] == pytest.approx(losses[1], rel=0.02)


@every_framework
def test_a_loss_that_is_nan_ends_the_launch(framework: str, launch: Launch) -> None:
    launch.plan |= {"budget": {"warmupSteps": 2, "windowSteps": 30}, "settings": settings(learningRate="1e30")}
    [(code, report)] = ended(launch, script(framework))
    assert (code, report["outcome"]) == (12, "NonFinite"), report["message"]


@every_framework
def test_out_of_memory_ends_the_launch(framework: str, launch: Launch) -> None:
    launch.plan["settings"] = settings(batchPerGpu=1)
    process = launch.start(PLANTED, arguments=[str(script(framework)), "OutOfMemory"])
    out, err = process.communicate(timeout=300)
    report = launch.report()
    assert (process.returncode, report["outcome"]) == (10, "OutOfMemory"), out + err
    assert "Tried to allocate" in report["message"]


@every_framework
def test_two_ranks_train_as_one_gang(framework: str, launch: Launch) -> None:
    launch.train(items=192)
    launch.plan["settings"] = settings()
    (code, report), (other, _) = ended(launch, script(framework), world_size=2)
    assert (code, other, report["outcome"]) == (0, 0, "Done")
    assert (report["steps"], report["items"]) == (12, 192)
    assert report["lastCheckpoint"]["items"] == report["validation"]["items"] == 192


@pytest.mark.parametrize("kind", ["Measure", "Preflight"])
def test_ranks_have_left_their_groups_when_the_interpreter_ends(kind: str, launch: Launch) -> None:
    if kind == "Preflight":
        launch.plan |= {"kind": kind, "budget": {}}
    at = port()
    ranks = [launch.start(GROUPS, rank, 2, **torchrun(rank, 2, at)) for rank in range(2)]
    for process in ranks:
        out, err = process.communicate(timeout=120)
        assert (process.returncode, out) == (0, "in a group: False\n"), err


@every_framework
def test_two_ranks_stop_at_the_same_step(framework: str, launch: Launch) -> None:
    launch.train(items=1_000_000)
    launch.plan["settings"] = settings()
    at = port()
    ranks = [launch.start(script(framework), rank, 2, **torchrun(rank, 2, at)) for rank in range(2)]
    wait_until(lambda: launch.progress().get("step", 0) > 3)
    # Only one of them is asked.
    ranks[1].send_signal(signal.SIGTERM)
    for process in ranks:
        process.communicate(timeout=120)
    reports = [launch.report(rank) for rank in range(2)]
    assert [process.returncode for process in ranks] == [30, 30]
    assert reports[0]["steps"] == reports[1]["steps"] == reports[0]["lastCheckpoint"]["step"]


@pytest.mark.parametrize(
    ("framework", "given"),
    [
        (framework, given)
        for framework in FRAMEWORKS
        for given in (
            {"precision": "bf16"},
            {"optimizerKernel": "Fused"},
            {"loaderWorkers": 1, "loaderPrefetch": 4, "loaderPersistent": True},
        )
    ]
    + [
        ("pytorch", {"memoryFormat": "ChannelsLast"}),
        ("pytorch", {"activationCheckpointing": "Full"}),
        ("huggingface", {"activationCheckpointing": "Full"}),
        ("huggingface", {"attention": "Math"}),
        ("huggingface", {"attention": "Flash"}),
        ("huggingface", {"gradientClip": "0.5", "weightDecay": "0.1", "warmupSteps": 2}),
        ("huggingface", {"workload": {"optim": "adafactor"}}),
        ("lightning", {"gradientClip": "0.5"}),
    ],
    ids=lambda value: value if isinstance(value, str) else json.dumps(value),
)
def test_settings(framework: str, given: dict[str, Any], launch: Launch) -> None:
    launch.plan["settings"] = settings(**given)
    [(code, report)] = ended(launch, script(framework))
    assert (code, report["outcome"]) == (0, "Done"), report["message"]


def test_a_pretrained_model_is_trained_by_lora_and_resumes_from_its_adapter(launch: Launch) -> None:
    launch.plan |= {"workload": {"config": {"pretrainedSteps": 100}}}
    launch.plan["settings"] = settings(workload={"loraRank": 4})
    for items in (512, 1024):
        launch.train(items=items)
        [(code, report)] = ended(launch, script("huggingface"))
        assert (code, report["items"]) == (0, items), report["message"]
    assert report["validation"]["metrics"]["loss"] < report["firstValidation"]["metrics"]["loss"], "it has learned"
    saved = launch.directory / "checkpoints" / report["lastCheckpoint"]["name"]
    assert (saved / "adapter_model.safetensors").exists() and not (saved / "model.safetensors").exists()
    assert list((launch.directory / "data").iterdir()) == [launch.directory / "data/pretrained-100.pt"]


@pytest.mark.parametrize("framework", ["huggingface", "lightning", "accelerate"])
def test_a_precision_that_needs_a_gpu_is_unsupported(framework: str, launch: Launch) -> None:
    launch.plan["settings"] = settings(precision="tf32")
    [(code, report)] = ended(launch, script(framework))
    assert code == 20 and "settings.precision: tf32 needs a GPU" in report["message"]
