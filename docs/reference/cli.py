"""The command line: the --help of every command."""

import subprocess

INTRODUCTION = """# The command line

The program is `pawl`. It is also a kubectl plugin: with a link to it named `kubectl-pawl` in the `PATH`, `kubectl pawl status`
is `pawl kubectl status`. A second link named `kubectl_complete-pawl` enables shell completion of the plugin.

The commands `kubectl` and `operator` are part of a build with the feature `cluster`, as in released programs and images; `cargo run`
in a fresh clone builds the others.

"""
# These set options of `pawl operator`, and --help would show their values.
CLEAN = {"PATH": "/usr/bin:/bin", "HOME": "/"}


def help_of(pawl, command):
    answer = subprocess.run([pawl, *command, "--help"], env=CLEAN, capture_output=True, text=True, check=True)
    return "\n".join(line.rstrip() for line in answer.stdout.splitlines())


def subcommands(text):
    """The names below `Commands:` of a help text, except `help` itself."""
    _, found, rest = text.partition("\nCommands:\n")
    if not found:
        return []
    names = [line.split()[0] for line in rest.split("\n\n")[0].splitlines() if line.startswith("  ") and line[2] != " "]
    return [name for name in names if name != "help"]


def commands(pawl, path=()):
    """Yields (command, help text) of every command, depth first."""
    text = help_of(pawl, path)
    yield path, text
    for name in subcommands(text):
        yield from commands(pawl, (*path, name))


def page(pawl):
    sections = [f"## `{' '.join(('pawl', *path))}`\n\n```text\n{text}\n```\n" for path, text in commands(pawl)]
    return INTRODUCTION + "\n".join(sections)
