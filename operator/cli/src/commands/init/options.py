"""Prints the options that a training script declares, as JSON. The script is read, never run: `python3 -I - SCRIPT`."""

import ast
import json
import sys


def constant(node):
    """The value of a literal; None for everything else."""
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None


def name(node):
    """The last name of `a.b.c`."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def takes(given, names, keywords, default):
    """What an option is followed by."""
    action = keywords.get("action")
    action = constant(action) or name(action) if action is not None else "store"
    pair = any("/" in word for word in given)
    if action in ("store_true", "BooleanOptionalAction") or pair or constant(keywords.get("is_flag", ast.Constant(None))) is True:
        return "Nothing"
    if action != "store":
        return "Other"
    kind = name(keywords["type"]) if "type" in keywords else ""
    if kind == "bool" or "2bool" in kind or "tobool" in kind or (not kind and isinstance(default, bool)):
        return "Boolean"
    return "Value"


def options(tree):
    for call in ast.walk(tree):
        # argparse and click.
        if not isinstance(call, ast.Call) or name(call.func) not in ("add_argument", "option"):
            continue
        given = [value for value in map(constant, call.args) if isinstance(value, str) and value.startswith("--")]
        names = [word.split("/")[0] for word in given]
        keywords = {keyword.arg: keyword.value for keyword in call.keywords}
        default = constant(keywords["default"]) if "default" in keywords else None
        choices = constant(keywords["choices"]) if "choices" in keywords else None
        if names:
            short = [value for value in map(constant, call.args) if isinstance(value, str) and value[:1] == "-" != value[1:2]]
            yield {
                "names": names,
                "short": short,
                "takes": takes(given, names, keywords, default),
                "default": default if isinstance(default, (bool, int, float, str)) else None,
                "choices": [str(choice) for choice in choices] if isinstance(choices, (list, tuple, set)) else [],
            }


def complete(tree):
    """Whether nothing says that there are more options than those: a parent parser, names made by code, a parser of a class."""
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg == "parents":
            return False
        if isinstance(node, (ast.Name, ast.Attribute, ast.alias)):
            word = node.name if isinstance(node, ast.alias) else name(node)
            if word in ("HfArgumentParser", "LightningCLI", "tyro", "typer", "fire", "hydra", "absl", "add_fit_args"):
                return False
        if isinstance(node, ast.Call) and name(node.func) == "add_argument":
            if any(not isinstance(argument, ast.Constant) for argument in node.args):
                return False
    return True


tree = ast.parse(open(sys.argv[1], "rb").read())
print(json.dumps({"declared": list(options(tree)), "complete": complete(tree)}))
