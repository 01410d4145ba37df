"""Tunes each stranger as its user would, and checks what was found; see `run`."""
import argparse
import json
import math
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from corpus import CORPUS, Stranger

HERE = Path(__file__).resolve().parent
# How often both commands are run in turn, and for how long each, seconds: the first half warms up.
PAIRS, SECONDS = 3, 24
# Factor by which the speedup by hand may lie outside the interval: it has three pairs.
SLACK = 1.1


def run_for(command: list[str], folder: Path, seconds: float) -> list[tuple[float, str]]:
    """The lines that a command prints within a time, each with the seconds since its start; also those that end with a carriage return."""
    began, lines = time.monotonic(), []
    environment = os.environ | {"PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment, start_new_session=True)

    def read():
        line = b""
        while byte := process.stdout.read(1):
            if byte in b"\r\n":
                lines.append((time.monotonic() - began, line.decode(errors="replace")))
                line = b""
            else:
                line += byte

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    reader.join(seconds)
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()
    return lines


def rate(stranger: Stranger, command: list[str], folder: Path) -> float:
    """Units of progress per second, in the second half of the time. A smaller number begins a new count."""
    lines = run_for(command, folder, SECONDS)
    seen = [(at, int(found[1])) for at, line in lines if (found := re.search(stranger.progress, line))]
    if len(seen) < 4:
        raise AssertionError(f"{len(seen)} lines of progress by hand: {lines[-3:]}")
    half = [pair for pair in seen if pair[0] >= (seen[0][0] + seen[-1][0]) / 2]
    done = sum(after - before for (_, before), (_, after) in zip(half, half[1:]) if after > before)
    counted = sum(late - early for (early, before), (late, after) in zip(half, half[1:]) if after > before)
    return done / counted


def tuned(stranger: Stranger, folder: Path, options: list[str]) -> subprocess.CompletedProcess:
    command = [os.environ["PAWL"], "tune", *options, *stranger.command]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True)


def items_per_step(settings: dict) -> int:
    """Items of an optimizer step; of a script whose batch is no setting, one."""
    return int(settings.get("batchPerGpu", 1)) * int(settings.get("accumulationSteps", 1))


def by_hand(stranger: Stranger, document: dict, changed: list[str], folder: Path) -> tuple[float, float]:
    """Speedup of the changed command over the given one in items per second: the mean of pairs in turn, and its standard error."""
    given = ["python3", *stranger.command]
    before = items_per_step(document["job"]["spec"]["settings"])
    after = items_per_step(document["status"]["effectiveSettings"])
    # A line of progress that counts items needs no factor.
    factor = 1 if "Train Epoch" in stranger.progress else after / before
    logs = []
    for pair in range(PAIRS):
        both = [given, changed] if pair % 2 == 0 else [changed, given]
        rates = {id(command): rate(stranger, command, folder) for command in both}
        logs.append(math.log(factor * rates[id(changed)] / rates[id(given)]))
    return math.exp(statistics.mean(logs)), statistics.stdev(logs) / math.sqrt(PAIRS)


def check(stranger: Stranger, folder: Path, proposals: bool) -> dict:
    """What was found of a stranger; raises AssertionError where it is wrong."""
    shutil.copytree(HERE / stranger.name, folder, dirs_exist_ok=True)
    if stranger.prepare:
        subprocess.run(stranger.prepare, cwd=folder, check=True)
    began = time.monotonic()
    proposal = tuned(stranger, folder, ["--observe", "30s", "--budget", "5m", "--dry-run"])
    said = proposal.stderr
    if stranger.refuses:
        assert proposal.returncode != 0 and stranger.says in said, f"exit code {proposal.returncode}: {said}"
        return {"what": stranger.what, "refused": True}
    assert proposal.returncode == 0, said
    assert stranger.says in said, f"it does not say {stranger.says!r}: {said}"
    phases = re.findall(r"^phase ([\w-]+)", said, re.M)
    assert stranger.phases <= set(phases), f"proposed {phases}, expected {sorted(stranger.phases)}: {said}"
    print("".join(f"  {line}\n" for line in said.splitlines()), end="", flush=True)
    if proposals:
        return {"what": stranger.what, "phases": phases}
    finished = tuned(stranger, folder, ["--budget", "5m"])
    assert finished.returncode == 0, f"exit code {finished.returncode}: {finished.stdout[-3000:]}{finished.stderr[-2000:]}"
    minutes = (time.monotonic() - began) / 60
    print("".join(f"  {line}\n" for line in finished.stdout.splitlines()[-20:]), end="", flush=True)
    stem = re.sub(r"[^a-z0-9-]", "-", Path(stranger.command[0]).stem.lower())
    document = json.loads((folder / f".pawl/tune-{stem}/status.json").read_text())
    status = document["status"]
    verdicts = {phase["name"]: phase["state"] for phase in status["phases"]}
    accepted = {name for name, state in verdicts.items() if state == "Accepted"}
    assert stranger.accepts <= accepted, f"verdicts {verdicts}"
    found = {"what": stranger.what, "minutes": round(minutes, 1), "verdicts": verdicts, "speedup": status.get("speedup")}
    line = re.search(r"^command +(.*)$", finished.stdout, re.M)[1]
    if accepted and stranger.progress and not line.endswith("(unchanged)"):
        found["command"] = line
        speedup, error = by_hand(stranger, document, ["sh", "-c", f"exec {line}"], folder)
        found["byHand"] = round(speedup, 3)
        speed = (status.get("bundle") or {}).get("speedup") or next(p["speedup"] for p in status["phases"] if p["name"] in accepted)
        lower, upper = float(speed["lower"]) / SLACK, float(speed["upper"]) * SLACK
        spread = math.exp(2 * error)
        assert lower / spread <= speedup <= upper * spread, f"{speedup:.3f} by hand (± {error:.3f}), {speed} by pawl tune"
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--proposals", action="store_true", help="proposals only")
    parser.add_argument("--record", type=Path, help="writes what was found as JSON")
    arguments = parser.parse_args()
    unknown = set(arguments.names) - {stranger.name for stranger in CORPUS}
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    chosen = [stranger for stranger in CORPUS if not arguments.names or stranger.name in arguments.names]
    record, failed = {}, 0
    for stranger in chosen:
        print(f"{stranger.name}: {stranger.what}", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            try:
                record[stranger.name] = check(stranger, Path(folder), arguments.proposals)
                print(f"test {stranger.name} ... ok {json.dumps(record[stranger.name])}", flush=True)
            except AssertionError as error:
                failed += 1
                print(f"test {stranger.name} ... FAILED: {error}", flush=True)
    if arguments.record:
        arguments.record.write_text(json.dumps(record, indent=1) + "\n")
    print(f"{len(chosen) - failed} passed, {failed} failed")
    return failed


if __name__ == "__main__":
    sys.exit(main())
