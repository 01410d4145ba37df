#!/usr/bin/env python3
"""A preprocessor of mdBook: inserts texts of the repository into pages, and makes links to files of the repository.

A line `[TEXT](PATH) <!-- inserted in the book -->` is a link for whoever reads the page in the repository. In the book it is
replaced by the file: a Markdown file without its title, or with `PATH#ANCHOR` one of its sections; another file as a code block.
Relative links of that text lead to the page that contains the file, or else to the file in the repository. So do links of pages that
leave the book, such as `../../../examples/quickstart.yaml`.
"""

import json
import os
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# The directory of the pages.
PAGES = "docs/src"
REPOSITORY = "https://github.com/pawl-dev/pawl"
INSERTED = "<!-- inserted in the book -->"
DIRECTIVE = re.compile(rf"^\[[^\]]*\]\(([^)\s#]+)(?:#([^)\s]+))?\) {INSERTED}$", re.M)
# The languages of code blocks. Blocks of Rust would be compiled by mdBook.
LANGUAGES = {".py": "python", ".yaml": "yaml", ".rs": "text"}
LINK = re.compile(r"\]\(([^)\s]+)\)")
FENCE = re.compile(r"^ *(```|~~~)")
HEADING = re.compile(r"^(#+) (.*)$")


def fail(message):
    sys.exit(f"docs/documents.py: {message}")


def anchor(heading):
    """The id of a heading, as GitHub and mdBook form it."""
    words = re.sub(r"[^\w\- ]", "", heading.strip().lower())
    return words.replace(" ", "-")


def lines_with_fences(text):
    """Yields (line, whether it is in a code block)."""
    inside = False
    for line in text.splitlines():
        fence = bool(FENCE.match(line))
        yield line, inside or fence
        inside ^= fence


def section(text, wanted, path):
    """The text below the heading with the id `wanted`; its own headings begin at the second level."""
    found, level = [], 0
    for line, code in lines_with_fences(text):
        heading = None if code else HEADING.match(line)
        if level and heading and len(heading[1]) <= level:
            break
        if level:
            found.append("#" * (len(heading[1]) - level + 1) + " " + heading[2] if heading else line)
        elif heading and anchor(heading[2]) == wanted:
            level = len(heading[1])
    if not level:
        fail(f"{path} has no section #{wanted}")
    return "\n".join(found)


def source(found, page):
    """The path of the file that a directive of a page inserts, from the root of the repository."""
    return os.path.normpath(os.path.join(PAGES, os.path.dirname(page), found[1]))


def inserted(path, wanted):
    """The file, or its section `wanted`, as Markdown."""
    text, suffix = (ROOT / path).read_text(), os.path.splitext(path)[1]
    if suffix in LANGUAGES:
        return f"```{LANGUAGES[suffix]}\n{text}```"
    return section(text, wanted, path) if wanted else without_title(text)


def without_title(text):
    return re.sub(r"\A# .*\n", "", text)


def in_repository(path):
    """The address of a file or directory of the repository."""
    if not (ROOT / path).exists():
        fail(f"a link leads to {path}, which does not exist")
    return f"{REPOSITORY}/{'tree' if (ROOT / path).is_dir() else 'blob'}/main/{path}"


def outside_code(text, change):
    """`text` with `change` applied to the lines that are not in code blocks."""
    return "\n".join(line if code else change(line) for line, code in lines_with_fences(text))


class Pages:
    """The pages of the book, by the documents that they contain."""

    def __init__(self, chapters):
        self.of_document = {}
        for chapter in chapters:
            for found in DIRECTIVE.finditer(chapter["content"]):
                if found[1].endswith(".md") and not found[2]:
                    self.of_document[source(found, chapter["path"])] = chapter["path"]

    def address(self, path, page, fragment):
        """A link of `page` to a file or directory of the repository: to the page that contains it, if there is one."""
        at = self.of_document.get(path)
        return f"]({os.path.relpath(at, os.path.dirname(page) or '.') if at else in_repository(path)}{fragment})"

    def leaving(self, found, page):
        """A link of a page, if it leaves the book, as one that is correct there."""
        path, _, fragment = found[1].partition("#")
        target = os.path.normpath(os.path.join(PAGES, os.path.dirname(page), path))
        if not path or ":" in path or target.startswith(PAGES + "/"):
            return found[0]
        return self.address(target, page, f"#{fragment}" if fragment else "")

    def relinked(self, text, document, page, whole):
        """`text` of `document`, with links that are correct in `page`."""

        def target(found):
            link, _, fragment = found[1].partition("#")
            fragment = f"#{fragment}" if fragment else ""
            if link.startswith(("http:", "https:", "mailto:")):
                return found[0]
            if not link and whole:
                return found[0]
            path = os.path.normpath(os.path.join(os.path.dirname(document), link)) if link else document
            return self.address(path, page, fragment)

        return outside_code(text, lambda line: LINK.sub(target, line))

    def expanded(self, chapter):
        """The content of a chapter with all documents, and all links to the repository."""
        page = chapter["path"]

        def document(found):
            path, wanted = source(found, page), found[2]
            return self.relinked(inserted(path, wanted), path, page, not wanted).strip("\n")

        def own(line):
            return line if DIRECTIVE.match(line) else LINK.sub(lambda found: self.leaving(found, page), line)

        # Before its documents are inserted: their links are correct already.
        return DIRECTIVE.sub(document, outside_code(chapter["content"], own)) + "\n"


def chapters(items):
    """Every chapter of the book, nested ones included."""
    for item in items:
        if isinstance(item, dict) and "Chapter" in item:
            chapter = item["Chapter"]
            if chapter.get("path"):
                yield chapter
            yield from chapters(chapter["sub_items"])


def main():
    if sys.argv[1:2] == ["supports"]:
        return
    _, book = json.load(sys.stdin)
    found = list(chapters(book["items"]))
    pages = Pages(found)
    for chapter in found:
        chapter["content"] = pages.expanded(chapter)
    json.dump(book, sys.stdout)


if __name__ == "__main__":
    main()
