#!/usr/bin/env python3
"""Checks of the dashboards that need no Prometheus: they are current, sound, and ask for metrics that there are.

No Grafana runs here (none can be had from a package registry), so nothing has drawn them; shape and queries are what is proved.
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
# Metrics of the operator's process that every program has.
OF_PROCESSES = {"process_resident_memory_bytes", "process_cpu_seconds_total", "process_open_fds"}


def emitted():
    """Names of all metrics that the programs write, as literals of their sources."""
    sources = [*ROOT.glob("operator/*/src/**/*.rs"), *ROOT.glob("trainer-image/trainer/src/**/*.rs")]
    return set(re.findall(r'"(pawl_[a-z0-9_]+)"', "\n".join(path.read_text() for path in sources))) | OF_PROCESSES


def names(expr):
    """Names of the metrics in a query; a histogram's parts count as the histogram."""
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
        yield f"{title}: two queries with one refId"


def overlap(a, b):
    a, b = a["gridPos"], b["gridPos"]
    return a["x"] < b["x"] + b["w"] and b["x"] < a["x"] + a["w"] and a["y"] < b["y"] + b["h"] and b["y"] < a["y"] + a["h"]


def problems(dashboard, metrics):
    panels = dashboard["panels"]
    identities = [panel["id"] for panel in panels]
    if len(set(identities)) != len(identities):
        yield "two panels with one id"
    for panel in panels:
        yield from panel_problems(panel)
        place = panel["gridPos"]
        if place["x"] < 0 or place["w"] < 1 or place["h"] < 1 or place["x"] + place["w"] > 24:
            yield f"{panel['title']}: lies outside of the 24 columns: {place}"
    for a, b in itertools.combinations(panels, 2):
        if overlap(a, b):
            yield f"{a['title']} and {b['title']} overlap"
    known = {variable["name"] for variable in dashboard["templating"]["list"]} | BUILT_IN
    if "datasource" not in known:
        yield "no data source variable"
    text = json.dumps(dashboard["panels"])
    # A link to another dashboard sets that one's variables.
    for name in set(re.findall(r"\$\{?([A-Za-z_]+)", text)) - known:
        yield f"variable {name} is not defined"
    for panel in panels:
        for target in panel.get("targets", []):
            for name in names(target["expr"]) - metrics:
                yield f"{panel['title']}: no program writes {name}"
    for variable in dashboard["templating"]["list"]:
        for name in names(variable["query"]["query"] if isinstance(variable["query"], dict) else "") - metrics:
            yield f"variable {variable['name']}: no program writes {name}"
    if re.search(r'"uid": "(?!\$\{datasource\}|-- Grafana --|pawl-)', json.dumps(dashboard)):
        yield "a uid is fixed"


def alert_problems(metrics):
    for path in sorted((CHART / "alerts").glob("*.yaml")):
        text = path.read_text()
        # Read as text: a YAML reader is not in Python's library.
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
                yield f"{path.name}: {name}: no program writes {metric}"


def main():
    found = []
    if subprocess.run([ROOT / "charts" / "dashboards" / "generate", "--check"]).returncode:
        found.append("the dashboards are not current")
    metrics = emitted()
    dashboards = sorted((CHART / "dashboards").glob("*.json"))
    if {path.stem for path in dashboards} != {"fleet", "job", "operator"}:
        found.append(f"other dashboards than expected: {dashboards}")
    identities = []
    for path in dashboards:
        dashboard = json.loads(path.read_text())
        identities.append(dashboard["uid"])
        found += [f"{path.name}: {problem}" for problem in problems(dashboard, metrics)]
    if len(set(identities)) != len(identities):
        found.append("two dashboards with one uid")
    found += alert_problems(metrics)
    print("\n".join(found) or f"{len(dashboards)} dashboards and all alerts are sound")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
