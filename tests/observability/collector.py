#!/usr/bin/env python3
"""Checks the configuration of an OpenTelemetry collector in the book: its scrapes are those of Prometheus, so promtool reads them; it
selects the pods and ports that the chart's monitors select.

Service discovery is replaced for promtool: Debian's Prometheus has none of Kubernetes.
"""

import pathlib
import re
import subprocess
import sys
import tempfile

import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/src/howto/monitoring.md"
TEMPLATES = ROOT / "charts/pawl/templates"


def scrapes(collector):
    """The scrape configurations, by name, after a check of what surrounds them."""
    for pipeline in collector["service"]["pipelines"].values():
        for kind in ("receivers", "exporters"):
            unknown = set(pipeline[kind]) - set(collector[kind])
            assert not unknown, f"service.pipelines: {kind} {unknown} are not configured"
    config = collector["receivers"]["prometheus"]["config"]
    # The collector replaces ${NAME} and $NAME in its configuration.
    assert "$" not in yaml.safe_dump(config), "write $$ for a $"
    return {each["job_name"]: each for each in config["scrape_configs"]}


def accepted_by_promtool(found):
    """Checks the configurations with promtool."""
    static = [
        {**{name: value for name, value in each.items() if name != "kubernetes_sd_configs"}, "static_configs": [{"targets": ["a:1"]}]}
        for each in found.values()
    ]
    with tempfile.NamedTemporaryFile("w", suffix=".yml") as file:
        yaml.safe_dump({"scrape_configs": static}, file)
        file.flush()
        done = subprocess.run(["promtool", "check", "config", file.name], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def equals_the_chart(found):
    """Checks selectors, ports and labels against the chart."""
    monitors, names = (TEMPLATES / "monitors.yaml").read_text(), (TEMPLATES / "_names.tpl").read_text()
    operator, trainers = monitors.split("kind: PodMonitor")
    selected = {
        "pawl-operator": (re.search(r"app.kubernetes.io/name: (pawl-operator)", names), operator),
        "pawl-trainers": (re.search(r"app.kubernetes.io/name: (pawl-trainer)\n", trainers), trainers),
    }
    assert set(found) == set(selected)
    for job, (name, template) in selected.items():
        (discovery,) = found[job]["kubernetes_sd_configs"]
        (selector,) = discovery["selectors"]
        assert name and f"app.kubernetes.io/name={name[1]}" in selector["label"].split(","), f"{job}: {selector}"
        port = re.search(r"- port: (\S+)", template)
        rules = found[job]["relabel_configs"]
        kept = [rule["regex"] for rule in rules if rule.get("action") == "keep"]
        assert port and kept == [port[1]], f"{job}: keeps the ports {kept}, but the chart {port and port[1]}"
    sources = {source for rule in found["pawl-trainers"]["relabel_configs"] for source in rule["source_labels"]}
    missing = set(re.findall(r"__meta_kubernetes_pod_label_\w+", trainers)) - sources
    assert not missing, f"pawl-trainers: {missing} are labels of the PodMonitor"


(block,) = re.findall(r"<!-- collector -->\n```yaml\n(.*?)```", PAGE.read_text(), re.S)
try:
    jobs = scrapes(yaml.safe_load(block))
    accepted_by_promtool(jobs)
    equals_the_chart(jobs)
except AssertionError as error:
    sys.exit(f"{PAGE.relative_to(ROOT)}: {error}")
