"""Prints the options that a training script declares, as JSON. The script is read, never run: `python3 -I - SCRIPT [ARGUMENTS]`."""

import ast
import json
import operator
import sys

ARITHMETIC = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
}
# Parsers whose options are elsewhere, or are made by code.
ELSEWHERE = {"tyro", "typer", "add_fit_args", "DEFINE_config_file", "DEFINE_config_dict", "simple_parsing"}
BOOLEANS = ("1", "true", "True", "yes", "on")
OFF = ("", "0", "false", "False", "no", "off")


def constant(node):
    """The value of a literal, or of sums and products of numbers; None for everything else."""
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        pass
    if isinstance(node, ast.BinOp) and type(node.op) in ARITHMETIC:
        left, right = constant(node.left), constant(node.right)
        if all(isinstance(value, (int, float)) for value in (left, right)):
            try:
                return ARITHMETIC[type(node.op)](left, right)
            except (ArithmeticError, MemoryError):
                return None
    return None


def name(node):
    """The last name of `a.b.c`."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def calls(tree, *names):
    return [node for node in ast.walk(tree) if isinstance(node, ast.Call) and name(node.func) in names]


def keywords(call):
    return {keyword.arg: keyword.value for keyword in call.keywords}


def option(names, takes, default=None, choices=(), short=(), required=False, style="Option", on="True", place=None):
    default = default if isinstance(default, (bool, int, float, str)) else None
    choices = [str(choice) for choice in choices] if isinstance(choices, (list, tuple, set)) else []
    return {
        "names": list(names),
        "short": list(short),
        "takes": takes,
        "default": default,
        "choices": choices,
        "required": required,
        "style": style,
        "on": on,
        "place": place,
    }


def kind(annotation, default):
    """What an option with this type and default is followed by."""
    if isinstance(default, bool) or (annotation is not None and "bool" in ast.dump(annotation)):
        return "Boolean"
    return "Value"


def takes(given, arguments, default):
    """What an option of argparse or click is followed by."""
    action = arguments.get("action")
    action = constant(action) or name(action) if action is not None else "store"
    pair = any("/" in word for word in given)
    is_flag = constant(arguments.get("is_flag", ast.Constant(None))) is True
    if action in ("store_true", "BooleanOptionalAction") or pair or is_flag:
        return "Nothing"
    if action != "store":
        return "Other"
    type_name = name(arguments["type"]) if "type" in arguments else ""
    if type_name == "bool" or "2bool" in type_name or "tobool" in type_name or (not type_name and isinstance(default, bool)):
        return "Boolean"
    # Such as `--torchcompile` of timm: alone, or followed by a backend.
    is_optional = "const" in arguments and "nargs" in arguments and constant(arguments["nargs"]) == "?"
    return "Optional" if is_optional else "Value"


def of_parsers(tree):
    """argparse and click."""
    # Those of a subcommand are required only with it.
    is_one = not calls(tree, "add_parser", "add_subparsers", "group")
    for call in calls(tree, "add_argument", "option", "argument"):
        words = [value for value in map(constant, call.args) if isinstance(value, str)]
        arguments = keywords(call)
        default = constant(arguments["default"]) if "default" in arguments else None
        given = [word for word in words if word.startswith("--")]
        is_required = is_one and constant(arguments.get("required", ast.Constant(None))) is True
        if given:
            choices = constant(arguments["choices"]) if "choices" in arguments else ()
            if not choices and "type" in arguments and name(getattr(arguments["type"], "func", None)) == "Choice":
                choices = constant(arguments["type"].args[0]) if arguments["type"].args else ()
            yield option(
                [word.split("/")[0] for word in given],
                takes(given, arguments, default),
                default,
                choices,
                short=[word for word in words if word[:1] == "-" != word[1:2]],
                required=is_required,
            )
        elif words and not words[0].startswith("-") and name(call.func) != "option":
            counts = constant(arguments["nargs"]) if "nargs" in arguments else 1
            is_optional = counts in ("?", "*", 0, -1) or "default" in arguments or "required" in arguments
            if is_one and not is_optional and call.args and len(words) == len(call.args):
                yield option([], "Value", required=True, place=words[0])


def functions(tree):
    return {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}


def classes(tree):
    return {node.name: node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}


def parameters(function):
    """Name, annotation and default of each; a default of `...` is none."""
    found = function.args
    positional = found.posonlyargs + found.args
    defaults = [...] * (len(positional) - len(found.defaults)) + found.defaults
    pairs = list(zip(positional, defaults)) + [
        (argument, default if default is not None else ...) for argument, default in zip(found.kwonlyargs, found.kw_defaults)
    ]
    return [(argument.arg, argument.annotation, default) for argument, default in pairs if argument.arg != "self"]


def of_function(function, prefix="--", style="Option", with_places=True):
    for place, (parameter, annotation, default) in enumerate(parameters(function)):
        value = None if default is ... else constant(default)
        yield option(
            [prefix + parameter],
            kind(annotation, value),
            value,
            required=default is ...,
            style=style,
            place=str(place) if with_places else None,
        )


def constructor(found):
    return next((node for node in found.body if isinstance(node, ast.FunctionDef) and node.name == "__init__"), None)


def of_fire(tree):
    """`fire.Fire(function)`, and of a class the parameters of its constructor."""
    for call in calls(tree, "Fire"):
        target = name(call.args[0]) if call.args else name(keywords(call).get("component"))
        function = functions(tree).get(target)
        if function is not None:
            yield from of_function(function)
        elif target in classes(tree) and constructor(classes(tree)[target]):
            yield from of_function(constructor(classes(tree)[target]), with_places=False)


def is_fire_known(tree):
    known = set(functions(tree)) | set(classes(tree))
    return all(call.args and name(call.args[0]) in known for call in calls(tree, "Fire"))


def of_absl(tree):
    required = set()
    for call in calls(tree, "mark_flag_as_required", "mark_flags_as_required"):
        given = constant(call.args[0]) if call.args else None
        required.update([given] if isinstance(given, str) else given or [])
    for call in ast.walk(tree):
        if not isinstance(call, ast.Call) or not name(call.func).startswith("DEFINE_"):
            continue
        of = name(call.func)[len("DEFINE_") :]
        arguments = keywords(call)
        flag = constant(call.args[0]) if call.args else constant(arguments.get("name", ast.Constant(None)))
        if not isinstance(flag, str):
            continue
        default = constant(call.args[1] if len(call.args) > 1 else arguments.get("default", ast.Constant(None)))
        choices = arguments.get("enum_values", call.args[2] if len(call.args) > 2 else None) if of == "enum" else None
        yield option(
            ["--" + flag],
            {"bool": "Boolean", "boolean": "Boolean"}.get(of, "Other" if of.startswith("multi_") else "Value"),
            default,
            constant(choices) if choices is not None else (),
            short=["-" + flag],
            required=flag in required or constant(arguments.get("required", ast.Constant(None))) is True,
        )


def is_dataclass(node):
    return any("dataclass" in ast.dump(decorator) for decorator in node.decorator_list)


def of_dataclass(tree, found, prefix, style):
    """The fields of a dataclass; one whose type is a dataclass of the file has those of that."""
    known = classes(tree)
    for base in found.bases:
        if name(base) in known:
            yield from of_dataclass(tree, known[name(base)], prefix, style)
    for node in found.body:
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
            continue
        value, field = node.value, node.target.id
        inner = known.get(name(node.annotation))
        if inner is not None and is_dataclass(inner) and style == "Key":
            yield from of_dataclass(tree, inner, prefix + field + ".", style)
            continue
        is_missing = value is None or name(value) == "MISSING"
        default = constant(value) if value is not None else None
        if isinstance(value, ast.Call) and name(value.func) == "field":
            arguments = keywords(value)
            is_missing = "default" not in arguments and "default_factory" not in arguments
            default = constant(arguments["default"]) if "default" in arguments else None
        yield option([prefix + field], kind(node.annotation, default), default, required=is_missing, style=style)


def of_dataclasses(tree):
    """`HfArgumentParser((Model, Data))`, of the classes in the file."""
    for call in calls(tree, "HfArgumentParser"):
        given = call.args[0] if call.args else keywords(call).get("dataclass_types")
        for node in given.elts if isinstance(given, (ast.Tuple, ast.List)) else [given]:
            if name(node) in classes(tree):
                yield from of_dataclass(tree, classes(tree)[name(node)], "--", "Option")


def are_dataclasses_known(tree):
    for call in calls(tree, "HfArgumentParser"):
        given = call.args[0] if call.args else keywords(call).get("dataclass_types")
        for node in given.elts if isinstance(given, (ast.Tuple, ast.List)) else [given]:
            found = classes(tree).get(name(node))
            if found is None or any(name(base) not in classes(tree) for base in found.bases):
                return False
    return True


def of_lightning(tree):
    """`LightningCLI(Model, Data)`, of the classes in the file."""
    for call in calls(tree, "LightningCLI"):
        arguments = keywords(call)
        for index, (key, prefix) in enumerate([("model_class", "--model."), ("datamodule_class", "--data.")]):
            node = call.args[index] if len(call.args) > index else arguments.get(key)
            found = classes(tree).get(name(node)) if node is not None else None
            if found is not None and constructor(found):
                yield from of_function(constructor(found), prefix, with_places=False)


def is_lightning_known(tree):
    for call in calls(tree, "LightningCLI"):
        nodes = call.args[:2] + [keyword.value for keyword in call.keywords if keyword.arg in ("model_class", "datamodule_class")]
        if len(nodes) < 2 or any(name(node) not in classes(tree) for node in nodes):
            return False
    return True


def hydra(tree):
    """Where the configuration of `@hydra.main` is; and the structured ones of a ConfigStore, in the file."""
    found = None
    for call in calls(tree, "main"):
        arguments = keywords(call)
        if "config_name" in arguments or "config_path" in arguments:
            values = [constant(arguments[key]) if key in arguments else None for key in ("config_path", "config_name")]
            found = {"path": values[0], "name": values[1]}
    return found


def of_config_store(tree):
    for call in calls(tree, "store"):
        node = keywords(call).get("node")
        if name(node) in classes(tree) and is_dataclass(classes(tree)[name(node)]) and "group" not in keywords(call):
            yield from of_dataclass(tree, classes(tree)[name(node)], "", "Key")


def assignments(body):
    """Module constants, by their names, and whether the value is a number, a boolean or a text."""
    for node in body:
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            yield node.targets[0].id, node.value
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
            yield node.target.id, node.value


def of_configurator(tree, given):
    """`exec(open('configurator.py').read())`: constants that are replaced by `--name=value`, or by a file of assignments."""
    for index, node in enumerate(tree.body):
        if not any(name(call.func) == "exec" and calls(call, "open") for call in calls(node, "exec")):
            continue
        constants = dict(assignments(tree.body[:index]))
        for path in (word for word in given if not word.startswith("-")):
            try:
                with open(path, "rb") as file:
                    constants.update(assignments(ast.parse(file.read()).body))
            except (OSError, SyntaxError, ValueError):
                continue
        for key, value in constants.items():
            default = constant(value)
            is_text = isinstance(value, (ast.IfExp, ast.JoinedStr))
            if not key.startswith("_") and (isinstance(default, (bool, int, float, str)) or is_text):
                yield option(["--" + key], kind(None, default), default)


def of_environment(tree):
    """`os.environ.get('NAME', default)`, `os.getenv('NAME', default)`, `os.environ['NAME']`."""
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    for node in ast.walk(tree):
        default, required = None, False
        if isinstance(node, ast.Call) and (
            name(node.func) == "getenv" or name(node.func) == "get" and name(getattr(node.func, "value", None)) == "environ"
        ):
            variable = constant(node.args[0]) if node.args else None
            default = constant(node.args[1]) if len(node.args) > 1 else None
        elif isinstance(node, ast.Subscript) and name(node.value) == "environ" and isinstance(node.ctx, ast.Load):
            inner = node.slice
            variable = constant(inner.value if type(inner).__name__ == "Index" else inner)
            required = True
        else:
            continue
        if not isinstance(variable, str) or not variable.isidentifier():
            continue
        takes, on = "Value", "1"
        above = parents.get(node)
        while isinstance(above, (ast.Call, ast.Attribute)):
            if isinstance(above, ast.Call) and name(above.func) == "bool":
                takes = "Boolean"
            above = parents.get(above)
        if isinstance(above, ast.Compare) and len(above.comparators) == 1:
            wanted = constant(above.comparators[0])
            wanted = list(wanted) if isinstance(wanted, (list, tuple, set)) else [wanted]
            if isinstance(above.ops[0], (ast.Eq, ast.In)):
                accepted = [word for word in BOOLEANS if word in wanted]
            else:
                accepted = ["1"] if isinstance(above.ops[0], ast.NotEq) and wanted[0] in OFF else []
            if accepted:
                takes, on = "Boolean", accepted[0]
        elif isinstance(above, (ast.If, ast.IfExp, ast.BoolOp, ast.UnaryOp)):
            takes = "Boolean"
        if isinstance(default, str):
            default = int(default) if default.isdigit() else default
        if takes == "Boolean":
            default = str(default) in BOOLEANS
        yield option([variable], takes, default, required=required, style="Variable", on=on)


def is_complete(tree):
    """Whether nothing says that there are more options than those: a parent parser, names made by code, classes of another file."""
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg == "parents":
            return False
        if isinstance(node, (ast.Name, ast.Attribute, ast.alias)):
            if (node.name if isinstance(node, ast.alias) else name(node)) in ELSEWHERE:
                return False
        if isinstance(node, ast.Call) and name(node.func) == "add_argument":
            if any(not isinstance(argument, ast.Constant) for argument in node.args):
                return False
    return is_fire_known(tree) and are_dataclasses_known(tree) and is_lightning_known(tree)


tree = ast.parse(open(sys.argv[1], "rb").read())
arguments = sys.argv[2:]
print(
    json.dumps(
        {
            "declared": [
                *of_parsers(tree),
                *of_dataclasses(tree),
                *of_lightning(tree),
                *of_fire(tree),
                *of_absl(tree),
                *of_configurator(tree, arguments),
                *of_config_store(tree),
                *of_environment(tree),
            ],
            "complete": is_complete(tree),
            "hydra": hydra(tree),
        }
    )
)
