"""The trainer contract: environment, exit codes and files, from crds/contract."""

import re

from . import rust
from .table import table

INTRODUCTION = """# The trainer contract

Version 1. Any program can be a trainer: it gets environment variables and `plan.json`, writes `progress.json` and `report.json`, and ends
with an exit code. [Any command](../script/command.md) shows a whole trainer; the [Python package](python.md) implements the
contract. Readers ignore unknown fields, and refuse another value of `contract`.

"""
# Titles, and the modules, and then their submodules, whose structs and enums describe them.
FILES = [
    ("plan.json: the plan of a launch", "plan"),
    ("Evaluations of a trial, a part of the plan", "plan/evaluations"),
    ("report.json: the report of a rank", "report"),
    ("Measurements, a part of the report", "measured"),
    ("Details, a part of the report", "details"),
    ("Provenance, a part of the report", "provenance", "provenance/data", "provenance/nodes"),
    ("Checkpoints", "checkpoint"),
    ("progress.json: the progress of a running launch", "progress"),
]
# Between operator and agent; no trainer sees them.
INTERNAL = {"AttemptPlan", "GangSize", "LaunchResult"}
SIMPLE = {
    "String": "string",
    "bool": "boolean",
    **dict.fromkeys(["f64", "N"], "number"),
    "(u32, f64)": "pair of an integer and a number",
    "Evaluated": "pair of an integer and a number or `null`",
    **dict.fromkeys(["u8", "u32", "u64", "i32", "i64", "Fingerprint"], "integer"),
}
# Types that are described elsewhere.
ELSEWHERE = {"Settings": "trainingjob.md#specsettings", "Outcome": "#exit-codes-and-outcomes"}


def in_json(text):
    """Documentation with the names of fields as in JSON, without what only concerns Rust."""
    paragraphs = [paragraph for paragraph in text.split("\n\n") if not paragraph.startswith("`N` ")]

    def camel(name):
        return re.sub(r"[a-z]+(?:_[a-z]+)+", lambda found: rust.camel(found[0]), name[0])

    return re.sub(r"`(?:\w+\.)*[a-z_]+`", camel, "\n\n".join(paragraphs))


def kind(rust_type):
    """A Rust type, as a type of JSON."""
    if wrapped := re.fullmatch(r"Option<(.*)>", rust_type):
        return f"{kind(wrapped[1])}, optional"
    if listed := re.fullmatch(r"Vec<(.*)>", rust_type):
        return f"list of {kind(listed[1])}"
    if mapped := re.fullmatch(r"BTreeMap<String, (.*)>", rust_type):
        return f"map of {kind(mapped[1])}"
    if rust_type.startswith("serde_json::Map"):
        return "map"
    name = rust_type.split("::")[-1].split("<")[0]
    return SIMPLE.get(name) or f"[`{name}`]({ELSEWHERE.get(name, '#' + name.lower())})"


def of_struct(item):
    rows = []
    for member in item.members:
        name = "(fields of)" if "flatten" in member.attributes else f"`{rust.camel(member.name)}`"
        rows.append((name, kind(member.type), in_json(member.documentation)))
    return table(["Field", "Type", "Description"], rows)


def of_enum(item):
    return table(["Value", "Description"], [(f"`{member.name}`", member.documentation) for member in item.members])


def exit_codes(source):
    """Outcomes and their exit codes."""
    codes = {}
    for names, code in re.findall(r"^            ((?:Self::\w+(?: \| )?)+) => (\d+),$", source, re.M):
        for name in re.findall(r"Self::(\w+)", names):
            codes[name] = code
    [outcome] = [item for item in rust.items(source) if item.name == "Outcome"]
    # A hung rank cannot exit: the agent ends it.
    codes["Hang"] = ""
    rows = [(codes[member.name], f"`{member.name}`", member.documentation) for member in outcome.members]
    return table(["Exit code", "Outcome", "Meaning"], rows)


def page(repository):
    sources = repository / "crds/contract/src"
    text = INTRODUCTION
    text += "## Environment of a rank\n\n"
    variables = [item for item in rust.items((sources / "env.rs").read_text()) if item.kind == "const"]
    text += table(["Variable", "Meaning"], [(f"`{item.value}`", item.documentation) for item in variables])
    text += "\nThe ranks also get `RANK`, `LOCAL_RANK`, `WORLD_SIZE`, `MASTER_ADDR` and `MASTER_PORT`, as torchrun sets them.\n"
    text += "\n## Exit codes and outcomes\n\n" + exit_codes((sources / "exit.rs").read_text())
    for title, *modules in FILES:
        text += f"\n## {title}\n"
        # The sources define what a struct consists of before it.
        for item in [item for module in modules for item in reversed(rust.items((sources / f"{module}.rs").read_text()))]:
            if item.kind != "const" and item.name not in INTERNAL:
                members = of_struct(item) if item.kind == "struct" else of_enum(item)
                text += f"\n### `{item.name}`\n\n{in_json(item.documentation)}\n\n{members}"
    return text
