"""The package and the Rust types of the contract agree."""

import re

from conftest import ROOT
from pawl_launch import Outcome
from pawl_launch.plan import CONTRACT, KINDS

SOURCES = ROOT / "crds/contract/src"


def source(name: str) -> str:
    return (SOURCES / name).read_text()


def test_exit_codes() -> None:
    body = source("exit.rs").split("const fn exit_code")[1].split("pub const fn")[0]
    codes = {
        name: int(code) for names, code in re.findall(r"((?:Self::\w+\s*\|?\s*)+)=> (\d+)", body) for name in re.findall(r"Self::(\w+)", names)
    }
    # A process that hangs does not exit.
    assert codes.pop("Hang") == 1
    assert codes == {outcome.value: outcome.exit_code for outcome in Outcome}


def test_phases() -> None:
    phases = source("progress.rs").split("pub enum RankPhase {")[1].split("\n}")[0]
    package = ROOT / "trainer-image/python/src/pawl_launch"
    sources = [(package / file).read_text() for file in ("keeper.py", "progress.py", "run.py")]
    used = {name for text in sources for name in re.findall(r'"([A-Z][a-z]+ing)"', text)}
    assert used == {"Starting", "Resuming", "Training", "Validating", "Saving"}
    assert used <= set(re.findall(r"^    (\w+),", phases, re.MULTILINE))


def test_kinds_and_version() -> None:
    kinds = source("plan.rs").split("pub enum LaunchKind {")[1].split("}")[0]
    assert tuple(re.findall(r"^    (\w+),", kinds, re.MULTILINE)) == KINDS
    assert f"CONTRACT_VERSION: u32 = {CONTRACT};" in source("lib.rs")


def test_environment_variables() -> None:
    known = set(re.findall(r'"(PAWL_\w+)"', source("env.rs")))
    package = (ROOT / "trainer-image/python/src/pawl_launch").glob("*.py")
    used = {name for file in package for name in re.findall(r'"(PAWL_[A-Z_]+[A-Z])"', file.read_text())}
    assert used and used <= known
