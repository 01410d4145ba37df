"""Reads files of assignments and --name=value into the globals of the script that executes this."""
import sys
from ast import literal_eval

for arg in sys.argv[1:]:
    if "=" not in arg:
        assert not arg.startswith("--")
        exec(open(arg).read())
        continue
    key, value = arg.removeprefix("--").split("=")
    if key not in globals():
        raise ValueError(f"Unknown config key: {key}")
    try:
        attempt = literal_eval(value)
    except (SyntaxError, ValueError):
        attempt = value
    assert type(attempt) is type(globals()[key])
    globals()[key] = attempt
