"""'pawl run' judges the manifests of the examples."""

import pytest
from conftest import ROOT, Job, phases
from test_examples import FRAMEWORKS


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_example(framework: str, job: Job) -> None:
    example = ROOT / "examples" / framework
    code, status = job.run(example / "cpu.yaml", SCRIPTS=str(example))
    assert code == 0
    found = phases(status)
    assert found.pop("larger-batch") == ("Accepted", "SpeedAboveThreshold")
    assert found.pop("high-rate") == ("RolledBack", "NonFinite")
    [(state, reason)] = found.values()
    assert state in ("RolledBack", "Inconclusive") and reason.startswith("Speed"), reason
    assert status["stage"] == "Complete"
    first, last = (status["training"][name]["metrics"]["loss"] for name in ("firstValidation", "validation"))
    assert float(last) < float(first), "it has learned"
    assert list(job.directory.glob(".pawl/*/checkpoints/*/pawl.json"))
