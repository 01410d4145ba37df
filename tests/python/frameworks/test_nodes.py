"""Gangs of two nodes with two ranks each, on loopback: two agents, as in two pods."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import Launch, environment, wait_until
from test_examples import FRAMEWORKS, PROBE, port, script, settings

NODES = 2
RANKS = 2


class Nodes:
    """The two nodes of a gang, and the storage of the job."""

    def __init__(self, directory: Path, command: list[str]) -> None:
        self.directory = directory
        self.command = command

    def start(self, attempt: str, launch: dict[str, Any], **more: str) -> list[subprocess.Popen[str]]:
        """Starts an attempt of one launch."""
        plan = {
            "contract": 1,
            "job": "job",
            "attempt": attempt,
            "replicas": NODES,
            "ranksPerReplica": RANKS,
            "gpusPerReplica": 0,
            "command": self.command,
            "stopOnFailure": True,
            "launches": [launch | {"attempt": attempt}],
        }
        token = self.directory / "token"
        token.write_text("0123456789abcdef" * 4)
        (self.directory / f"{attempt}.json").write_text(json.dumps(plan))
        address = f"127.0.0.1:{port()}"
        return [self._agent(attempt, node, address, token, more) for node in range(NODES)]

    def _agent(self, attempt: str, node: int, address: str, token: Path, more: dict[str, str]) -> subprocess.Popen[str]:
        given = environment(
            PAWL_ATTEMPT_PLAN=str(self.directory / f"{attempt}.json"),
            JOB_COMPLETION_INDEX=str(node),
            PAWL_AGENT_ADDRESS=address,
            PAWL_AGENT_TOKEN_FILE=str(token),
            PAWL_WORK_DIR=str(self.work(attempt, node)),
            PAWL_CHECKPOINTS=str(self.directory / "checkpoints"),
            PAWL_TERMINATION_LOG=str(self.directory / f"{attempt}-{node}.end"),
            # The name of a machine need not have an address.
            GLOO_SOCKET_IFNAME="lo",
            **more,
        )
        pipe = subprocess.PIPE
        return subprocess.Popen([os.environ["PAWL"], "agent"], env=given, stdout=pipe, stderr=subprocess.STDOUT, text=True)

    def work(self, attempt: str, node: int) -> Path:
        return self.directory / f"{attempt}-{node}"

    def report(self, attempt: str) -> dict[str, Any]:
        """The report of the gang, by its first node."""
        path = self.work(attempt, 0) / "launch/report.json"
        return json.loads(path.read_text()) if path.exists() else {}

    def steps(self, attempt: str) -> int:
        path = self.work(attempt, 0) / "launch/progress.json"
        return json.loads(path.read_text())["step"] if path.exists() else 0


def end(agents: list[subprocess.Popen[str]]) -> list[int]:
    """Waits for the agents; their exit codes."""
    for agent in agents:
        out, _ = agent.communicate(timeout=300)
        print(out)
    return [agent.returncode for agent in agents]


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_two_nodes_stop_together_and_resume_as_one_gang(framework: str, tmp_path: Path, launch: Launch) -> None:
    nodes = Nodes(tmp_path, [sys.executable, str(PROBE), str(script(framework))])
    plan = launch.train(items=1_000_000).plan | {"settings": settings()}
    agents = nodes.start("job-1", plan)
    wait_until(lambda: nodes.steps("job-1") > 3)
    # As when one of the pods is deleted.
    agents[1].send_signal(signal.SIGTERM)
    assert end(agents) == [30, 30]
    stopped = nodes.report("job-1")
    assert stopped["outcome"] == "Stopped", stopped
    # Four ranks of four items: a framework that took a wrong rank would train as several gangs, or wait for ever.
    assert stopped["lastCheckpoint"]["items"] == stopped["items"] == 16 * stopped["steps"]
    logs = [nodes.work("job-1", rank // RANKS) / f"launch/rank-{rank}.log" for rank in range(NODES * RANKS)]
    ranks = [line for log in logs for line in log.read_text().splitlines() if line.startswith("ranks ")]
    expected = [[rank, rank % RANKS, rank // RANKS, rank, NODES * RANKS] for rank in range(NODES * RANKS)]
    assert ranks == [f"ranks {each} sharded [False]" for each in expected]

    items = stopped["items"] + 48
    plan["budget"] = {"items": items}
    plan["checkpoint"] |= {"expected": stopped["lastCheckpoint"]}
    assert end(nodes.start("job-2", plan)) == [0, 0]
    report = nodes.report("job-2")
    assert (report["outcome"], report["items"], report["steps"]) == ("Done", items, stopped["steps"] + 3)
    assert report["validation"]["items"] == report["lastCheckpoint"]["items"] == items
