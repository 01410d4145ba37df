"""The Python package: signatures and docstrings of its public names."""

import ast
import re
import textwrap

INTRODUCTION = """# The Python package `pawl_launch`

Signatures and docstrings. [Bring your script](../script/index.md) shows how they are used.

"""
MODULES = ["pytorch", "hf", "lightning", "accelerate", "jobs"]


def with_tables(text):
    """`text` with its simple tables of reStructuredText, whose second column follows two spaces, as tables of Markdown."""
    lines, rules = [], 0
    for line in text.splitlines():
        if re.fullmatch(r"=+ +=+", line):
            rules = (rules + 1) % 3
            lines += ["| --- | --- |"] if rules == 2 else []
        elif rules:
            left, right = re.split(r" {2,}", line, maxsplit=1)
            lines.append(f"| {left} | {right} |")
        else:
            lines.append(line)
    return "\n".join(lines)


def docstring(node):
    """A docstring as Markdown: references of Sphinx become code, examples code blocks."""
    # A module's docstring is not indented: cleaning would remove the indentation of its code blocks.
    text = ast.get_docstring(node, clean=not isinstance(node, ast.Module)) or ""
    text = re.sub(r":\w+:`~?([^`]+)`", r"`\1`", text).replace("``", "`")
    lines, example = [], False
    for line in with_tables(text).splitlines():
        starts = line.startswith(">>>")
        if starts and not example:
            lines.append("```pycon")
        elif example and not line.strip():
            lines.append("```")
        example = starts or (example and bool(line.strip()))
        lines.append(line)
    text = "\n".join(lines + (["```"] if example else []))
    # The list of exceptions: its indented lines would be code.
    head, found, raised = text.partition("\nRaises:\n")
    if found:
        return head + "\nRaises:\n\n" + re.sub(r"^(\w+):", r"- `\1`:", textwrap.dedent(raised), flags=re.M)
    return text


def signature(name, node):
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    return f"{name}({ast.unparse(node.args)}){returns}".replace("(self, ", "(").replace("(self)", "()")


def functions(body, prefix=""):
    """Yields (name, node) of the public functions and properties of a module or class."""
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and not node.name.startswith("_") and ast.get_docstring(node):
            setter = any(isinstance(decorator, ast.Attribute) for decorator in node.decorator_list)
            if not setter:
                yield prefix + node.name, node


def is_property(node):
    return any(isinstance(decorator, ast.Name) and decorator.id == "property" for decorator in node.decorator_list)


def of_function(level, name, node):
    shown = name if is_property(node) else signature(name, node)
    return f"{'#' * level} `{shown}`\n\n{docstring(node)}\n\n"


def of_class(level, name, node):
    text = f"{'#' * level} `class {name}`\n\n{docstring(node)}\n\n"
    return text + "".join(of_function(level + 1, own, inner) for own, inner in functions(node.body))


def exported(sources):
    """Yields (name, module) of what the package exports."""
    tree = ast.parse((sources / "__init__.py").read_text())
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.level:
            for alias in node.names:
                yield alias.name, node.module


def page(repository):
    sources = repository / "trainer-image/python/src/pawl_launch"
    modules = {path.stem: ast.parse(path.read_text()) for path in sources.glob("*.py")}
    text = INTRODUCTION + "## `pawl_launch`\n\n" + docstring(modules["__init__"]) + "\n\n"
    classes = {node.name: node for tree in modules.values() for node in tree.body if isinstance(node, ast.ClassDef)}
    for name, module in sorted(exported(sources)):
        [node] = [node for node in modules[module].body if getattr(node, "name", None) == name]
        if isinstance(node, ast.ClassDef):
            text += of_class(3, name, node)
            for base in node.bases:
                # What a public class inherits from a private module is a part of it.
                inherited = classes.get(getattr(base, "id", ""))
                if inherited is not None and base.id not in dict(exported(sources)):
                    text += "".join(of_function(4, own, inner) for own, inner in functions(inherited.body))
        else:
            text += of_function(3, name, node)
    for module in MODULES:
        tree = modules[module]
        text += f"## `pawl_launch.{module}`\n\n{docstring(tree)}\n\n"
        text += "".join(of_function(3, name, node) for name, node in functions(tree.body))
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_") and ast.get_docstring(node):
                text += of_class(3, node.name, node)
    return re.sub(r"\n{3,}", "\n\n", text)
