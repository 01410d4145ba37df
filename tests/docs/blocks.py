#!/usr/bin/env python3
"""Runs and checks the code blocks of the book.

    blocks.py [PAGE...]

A comment in the line before a block, or before an inserted file (docs/documents.py) for all of its blocks, says what to do with it:

    <!-- not run: REASON -->       a command block (sh) that needs a cluster, a GPU, or minutes
    <!-- file: NAME -->            the block is written to this file before the following commands of the page
    <!-- fragment of PATH -->      a part of a TrainingJob, such as spec.gates (yaml)
    <!-- values of the chart -->   values of the Helm chart (yaml)
    <!-- collector -->             a configuration of an OpenTelemetry collector, which tests/observability/collector.py checks (yaml)

Command blocks of a page run in order in one new directory, with `pawl` and `kubectl-pawl` in the PATH, the Python package, and the
directories examples, charts and crds of the repository. In all of them, run or not, the subcommands and flags of pawl and the
values of the chart must exist; so they must in the README and in CONTRIBUTING. Manifests are validated by `pawl validate`. Python must compile; sessions (pycon) are run by doctest.
"""

import ast
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import textwrap
import time
from dataclasses import dataclass
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
PAGES = ROOT / "docs/src"
sys.path.insert(0, str(ROOT / "docs"))

import documents  # noqa: E402
from reference import cli  # noqa: E402

PAWL = os.environ["PAWL"]
# Their commands are those of the book, or of developers.
READMES = ["README.md", "CONTRIBUTING.md"]
# Seconds that the commands of a block may take.
LONGEST = 120
FENCE = re.compile(r"^(\s*)```(\S*)\s*$")
COMMENT = re.compile(r"^<!-- (.*) -->$")
KINDS = {"sh", "yaml", "python", "pycon", "text", "promql", "json", "dockerfile"}
SCHEMA = json.loads((ROOT / "charts/pawl/values.schema.json").read_text())


@dataclass
class Block:
    page: str
    line: int
    kind: str
    text: str
    marks: dict

    def __str__(self):
        return f"{self.page}:{self.line}"


class Problem(Exception):
    """What is wrong with a block."""


def marks(comment):
    """The meaning of a comment before a block."""
    for prefix in ("not run: ", "file: ", "fragment of "):
        if comment.startswith(prefix):
            return {prefix.strip(": "): comment.removeprefix(prefix)}
    return {comment: ""} if comment in ("values of the chart", "collector") else {}


def blocks(page, text, outer=None):
    """Yields the blocks of a text, those of its inserted files included. `outer`: the marks of an inserted file."""
    before, open_block, lines, own = {}, None, [], dict(outer or {})
    for number, line in enumerate(text.splitlines(), 1):
        fence = FENCE.match(line)
        if open_block is not None:
            if fence and not fence[2]:
                yield Block(page, open_block[0], open_block[1], textwrap.dedent("\n".join(lines)) + "\n", open_block[2])
                open_block, lines, before = None, [], {}
            else:
                lines.append(line)
        elif fence:
            open_block = (number, fence[2], own | before)
        elif comment := COMMENT.match(line):
            before = before | marks(comment[1])
        elif document := documents.DIRECTIVE.match(line):
            source = documents.source(document, page)
            yield from blocks(f"{page} ({source})", documents.inserted(source, document[2]), before)
            before = {}
        elif line.strip():
            before = {}


