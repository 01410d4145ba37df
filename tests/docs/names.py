#!/usr/bin/env python3
"""Checks names in the book against the code: reasons, gates, alerts with their severities, runbooks, examples and workloads are complete,
and every metric exists. Workloads are so in the tests of their exports, too. Pages can be read in the repository as they are."""

import re
import sys
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
PAGES = ROOT / "docs/src"
# Words in the form of a metric that are none.
NOT_METRICS = {"pawl_candle", "pawl_launch", "pawl_controller", "pawl_dev_job"}


def variants(path, name):
    """The variants of an enum of a Rust source."""
    body = re.search(rf"enum {name} \{{\n(.*?)\n\}}", (ROOT / path).read_text(), re.S)[1]
    return set(re.findall(r"^    (\w+)(?:\(\w+\))?,$", body, re.M))


def reasons():
    """All reasons that a status or an event may contain, besides the names of stages and `Baseline` with an outcome."""
    own = variants("operator/decision/src/reason.rs", "Reason") - {"Outcome", "Baseline", "Stage"}
    # Events of the operator itself, which no decision emits.
    sources = [path.read_text() for path in (ROOT / "operator/controller/src").rglob("*.rs")]
    events = {name for text in sources for name in re.findall(r'\.warn\([^"]*"([A-Z]\w+)"', text)}
    return own | events | variants("crds/contract/src/exit.rs", "Outcome")


def camel(field):
    return re.sub(r"_(\w)", lambda found: found[1].upper(), field)


def gates():
    """The fields of `spec.gates`."""
    body = re.search(r"pub struct Gates \{\n(.*?)\n\}", (ROOT / "crds/api/src/spec/judging.rs").read_text(), re.S)[1]
    return [camel(field) for field in re.findall(r"^    pub (\w+):", body, re.M)]


def gates_of_dry_runs():
    """The gates that the functions of the dry run of a search name, in code or in a message."""
    sources = (path.read_text() for path in (ROOT / "operator/decision/src/gates").rglob("*.rs"))
    bodies = [body for text in sources for body in re.findall(r"^pub\(super\) fn \w+\(run: &DryRun<'_>\).*?^\}", text, re.M | re.S)]
    assert bodies, "no function of a dry run was found"
    return {camel(field) for body in bodies for field in re.findall(r"\bgates\.([a-z]+(?:[_A-Z][a-z]+)+)", body)}


def workloads():
    """The names of the built-in workloads."""
    sources = (path.read_text() for path in (ROOT / "trainer-image/workloads/src").glob("*/mod.rs"))
    found = {name for text in sources for name in re.findall(r'fn name\(&self\) -> &\'static str \{\s*"([^"]+)"', text)}
    assert len(found) >= 5, f"only {found} were found"
    return sorted(found)


def alerts():
    """The alerts of the chart, with their severities."""
    files = [yaml.safe_load(path.read_text()) for path in sorted((ROOT / "charts/pawl/alerts").glob("*.yaml"))]
    rules = [rule for file in files for group in file["groups"] for rule in group["rules"]]
    return {rule["alert"]: rule["labels"]["severity"] for rule in rules}


def problems_of_alerts():
    """What is wrong with the tables of alerts."""
    for where in ("docs/src/operate/runbooks.md", "charts/pawl/runbooks/README.md"):
        rows = re.findall(r"^\| \[(Pawl\w+)\]\([^)]+\) \| (\w+) \|", (ROOT / where).read_text(), re.M)
        table = dict(rows)
        yield from (f"{where}: the alert {name} is missing" for name in sorted(alerts().keys() - table))
        yield from (f"{where}: the chart has no alert {name}" for name in sorted(table.keys() - alerts()))
        for name, severity in sorted(alerts().items()):
            if table.get(name, severity) != severity:
                yield f"{where}: the severity of {name} is {severity}, not {table[name]}"
        if len(rows) > len(table):
            yield f"{where}: an alert has two rows"


# Lists of all workloads, and how a row of one begins.
EXPORTS = {
    "docs/src/howto/export.md": "| `{}` |",
    "tests/python/frameworks/test_onnx.py": '("{}", ',
    "trainer-image/trainer/tests/workloads/export.rs": '("{}", ',
}


def problems():
    text = (PAGES / "verdicts.md").read_text()
    table = set(re.findall(r"^\| `(\w+)` \|", text, re.M))
    yield from (f"verdicts.md: the reason {name} is missing" for name in sorted(reasons() - table))
    yield from (f"verdicts.md: {name} is not a reason" for name in sorted(table - reasons()))
    written = "".join(path.read_text() for path in PAGES.rglob("*.md") if path.parent != PAGES / "reference")
    yield from (f"concepts/phases.md: the gate {name} is on no page" for name in gates() if name not in written)
    documented = re.search(r"((?: *///[^\n]*\n)+)[^/]*pub dry_run:", (ROOT / "crds/api/src/spec/search.rs").read_text())[1]
    for where, text in [("howto/search.md", (PAGES / "howto/search.md").read_text()), ("crds/api/src/spec/search.rs: dry_run", documented)]:
        named = set(re.findall(r"`(?:gates\.)?(\w+)`", text))
        yield from (f"{where}: the gate {name} of dry runs is missing" for name in sorted(gates_of_dry_runs() - named))
    runbooks = (PAGES / "operate/runbooks.md").read_text()
    for path in sorted((ROOT / "charts/pawl/runbooks").glob("*.md")):
        if path.name != "README.md" and f"](../../../{path.relative_to(ROOT)}) <!-- inserted in the book -->\n" not in runbooks:
            yield f"operate/runbooks.md: {path.name} is missing"
    yield from problems_of_alerts()
    for path in sorted(PAGES.rglob("*.md")):
        if "{{#" in path.read_text():
            yield f"{path.relative_to(PAGES)}: a directive of mdBook cannot be read in the repository: see docs/documents.py"
    trainer, searches = ((PAGES / page).read_text() for page in ("concepts/trainer.md", "howto/search.md"))
    for path in sorted((ROOT / "examples").glob("*.yaml")):
        if path.name not in trainer + searches:
            yield f"concepts/trainer.md: the example {path.name} is missing"
    for path, row in EXPORTS.items():
        rows = [line.strip() for line in (ROOT / path).read_text().splitlines()]
        yield from (f"{path}: the workload {name} has no row" for name in workloads() if not any(line.startswith(row.format(name)) for line in rows))
    reference = (PAGES / "reference/metrics.md").read_text()
    known = set(re.findall(r"`(pawl_\w+)`", reference)) | NOT_METRICS
    # The buckets, sum and count of a histogram.
    known |= {f"{name}_{suffix}" for name in known for suffix in ("bucket", "sum", "count")}
    for path in sorted(PAGES.rglob("*.md")):
        for name in sorted(set(re.findall(r"\bpawl_\w+", path.read_text())) - known):
            yield f"{path.relative_to(PAGES)}: there is no metric {name}"
    sources = [*(ROOT / "operator/controller/src/metrics").glob("*.rs"), ROOT / "trainer-image/agent/src/gauges.rs", ROOT / "trainer-image/launch/src/metrics.rs"]
    registered = {name for path in sources for name in re.findall(r'"(pawl_[a-z_]+[a-z])"', path.read_text())}
    for name in sorted(registered - known):
        yield f"reference/metrics.md: {name} is missing"


def main():
    found = list(problems())
    print("\n".join(found))
    return 1 if found else 0


sys.exit(main())
