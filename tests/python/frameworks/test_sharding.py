"""The setting `sharding` on two ranks: FSDP2 trains as DDP does, and resumes from its checkpoints."""

from pathlib import Path
from typing import Any

import pytest
from conftest import Launch
from test_examples import PROBE, ended, port, script, settings, torchrun

SCRIPTS = {"pytorch": script("pytorch"), "lightning": Path(__file__).with_name("blocks.py")}


def trained(launch: Launch, path: Path) -> tuple[dict[str, Any], str]:
    """Runs two ranks to the end of their budget; the report, and what they print."""
    at, printed = port(), ""
    ranks = [launch.start(PROBE, rank, 2, [str(path)], NODE_RANK="0", **torchrun(rank, 2, at)) for rank in range(2)]
    for process in ranks:
        out, err = process.communicate(timeout=300)
        print(err)
        printed += out
    report = launch.report()
    assert [process.returncode for process in ranks] == [0, 0], report.get("message")
    return report, printed


@pytest.mark.parametrize("framework", SCRIPTS)
def test_fsdp_trains_as_ddp_does_and_resumes_from_its_checkpoints(framework: str, tmp_path: Path) -> None:
    losses = []
    for number, stages in enumerate([("None", "None"), ("Full", "None"), ("None", "Zero2")]):
        launch = Launch(tmp_path / f"{number}")
        launch.directory.mkdir()
        for items, sharding in zip((96, 160), stages):
            launch.train(items=items).plan["settings"] = settings(sharding=sharding)
            report, printed = trained(launch, SCRIPTS[framework])
            assert (report["steps"], report["lastCheckpoint"]["items"]) == (items // 16, items)
            assert printed.count(f"sharded [{sharding != 'None'}]") == 2
        losses.append(report["validation"]["metrics"]["loss"])
    assert losses == pytest.approx([losses[0]] * 3, rel=1e-4)


@pytest.mark.parametrize("framework", ["huggingface", "accelerate"])
def test_a_checkpoint_that_accelerate_has_written_with_fsdp_is_not_resumed_without(framework: str, launch: Launch) -> None:
    launch.train(items=32).plan["settings"] = settings()
    [(code, report)] = ended(launch, script(framework))
    assert code == 0
    (launch.directory / "checkpoints" / report["lastCheckpoint"]["name"] / "pytorch_model_fsdp.bin").touch()
    launch.plan["budget"]["items"] = 64
    [(code, report)] = ended(launch, script(framework))
    assert code == 20 and "was written with FSDP2" in report["message"]


@pytest.mark.parametrize(
    ("framework", "world_size", "message"),
    [
        ("pytorch", 1, "settings.sharding: Full needs several ranks"),
        ("huggingface", 2, "settings.sharding: Accelerate shards on GPUs only"),
        ("accelerate", 2, "settings.sharding: Accelerate shards on GPUs only"),
        ("lightning", 2, "settings.sharding: FSDP2 cannot shard GRU"),
    ],
)
def test_what_cannot_be_sharded_is_unsupported(framework: str, world_size: int, message: str, launch: Launch) -> None:
    launch.plan["settings"] = settings(sharding="Full")
    for code, report in ended(launch, script(framework), world_size):
        assert code == 20 and report["message"].startswith(message), report["message"]
