"""Documented items of Rust sources: constants, structs with their fields, enums with their variants.

Reads the formatted sources of crds/contract line by line. It knows what rustfmt writes, not all of Rust.
"""

import re
from dataclasses import dataclass, field

DOC = re.compile(r"^\s*///\s?(.*)$")
ATTRIBUTE = re.compile(r"^\s*#\[(.*)$")
CONSTANT = re.compile(r'^pub const (\w+): &str = "([^"]*)";$')
ITEM = re.compile(r"^pub (struct|enum) (\w+)(?:<.*>)? \{$")
FIELD = re.compile(r"^    pub (\w+): (.*),$")
VARIANT = re.compile(r"^    (\w+)(?: = [^,]+)?,$")


@dataclass
class Item:
    """A constant (with its value), a struct or an enum (with its members)."""

    kind: str
    name: str
    documentation: str
    value: str = ""
    members: list = field(default_factory=list)


@dataclass
class Member:
    """A field (with its type) or a variant, and its attributes."""

    name: str
    documentation: str
    type: str = ""
    attributes: str = ""


def prose(lines):
    """Documentation as Markdown: without examples, and with links to items as plain names."""
    text, inside = [], False
    for line in lines:
        if line.startswith("```"):
            inside = not inside
        elif not inside:
            text.append(line)
    joined = "\n".join(text).strip()
    joined = re.sub(r"\[`(?:\w+@)?(?:[a-z_]+::)*(\w+(?:::\w+)*)`\](?:\([^)]*\))?", lambda found: f"`{found[1].replace('::', '.')}`", joined)
    return joined


def items(source):
    """The public, documented items of a source text, in order."""
    found, documentation, attributes, open_item = [], [], [], None
    for line in source.splitlines():
        if line.startswith("#[cfg(test)]"):
            break
        if comment := DOC.match(line):
            documentation.append(comment[1])
            continue
        if attribute := ATTRIBUTE.match(line):
            attributes.append(attribute[1])
            continue
        if open_item is not None:
            if line == "}":
                open_item = None
            elif member := FIELD.match(line):
                open_item.members.append(Member(member[1], prose(documentation), member[2], " ".join(attributes)))
            elif member := VARIANT.match(line):
                open_item.members.append(Member(member[1], prose(documentation), "", " ".join(attributes)))
        elif constant := CONSTANT.match(line):
            found.append(Item("const", constant[1], prose(documentation), constant[2]))
        elif item := ITEM.match(line):
            open_item = Item(item[1], item[2], prose(documentation))
            found.append(open_item)
        documentation, attributes = [], []
    return found


def camel(name):
    """A field's name in JSON."""
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)
