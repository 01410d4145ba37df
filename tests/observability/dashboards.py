#!/usr/bin/env python3
"""Checks dashboards and alerts without a Prometheus: they are up to date and consistent, and their metrics exist.

The dashboards are not rendered, because Grafana is not available from a package registry; only structure and queries are checked.
"""

import itertools
import json
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
CHART = ROOT / "charts" / "pawl"
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
BUILT_IN = {"__rate_interval", "__interval", "__range", "__url_time_range", "__all", "__data"}
# Standard process metrics, exported by the operator too.
OF_PROCESSES = {"process_resident_memory_bytes", "process_cpu_seconds_total", "process_open_fds"}


def emitted():
    """Names of all exported metrics, from string literals in the sources."""
    sources = [*ROOT.glob("operator/*/src/**/*.rs"), *ROOT.glob("trainer-image/*/src/**/*.rs")]
    return set(re.findall(r'"(pawl_[a-z0-9_]+)"', "\n".join(path.read_text() for path in sources))) | OF_PROCESSES


def names(expr):
    """Names of the metrics in a query; _bucket, _sum and _count are mapped to their histogram."""
    found = re.findall(r"\b((?:pawl|process)_[a-z0-9_]+)\b", expr)
    return {re.sub(r"_(bucket|sum|count)$", "", name) if "seconds_" in name else name for name in found}


def panel_problems(panel):
    if panel["type"] == "row":
        return
    title = panel["title"]
    if not panel.get("description"):
        yield f"{title}: no description"
    if panel.get("datasource") != SOURCE:
        yield f"{title}: the data source is not the variable"
    if not panel["fieldConfig"]["defaults"].get("unit"):
        yield f"{title}: no unit"
    if not panel["targets"]:
        yield f"{title}: no query"
    for target in panel["targets"]:
        if target.get("datasource") != SOURCE:
            yield f"{title}: the data source of query {target['refId']} is not the variable"
    identities = [target["refId"] for target in panel["targets"]]
    if len(set(identities)) != len(identities):
        yield f"{title}: duplicate refId"


def overlap(a, b):
    a, b = a["gridPos"], b["gridPos"]
    return a["x"] < b["x"] + b["w"] and b["x"] < a["x"] + a["w"] and a["y"] < b["y"] + b["h"] and b["y"] < a["y"] + a["h"]


def problems(dashboard, metrics):
    panels = dashboard["panels"]
    identities = [panel["id"] for panel in panels]
    if len(set(identities)) != len(identities):
        yield "duplicate panel id"
    for panel in panels:
        yield from panel_problems(panel)
        place = panel["gridPos"]
        if place["x"] < 0 or place["w"] < 1 or place["h"] < 1 or place["x"] + place["w"] > 24:
            yield f"{panel['title']}: is outside the 24 columns: {place}"
    for a, b in itertools.combinations(panels, 2):
        if overlap(a, b):
            yield f"{a['title']} and {b['title']} overlap"
    known = {variable["name"] for variable in dashboard["templating"]["list"]} | BUILT_IN
    if "datasource" not in known:
        yield "no data source variable"
    text = json.dumps(dashboard["panels"])
    # Variables in links belong to the linked dashboard.
    for name in set(re.findall(r"\$\{?([A-Za-z_]+)", text)) - known:
        yield f"variable {name} is not defined"
    for panel in panels:
        for target in panel.get("targets", []):
            for name in names(target["expr"]) - metrics:
                yield f"{panel['title']}: metric {name} is not exported"
            # It has no labels: without `on()` it would be a second series beside any that has some.
            if re.search(r" or vector", target["expr"]):
                yield f"{panel['title']}: a default must be `or on() vector(..)`"
    for variable in dashboard["templating"]["list"]:
        for name in names(variable["query"]["query"] if isinstance(variable["query"], dict) else "") - metrics:
            yield f"variable {variable['name']}: metric {name} is not exported"
    if re.search(r'"uid": "(?!\$\{datasource\}|-- Grafana --|pawl-)', json.dumps(dashboard)):
        yield "hard-coded data source uid"


def alert_problems(metrics):
    for path in sorted((CHART / "alerts").glob("*.yaml")):
        text = path.read_text()
        # Parsed as text: the Python standard library has no YAML parser.
        alerts = re.split(r"^      - alert: ", text, flags=re.M)[1:]
        for alert in alerts:
            name = alert.split()[0]
            for wanted in ("severity: ", "summary: ", "description: ", "runbook_url: "):
                if wanted not in alert:
                    yield f"{path.name}: {name}: no {wanted.strip(': ')}"
            runbook = re.search(r"runbook_url: \S+/(charts/pawl/runbooks/\S+)", alert)
            if runbook and not (ROOT / runbook[1]).exists():
                yield f"{path.name}: {name}: {runbook[1]} does not exist"
            if name not in (CHART / "runbooks" / "README.md").read_text():
                yield f"{path.name}: {name}: not in the runbooks' README"
            expr = alert[alert.index("expr:"):alert.index("labels:")]
            for metric in names(expr) - metrics:
                yield f"{path.name}: {name}: metric {metric} is not exported"


def main():
    found = []
    if subprocess.run([ROOT / "charts" / "dashboards" / "generate", "--check"]).returncode:
        found.append("the dashboards are out of date")
    metrics = emitted()
    dashboards = sorted((CHART / "dashboards").glob("*.json"))
    if {path.stem for path in dashboards} != {"fleet", "job", "operator"}:
        found.append(f"unexpected set of dashboards: {dashboards}")
    identities = []
    for path in dashboards:
        dashboard = json.loads(path.read_text())
        identities.append(dashboard["uid"])
        found += [f"{path.name}: {problem}" for problem in problems(dashboard, metrics)]
    if len(set(identities)) != len(identities):
        found.append("duplicate dashboard uid")
    found += alert_problems(metrics)
    print("\n".join(found) or f"{len(dashboards)} dashboards and all alerts are consistent")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
