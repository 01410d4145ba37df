#!/usr/bin/env python3
"""Checks that each word of the glossary is linked where the book uses it first, in the order of its pages."""

import re
import sys
from pathlib import Path

PAGES = Path(__file__).resolve().parents[2] / "docs/src"
GLOSSARY = "concepts/glossary.md"
# The program of a terminal everywhere but in the chapter on how Pawl works inside.
OTHER_SENSE = {"Shell"}
LINK = re.compile(r"\[([^\]]*)\]\(([^)\s]*)\)")


def words():
    """The words of the glossary that are checked, and the anchors of their headings."""
    names = re.findall(r"^## (.+)$", (PAGES / GLOSSARY).read_text(), re.M)
    return {name: name.lower().replace(" ", "-") for name in names if name not in OTHER_SENSE}


def pages():
    """The pages in the order of the summary, as lines of prose: no code, no headings, no included documents."""
    for page in re.findall(r"\]\(([\w/]+\.md)\)", (PAGES / "SUMMARY.md").read_text()):
        # The pages of the reference are generated.
        if page == GLOSSARY or page.startswith("reference/"):
            continue
        in_code = False
        for number, line in enumerate((PAGES / page).read_text().splitlines(), 1):
            if line.lstrip().startswith("```"):
                in_code = not in_code
            elif not in_code and not line.startswith(("#", "<!--")) and not line.endswith("<!-- inserted in the book -->"):
                yield page, number, re.sub(r"`[^`]*`", "", line)


def problems(lines):
    for word, anchor in words().items():
        form = re.escape(word.lower())
        use = re.compile(rf"\b{form[:-1]}(?:y|ies)\b" if form.endswith("y") else rf"\b{form}(?:e?s)?\b", re.I)
        for page, number, line in lines:
            if not use.search(LINK.sub(r"\1", line)):
                continue
            if not any(use.search(text) and target.endswith(f"glossary.md#{anchor}") for text, target in LINK.findall(line)):
                yield f"{page}:{number}: the first use of \"{word.lower()}\" has no link to glossary.md#{anchor}"
            break


def main():
    found = list(problems(list(pages())))
    print("\n".join(found))
    return 1 if found else 0


sys.exit(main())
