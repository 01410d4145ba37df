"""Jobs for the tests of the pages: one that the scripted trainer ran, copies of it, one that changes, and a search."""
import json
import os
import subprocess
from pathlib import Path

PAWL = Path(os.environ["PAWL"]).resolve()
COPIES = 1000


def manifest(name: str) -> dict:
    """A job of which one phase is accepted and one is rolled back, and which is then trained."""
    config = {
        "itemsPerSecond": 1000, "noise": 0.004, "seed": 7, "stepSeconds": 0.001, "itemsPerEpoch": 2000,
        "effects": [{"setting": "compile", "value": "Graph", "factor": 1.5},
                    {"setting": "activationCheckpointing", "value": "Full", "factor": 0.8}],
    }
    return {
        "apiVersion": "pawl.dev/v1alpha1", "kind": "TrainingJob", "metadata": {"name": name},
        "spec": {
            "workload": {"command": [str(PAWL.with_name("scripted-trainer"))], "config": config},
            "trainer": {"gpusPerReplica": 0},
            "settings": {"batchPerGpu": 8, "accumulationSteps": 8},
            "seeds": [42, 43, 44],
            "phases": [{"name": "graph", "settings": {"compile": "Graph"}},
                       {"name": "slow", "settings": {"activationCheckpointing": "Full"}}],
            "analysis": {"warmupSteps": 5, "windowSteps": 20, "budgetPercent": "Unlimited"},
            "train": {"items": 64000, "checkpoint": {"every": "1s", "keep": 2}},
        },
    }


def write(state: Path, document: dict) -> None:
    """Records a job as `pawl run` does: the file is replaced."""
    state.mkdir(parents=True, exist_ok=True)
    (state / "new").write_text(json.dumps(document))
    (state / "new").replace(state / "status.json")


def read(state: Path) -> dict:
    return json.loads((state / "status.json").read_text())


def trained(folder: Path) -> None:
    """Runs the jobs `toy` and `other`, each with a state directory in `.pawl`."""
    for name, change in [("toy", {}), ("other", {"seeds": [52, 53, 54]})]:
        job = manifest(name)
        job["spec"] |= change
        (folder / f"{name}.yaml").write_text(json.dumps(job))
        subprocess.run([PAWL, "run", f"{name}.yaml", "--quiet"], cwd=folder, check=True, stdout=subprocess.DEVNULL)


def copies(folder: Path) -> None:
    """Copies what is recorded of `toy` under other names; every tenth has failed."""
    document = read(folder / ".pawl/toy")
    for number in range(COPIES):
        document["job"]["metadata"]["name"] = f"job-{number:04}"
        document["status"]["stage"] = "Failed" if number % 10 == 0 else "Complete"
        write(folder / f".pawl/job-{number:04}", document)


def recorded(name: str, spec: dict, status: dict) -> dict:
    job = {"apiVersion": "pawl.dev/v1alpha1", "kind": "TrainingJob", "metadata": {"name": name},
           "spec": {"workload": {"name": "ups"}} | spec}
    return {"format": 1, "specHash": "", "job": job, "status": status}


def measuring(progress: str) -> dict:
    """A job whose first phase is being measured."""
    phase = {"name": "graph", "state": "Measuring", "speedup": {"estimate": "1.31", "pairs": 2}}
    return recorded("live", {}, {"stage": "Optimizing", "progress": progress, "phases": [phase]})


def searched() -> dict:
    """A search for two objectives with 24 trials."""
    objectives = [{"metric": "loss", "goal": "Minimize"}, {"metric": "itemsPerSecond", "goal": "Maximize"}]
    parameters = [{"name": "batchPerGpu", "min": "1", "max": "64"},
                  {"name": "learningRate", "min": "1e-5", "max": "1e-1", "scale": "Log"}]
    trials = []
    for number in range(24):
        batch, rate = 1 + 63 * number // 23, 10 ** (-5 + 4 * (number * 7 % 24) / 23)
        loss, speed = 0.2 + abs(rate - 1e-3) * 10 + number / 100, 100 + 10 * number
        trials.append(f"C;;{loss:.4f},{speed};;;{batch},{rate:.6f}")
    search = {"name": "quick", "trials": 24, "epochs": 3, "objectives": objectives, "parameters": parameters}
    status = {"name": "quick", "inputHash": "x", "state": "Done", "trials": trials, "pareto": [0, 23]}
    return recorded("search", {"search": [search]}, {"stage": "Complete", "search": [status]})


def all_of_them(folder: Path) -> None:
    trained(folder)
    copies(folder)
    write(folder / ".pawl/live", measuring("phase 1/2"))
    write(folder / ".pawl/search", searched())