class Commands:
    """The commands of pawl, and their options."""

    def __init__(self):
        helps = dict(cli.commands(PAWL))
        self.options = {path: set(re.findall(r"^ +(?:(-\w), )?(--[\w-]+)", text, re.M)) for path, text in helps.items()}
        self.options = {path: {name for pair in pairs for name in pair if name} for path, pairs in self.options.items()}
        self.valued = {path: set(re.findall(r"(--[\w-]+) <", text)) for path, text in helps.items()}
        # What follows the script belongs to the script.
        self.wrappers = {path for path, text in helps.items() if re.search(r"^Usage: .* <SCRIPT> \[ARGUMENTS\]\.\.\.$", text, re.M)}

    def check(self, words):
        """Raises a problem of the words after `pawl`."""
        path, rest = (), list(words)
        while rest and not rest[0].startswith("-") and (*path, rest[0]) in self.options:
            path = (*path, rest.pop(0))
        below = [known for known in self.options if len(known) == len(path) + 1 and known[: len(path)] == path]
        command = " ".join(("pawl", *path))
        if below and rest and not rest[0].startswith("-"):
            raise Problem(f"{command} has no subcommand {rest[0]}")
        before = None
        for word in rest:
            value = before in self.valued[path]
            before = word
            if word == "--" or (path in self.wrappers and not value and not word.startswith("-")):
                return
            option = word.split("=")[0]
            if re.match(r"--?[A-Za-z]", option) and option not in self.options[path] | {"-h", "--help", "-V", "--version"}:
                raise Problem(f"{command} has no option {option}")


def simple_commands(script):
    """Yields the words of each simple command of a script."""
    for line in script.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        words = []
        for word in [*lexer, ";"]:
            if re.fullmatch(r"[;&|()]+", word):
                while words and re.fullmatch(r"\w+=.*", words[0]):
                    words.pop(0)
                if words:
                    yield words
                words = []
            else:
                words.append(word)


def chart_value(path):
    """Raises a problem if the chart has no such value."""
    at = SCHEMA
    for name in re.sub(r"\[\d+\]", "", path).split("."):
        if "properties" not in at and at.get("type") in ("object", ["object", "null"], "array"):
            return
        at = at.get("properties", {}).get(name)
        if at is None:
            raise Problem(f"the chart has no value {path}")


def check_commands(commands, script):
    for words in simple_commands(script):
        if words[0] == "pawl":
            commands.check(words[1:])
        elif words[:2] == ["kubectl", "pawl"]:
            commands.check(["kubectl", *words[2:]])
        elif words[:3] == ["cargo", "run", "--release"] and words[3:4] == ["--"]:
            commands.check(words[4:])
        elif words[0] == "helm":
            if "--reuse-values" in words:
                raise Problem("--reuse-values leaves the values of a new chart unset: use --reset-then-reuse-values")
            for before, word in zip(words, words[1:]):
                if before in ("--set", "--set-string", "--set-json"):
                    chart_value(word.split("=")[0])


def leaves(values, path=""):
    for name, value in values.items():
        where = f"{path}.{name}" if path else name
        yield where
        if isinstance(value, dict):
            yield from leaves(value, where)


def manifest_of(fragment, path):
    """A valid TrainingJob that contains the fragment at `path`."""
    spec = {"workload": {"name": "ups"}, "gates": {"validationLossDelta": "0.1"}}
    job = {"apiVersion": "pawl.dev/v1alpha1", "kind": "TrainingJob", "metadata": {"name": "fragment"}, "spec": spec}
    *parents, last = path.split(".")
    at = job
    for name in parents:
        at = at.setdefault(name, {})
    at[last] = {**at.get(last, {}), **fragment} if isinstance(fragment, dict) else fragment
    if last == "spec" and "command" in at[last].get("workload", {}):
        at[last]["workload"].pop("name", None)
    # A fragment may be of any workload: with another image, what the built-in ones refuse are warnings.
    job["spec"].setdefault("trainer", {}).setdefault("image", "fragment")
    return job


def validate(text):
    done = subprocess.run([PAWL, "validate", "-"], input=text, capture_output=True, text=True)
    if done.returncode:
        raise Problem(f"pawl validate: {done.stdout}{done.stderr}")


