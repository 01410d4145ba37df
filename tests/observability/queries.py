#!/usr/bin/env python3
"""Runs every query of every dashboard and alert on a Prometheus while a job runs, until each panel has returned data.

    queries.py PROMETHEUS NAMESPACE JOB SECONDS [--gpu]

Without --gpu, panels about GPUs may be empty: the job runs on CPUs. PAWL_OBSERVE_KEEP: the absolute path of a file for the results of
all panels, the input of ./draw.
"""

import json
import os
import pathlib
import re
import sys
import time
import urllib.error
import urllib.parse
import urllib.request

CHART = pathlib.Path(__file__).resolve().parents[2] / "charts" / "pawl"
# Panels that are empty without GPUs, (dashboard, title): their queries must only be valid.
OF_GPUS = {("job", title) for title in ("GPU clock", "GPU temperature", "GPU power", "GPU throttling and errors")}


def ask(prometheus, path, **parameters):
    """The result of a query; exits with Prometheus' error message if the query is invalid."""
    try:
        with urllib.request.urlopen(f"{prometheus}/api/v1/{path}?{urllib.parse.urlencode(parameters)}", timeout=20) as answer:
            return json.load(answer)["data"]["result"]
    except urllib.error.HTTPError as error:
        sys.exit(f"{parameters['query']}\n  {json.load(error)['error']}")


def substituted(expr, values):
    expr = re.sub(r"\$\{?([A-Za-z_]+)(:[a-z]+)?\}?", lambda found: values[found[1]], expr)
    assert "$" not in expr, expr
    return expr


def panels(values):
    """Yields (dashboard, panel, [(instant, query), ...]) for every panel."""
    for path in sorted((CHART / "dashboards").glob("*.json")):
        for panel in json.loads(path.read_text())["panels"]:
            if panel["type"] != "row":
                queries = [(target.get("instant", False), substituted(target["expr"], values)) for target in panel["targets"]]
                yield path.stem, panel["title"], queries


def alerts():
    for path in sorted((CHART / "alerts").glob("*.yaml")):
        for block in re.split(r"^      - alert: ", path.read_text(), flags=re.M)[1:]:
            expr = re.search(r"^        expr: *(\|\n(?P<lines>(?: {10}.*\n)+)|(?P<line>.+)\n)", block, flags=re.M)
            yield block.split()[0], expr["lines"] or expr["line"]


def has_data(result):
    """Whether the result contains a finite value."""
    samples = [sample for series in result for sample in series.get("values", [series.get("value")])]
    return any(value not in ("NaN", "+Inf", "-Inf") for _, value in samples)


def keep(path, prometheus, values, began):
    """Writes the results of all panels, for the time since `began`."""
    now = time.time()
    step = max(1, int((now - began) / 300))
    results = {}
    for dashboard, panel, queries in panels(values):
        results.setdefault(dashboard, {})[panel] = [
            ask(prometheus, "query", query=query, time=now) if instant else
            ask(prometheus, "query_range", query=query, start=began, end=now, step=step) for instant, query in queries]
    pathlib.Path(path).write_text(json.dumps(results))


def main():
    prometheus, namespace, job, seconds, *options = sys.argv[1:]
    may_be_empty = set() if options == ["--gpu"] else OF_GPUS
    values = {"namespace": namespace, "job": job, "instance": ".*", "__rate_interval": "30s", "__interval": "5s", "__range": "10m"}
    began = time.time()
    waiting = {(dashboard, panel, query): instant for dashboard, panel, queries in panels(values) for instant, query in queries}
    total = len(waiting)
    required = lambda: [key for key in waiting if key[:2] not in may_be_empty]
    for name, expr in alerts():
        ask(prometheus, "query", query=expr)
    while required() and time.time() < began + float(seconds):
        now = time.time()
        for key, instant in list(waiting.items()):
            query = key[2]
            result = (ask(prometheus, "query", query=query, time=now) if instant else
                      ask(prometheus, "query_range", query=query, start=now - 60, end=now, step=5))
            if has_data(result):
                del waiting[key]
        time.sleep(3)
    empty = required()
    for dashboard, panel, query in empty:
        print(f"{dashboard}: {panel}: no data: {query}")
    print(f"{total - len(waiting)} of {total} queries returned data, {len(list(alerts()))} alert expressions are valid")
    if path := os.environ.get("PAWL_OBSERVE_KEEP"):
        keep(path, prometheus, values, began)
    return 1 if empty else 0


if __name__ == "__main__":
    sys.exit(main())
