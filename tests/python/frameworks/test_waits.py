"""Each framework reports the time that its steps wait for a slow rank."""

import pytest
from conftest import Launch
from test_examples import FRAMEWORKS, PLANTED, port, script, settings, torchrun


def share(framework: str, slow: int, sharding: str, launch: Launch) -> float:
    """What rank 0 reports when each backward pass of the rank `slow` takes longer by much more than a step."""
    # Measured are the steps after the first quarter.
    launch.train(items=20 * 16).plan["settings"] = settings(sharding=sharding)
    launch.plan["checkpoint"]["resume"] = False
    at = port()
    command = [str(script(framework)), "none"]
    ranks = [
        launch.start(PLANTED, rank, 2, command, SLOW="0.2" if rank == slow else "0", **torchrun(rank, 2, at)) for rank in range(2)
    ]
    for process in ranks:
        out, err = process.communicate(timeout=900)
        print(out, err)
        assert process.returncode == 0
    report = launch.report()
    assert report["loaderWaitShare"] < 0.3
    return float(report["collectiveWaitShare"])


@pytest.mark.parametrize(("framework", "sharding"), [(framework, "None") for framework in FRAMEWORKS] + [("pytorch", "Full")])
def test_the_wait_for_a_slow_rank_is_measured(framework: str, sharding: str, launch: Launch) -> None:
    assert share(framework, 1, sharding, launch) > 0.5
    assert share(framework, 0, sharding, launch) < 0.3


def test_a_single_rank_reports_no_wait(launch: Launch) -> None:
    launch.plan["settings"] = settings()
    process = launch.start(script("pytorch"), **torchrun(0, 1, port()))
    process.communicate(timeout=300)
    assert "loaderWaitShare" in launch.report() and "collectiveWaitShare" not in launch.report()