def check_yaml(block):
    try:
        found = [document for document in yaml.safe_load_all(block.text) if document is not None]
    except yaml.YAMLError as error:
        raise Problem(f"invalid YAML: {error}") from error
    if "fragment of" in block.marks:
        # The text is kept: a value that only YAML 1.1 understands must not be repaired by reading it here.
        return validate(json.dumps(manifest_of(found[0], block.marks["fragment of"])))
    if "values of the chart" in block.marks:
        for path in leaves(found[0]):
            chart_value(path)
        return None
    if "collector" in block.marks:
        return None
    for document in found:
        if not isinstance(document, dict) or "apiVersion" not in document:
            raise Problem("not a whole object: mark it by <!-- fragment of PATH --> or <!-- values of the chart -->")
    if found and all(document["apiVersion"].startswith("pawl.dev/") for document in found):
        validate(block.text)
    return None


def check_python(block):
    try:
        ast.parse(block.text)
    except SyntaxError as error:
        raise Problem(f"invalid Python: {error}") from error


class Sandbox:
    """The directory in which the commands of a page run."""

    def __init__(self, folder):
        self.folder = Path(folder)
        programs = self.folder / "bin"
        programs.mkdir()
        for name in ("pawl", "kubectl-pawl"):
            (programs / name).symlink_to(PAWL)
        self.work = self.folder / "work"
        self.work.mkdir()
        for name in ("examples", "charts", "crds"):
            (self.work / name).symlink_to(ROOT / name)
        self.environment = {
            **os.environ,
            "PATH": f"{programs}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT / "trainer-image/python/src"),
            "HOME": str(self.folder),
        }

    def run(self, script):
        command = ["bash", "-euo", "pipefail", "-c", script]
        try:
            done = subprocess.run(command, cwd=self.work, env=self.environment, capture_output=True, text=True, timeout=LONGEST)
        except subprocess.TimeoutExpired as late:
            raise Problem(f"takes longer than {LONGEST} s") from late
        if done.returncode:
            raise Problem(f"exit code {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")


def check(block, commands, sandbox):
    """Checks a block, and runs it if it is to be run. Returns what was done."""
    if block.kind not in KINDS:
        raise Problem(f"the language {block.kind or '(none)'} is not one of {', '.join(sorted(KINDS))}")
    if "file" in block.marks:
        (sandbox.work / block.marks["file"]).write_text(block.text)
    if block.kind == "yaml":
        check_yaml(block)
    elif block.kind == "python":
        check_python(block)
    elif block.kind == "pycon":
        # As in the module: what it defines has no prefix.
        names = ">>> import pawl_launch\n>>> from pawl_launch import *\n"
        (sandbox.work / "session.txt").write_text(names + block.text)
        sandbox.run("python3 -m doctest session.txt")
    elif block.kind == "sh" and "file" not in block.marks:
        check_commands(commands, block.text)
        if "not run" not in block.marks:
            began = time.monotonic()
            sandbox.run(block.text)
            return f"run, {time.monotonic() - began:.1f} s"
    return "checked"


def texts(wanted):
    """Yields the blocks of each wanted page; by default of all pages, and of the READMEs."""
    for page in wanted or [str(path.relative_to(PAGES)) for path in sorted(PAGES.rglob("*.md"))]:
        yield blocks(page, (PAGES / page).read_text())
    for name in [] if wanted else READMES:
        yield blocks(name, (ROOT / name).read_text(), {"not run": "see READMES"})


def main():
    commands = Commands()
    passed = failed = 0
    for found in texts(sys.argv[1:]):
        with tempfile.TemporaryDirectory() as folder:
            sandbox = Sandbox(folder)
            for block in found:
                if block.kind in ("text", "promql", "json") and "file" not in block.marks:
                    continue
                try:
                    print(f"ok    {block}: {block.kind} {check(block, commands, sandbox)}")
                    passed += 1
                except (Problem, ValueError) as problem:
                    print(f"FAIL  {block}: {problem}")
                    failed += 1
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


sys.exit(main())
