#!/usr/bin/env python3
"""What other tools make of a TrainingJob at each of its stages: the health check for Argo CD and the workflow of
docs/src/howto/gitops.md, and the rules of kstatus, on statuses that Pawl has written (crds/api/tests/fixtures).

    stages.py

Needs lua5.4, and with PAWL, the program pawl, checks the job of the workflow too.
"""

import copy
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/src/howto/gitops.md"
STORED = ROOT / "crds/api/tests/fixtures/v1alpha1-1"


def stored(name):
    return json.loads((STORED / f"{name}.json").read_text())


def changed(name, stage=None, generation=None, **conditions):
    """A stored job whose conditions are others."""
    job = copy.deepcopy(stored(name))
    job["status"]["stage"] = stage or job["status"]["stage"]
    job["metadata"]["generation"] = generation or job["metadata"]["generation"]
    known = {condition["type"]: condition for condition in job["status"]["conditions"]}
    for kind, holds in conditions.items():
        known[kind].update(status=str(holds), message=f"{kind} is {holds}")
    return job


def new():
    job = stored("preflight")
    del job["status"]
    return job


# What each is: its name, the job, the health in Argo CD, the status by kstatus, and what the step of the workflow does.
CASES = [
    ("not seen by the operator", new(), "Progressing", "Current", "waits"),
    ("preflight", stored("preflight"), "Progressing", "InProgress", "waits"),
    ("optimizing", stored("ladder"), "Progressing", "InProgress", "waits"),
    ("quality", stored("quality"), "Progressing", "InProgress", "waits"),
    ("training", stored("guarded-training"), "Progressing", "InProgress", "waits"),
    ("complete", stored("complete"), "Healthy", "Current", "succeeds"),
    ("failed", stored("stalled"), "Degraded", "Failed", "fails"),
    ("suspended", changed("ladder", "Suspended", Reconciling=False, Suspended=True), "Suspended", "Current", "fails"),
    # A pod that does not end, which somebody has to delete: the job then goes on.
    ("obstructed", changed("guarded-training", Stalled=True), "Degraded", "InProgress", "waits"),
    ("edited", changed("complete", generation=2), "Progressing", "InProgress", "succeeds"),
]


def lua(value):
    """A JSON value as an expression of Lua."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"[{lua(key)}] = {lua(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list):
        return "{" + ", ".join(map(lua, value)) + "}"
    if isinstance(value, str):
        # Escapes of JSON are not those of Lua.
        return '"' + "".join(f"\\{byte:03d}" for byte in value.encode()) + '"'
    return "nil" if value is None else json.dumps(value)


def health(script, job):
    """The health that Argo CD displays: it sets `obj`, and the script returns status and message."""
    program = f"local function check(obj)\n{script}\nend\nlocal found = check({lua(job)})\n"
    program += "assert(found.message == nil or type(found.message) == 'string')\nprint(found.status)\n"
    done = subprocess.run(["lua5.4", "-"], input=program, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def kstatus(job):
    """The generic rules of kstatus (pkg/kstatus/status/generic.go), without deletion and the condition Ready."""
    status = job.get("status", {})
    if status.get("observedGeneration", job["metadata"]["generation"]) != job["metadata"]["generation"]:
        return "InProgress"
    for condition in status.get("conditions", []):
        meaning = {"Reconciling": "InProgress", "Stalled": "Failed"}.get(condition["type"])
        if meaning and condition["status"] == "True":
            return meaning
        assert condition["type"] != "Ready", "kstatus would read it"
    return "Current"


def selects(selector, job):
    """Whether a condition of a resource template holds: a label selector over paths of the object."""
    found = re.fullmatch(r"([\w.]+) (?:== (\w+)|in \(([\w, ]+)\))", selector)
    assert found, f"{selector}: not a condition that this test reads"
    at = job
    for name in found[1].split("."):
        at = at.get(name, {}) if isinstance(at, dict) else {}
    return at in ([found[2]] if found[2] else re.split(r", *", found[3]))


def step(resource, job):
    if selects(resource["failureCondition"], job):
        return "fails"
    return "succeeds" if selects(resource["successCondition"], job) else "waits"


def documents():
    blocks = re.findall(r"^```yaml\n(.*?)^```$", PAGE.read_text(), re.M | re.S)
    return {found["kind"]: found for found in map(yaml.safe_load, blocks)}


def check_workflow(template, stages):
    """The paths of the workflow are those of the status, its stages exist, and its job is valid."""
    resource = template["resource"]
    for condition in (resource["successCondition"], resource["failureCondition"]):
        named = set(re.findall(r"\b[A-Z]\w+", condition))
        assert named <= stages, f"{condition}: the stages are {', '.join(sorted(stages))}"
    complete = stored("complete")
    for parameter in template["outputs"]["parameters"]:
        at = complete
        for name in parameter["valueFrom"]["jsonPath"].strip("{}.").split("."):
            assert name in at, f"{parameter['name']}: a complete job has no {name}"
            at = at[name]
    if pawl := os.environ.get("PAWL"):
        job = yaml.safe_load(resource["manifest"])
        job["metadata"] = {"name": job["metadata"]["generateName"] + "abcde"}
        done = subprocess.run([pawl, "validate", "-"], input=json.dumps(job), capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def main():
    found = documents()
    script = found["ConfigMap"]["data"]["resource.customizations.health.pawl.dev_TrainingJob"]
    template = found["Workflow"]["spec"]["templates"][0]
    crd = yaml.safe_load((ROOT / "crds/trainingjobs.yaml").read_text())
    status = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"]
    check_workflow(template, set(status["stage"]["enum"]))
    wrong = []
    for name, job, *expected in CASES:
        given = [health(script, job), kstatus(job), step(template["resource"], job)]
        if given != expected:
            wrong.append(f"{name}: {given}, expected {expected}")
    print("\n".join(wrong) or f"{len(CASES)} statuses")
    return 1 if wrong else 0


sys.exit(main())
