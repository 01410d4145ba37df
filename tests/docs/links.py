#!/usr/bin/env python3
"""Checks links without a network: files and anchors of the built book, files of the repository, and the READMEs' files.

    links.py DIRECTORY      the directory of the built book
    links.py --self-test    that missing pages, anchors, images and files are found
"""

import re
import sys
import tempfile
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag

ROOT = Path(__file__).resolve().parents[2]
IN_REPOSITORY = re.compile(r"https://github\.com/pawl-dev/pawl/(?:blob|tree)/main/([^#?]+)")
READMES = [
    "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "DESIGN.md", "SECURITY.md", "charts/README.md", "charts/pawl/README.md", "crds/README.md",
    "docs/README.md", "examples/README.md", "operator/README.md", "tests/README.md", "trainer-image/README.md",
    "trainer-image/python/README.md",
]
# Pages that mdBook adds: print.html repeats all others.
OF_MDBOOK = {"print.html", "404.html", "toc.html"}


class Page(HTMLParser):
    """The links and ids of a page."""

    def __init__(self, text):
        super().__init__()
        self.links, self.ids = [], set()
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.ids |= {given[name] for name in ("id", "name") if given.get(name)}
        self.links += [given[name] for name in ("href", "src") if given.get(name) and tag != "base"]


def problems(book):
    """Yields a description of each broken link."""
    pages = {path: Page(path.read_text()) for path in book.rglob("*.html")}
    for path, page in sorted(pages.items()):
        if path.name in OF_MDBOOK:
            continue
        for link in page.links:
            problem = broken(link, path, pages)
            if problem:
                yield f"{path.relative_to(book)}: {link}: {problem}"


def broken(link, path, pages):
    """What is wrong with a link of the page at `path`; `None` if nothing is."""
    file = IN_REPOSITORY.match(link)
    if file:
        return None if (ROOT / unquote(file[1])).exists() else "no such file in the repository"
    if re.match(r"[a-z]+:", link) or link.startswith("//"):
        return None
    address, fragment = urldefrag(link)
    target = (path.parent / unquote(address)).resolve() if address else path
    target = target / "index.html" if target.is_dir() else target
    if not target.exists():
        return "no such file"
    if fragment and target.suffix == ".html" and unquote(fragment) not in pages[target].ids:
        return "no such anchor"
    return None


def in_readmes():
    """Yields a description of each relative link of a README to a missing file."""
    for name in READMES:
        path = ROOT / name
        for link in re.findall(r"\]\(([^)\s]+)\)", path.read_text()):
            file = urldefrag(link)[0]
            if file and ":" not in file and not (path.parent / unquote(file)).exists():
                yield f"{name}: {link}: no such file"


def self_test():
    links = {
        'href="#here"': False, 'href="other.html#there"': False, 'href="https://example.org/x"': False,
        'href="https://github.com/pawl-dev/pawl/blob/main/README.md"': False,
        'href="#nowhere"': True, 'href="other.html#nowhere"': True, 'href="missing.html"': True, 'src="missing.png"': True,
        'href="https://github.com/pawl-dev/pawl/blob/main/missing.md"': True,
    }
    with tempfile.TemporaryDirectory() as folder:
        book = Path(folder).resolve()
        (book / "other.html").write_text('<p id="there">')
        for link, wrong in links.items():
            (book / "page.html").write_text(f'<p id="here"><a {link}></a>')
            if bool(list(problems(book))) != wrong:
                sys.exit(f"links.py: {link}: {'not found' if wrong else 'a false alarm'}")


def main():
    if sys.argv[1:] == ["--self-test"]:
        return self_test()
    book = Path(sys.argv[1]).resolve()
    if not (book / "index.html").exists():
        sys.exit(f"links.py: {book} is not a built book")
    found = [*problems(book), *in_readmes()]
    print("\n".join(found))
    return 1 if found else 0


sys.exit(main())
