"""Every gate of the manifests of Accelerate and Lightning, and of PyTorch on a CPU, can pass and can fail: a run of each kind is planted, and judged
by 'pawl run', with the gates and the seeds of the manifest, on its script at smoke size."""

import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import ROOT, Job
from test_examples import script, settings

MANIFESTS = [ROOT / "examples" / name / f"{kind}.yaml" for name in ("accelerate", "lightning") for kind in ("cpu", "gpu")]
MANIFESTS.append(ROOT / "examples/pytorch/cpu.yaml")


def name(path: Path) -> str:
    return f"{path.parent.name}/{path.name}"


def spec_of(path: Path) -> dict[str, Any]:
    return yaml.safe_load(path.read_text())["spec"]


def smoke(framework: str, path: Path) -> tuple[dict[str, Any], int]:
    """Settings and items of a launch of the gates: those of a manifest for CPUs, in which only the accumulation is left out; of one
    for GPUs, so many that the script learns four times what the gate allows."""
    spec = spec_of(path)
    given = spec["settings"] if path.stem == "cpu" else settings()
    items = spec["analysis"]["qualityItems"] if path.stem == "cpu" else ITEMS[framework]
    return {"batchPerGpu": 32, "globalBatch": 32, "learningRate": given["learningRate"]}, items


# Of the model of the CPU.
ITEMS = {"lightning": 1024, "accelerate": 16384}


def test_every_gate_of_every_manifest_has_a_planted_pair() -> None:
    for path in MANIFESTS:
        gates = spec_of(path).get("gates", {})
        assert set(gates) == {"validationLossDelta"}, f"{name(path)}: plant a run that passes and one that fails for each new gate"


@pytest.mark.parametrize("path", MANIFESTS, ids=name)
def test_every_gate_passes_and_fails(path: Path, job: Job) -> None:
    framework, spec = path.parent.name, spec_of(path)
    base, items = smoke(framework, path)
    phase = lambda name, given: {"name": name, "minSpeedup": "0.05", "numerics": "Changed", "settings": given}  # noqa: E731
    # A warm interpreter imports the framework once for all launches of an attempt.
    job.write(
        [sys.executable, "-m", "pawl_launch.warm", str(script(framework))],
        {
            "settings": base,
            "seeds": spec["seeds"],
            "phases": [phase("passes", {"optimizerKernel": "Fused"}), phase("fails", {"learningRate": "1e-9"})],
            "analysis": {"warmupSteps": 20, "windowSteps": 100, "minPairs": 1, "maxPairs": 3, "qualityItems": items},
            "gates": spec["gates"],
            "train": {},
            "lifecycle": {"hangTimeout": "120s"},
        },
    )
    code, status = job.run()
    assert code == 0, status
    found = {phase["name"]: phase for phase in status["phases"]}
    assert found["passes"]["state"] == "Accepted", found["passes"]
    failed = found["fails"]
    assert (failed["state"], failed["reason"]) == ("RolledBack", "QualityBelowThreshold"), failed
    assert all(gate in failed["message"] for gate in spec["gates"]), failed["message"]
    assert status["bundle"]["reason"] == "GoalMet", status["bundle"]
