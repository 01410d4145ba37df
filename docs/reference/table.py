"""Markdown tables."""


def cell(text):
    """Text as the content of a cell; line breaks become `<br>`, except within a paragraph."""
    lines = [line.strip() for line in text.strip().splitlines()]
    joined = ""
    for line in lines:
        separator = "<br>" if line.startswith("- ") or not line else " "
        joined = f"{joined}{separator}{line.removeprefix('- ') if line.startswith('- ') else line}" if joined else line
    return joined.replace("|", "\\|")


def table(head, rows):
    """A table with the given column titles; cells are Markdown."""
    lines = [head, ["---"] * len(head), *[[cell(value) for value in row] for row in rows]]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
