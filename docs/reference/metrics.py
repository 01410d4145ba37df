"""Prometheus metrics: the operator's documented table, and what agent and trainer register."""

import re

from .table import table

INTRODUCTION = """# Metrics

The operator serves `/metrics` on port 8080; the chart's ServiceMonitor scrapes it with `honorLabels: true`, because `namespace` and
`job` name the TrainingJob. Each trainer pod serves `/metrics` on port 9470. [Prometheus and Grafana](../howto/monitoring.md) shows how
to scrape both.

"""
# The arguments of a constructor: name, help, and labels if it has any.
REGISTERED = re.compile(r'"(pawl_\w+)",\s*"((?:[^"\\]|\\.)*)"(?:,?\s*\))?(?:,\s*&\[([^\]]*)\])?', re.S)


def operator(source):
    """The tables in the documentation of the operator's metrics module; a test compares them with the code."""
    lines = [line.removeprefix("//!").removeprefix(" ") for line in source.splitlines() if line.startswith("//!")]
    _, _, tables = "\n".join(lines).partition("# The operator\n")
    return "## Of the operator\n" + tables.replace("\n# ", "\n### ")


def registered(source):
    """Rows of the metrics that a source registers: name, labels, meaning."""
    rows = []
    for name, text, listed in REGISTERED.findall(source):
        labels = re.findall(r'"(\w+)"', listed)
        rows.append((f"`{name}`", ", ".join(f"`{label}`" for label in labels), text.replace('\\"', '"')))
    return rows


def page(repository):
    text = INTRODUCTION + operator((repository / "operator/controller/src/metrics/mod.rs").read_text()).strip() + "\n"
    for title, path in [
        ("Of the agent, for every trainer", "trainer-image/agent/src/gauges.rs"),
        ("Of Pawl's own trainer", "trainer-image/launch/src/metrics.rs"),
    ]:
        rows = registered((repository / path).read_text())
        text += f"\n## {title}\n\n" + table(["Metric", "Labels", "Meaning"], rows)
    return text
