"""A script: its imports, and its execution as ``python SCRIPT`` would execute it."""

from __future__ import annotations

import ast
import importlib
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Script:
    """A script and its arguments."""

    path: Path
    arguments: list[str]

    def import_libraries(self) -> None:
        """Imports the modules and names that the script imports at its top level. Modules beside the script are left out,
        because they are a part of it; so is what cannot be imported: the script will say so."""
        for module, names in self._imports():
            try:
                found = importlib.import_module(module)
                for name in names:
                    # Packages such as transformers import a module when its name is first used.
                    getattr(found, name, None)
            except Exception as error:  # noqa: BLE001 - a library may raise anything
                print(f"pawl_launch.warm: import {module}: {error}", file=sys.stderr)

    def _imports(self) -> Iterator[tuple[str, list[str]]]:
        try:
            tree = ast.parse(self.path.read_bytes())
        except (OSError, SyntaxError, ValueError):
            return
        for node in tree.body:
            if isinstance(node, ast.Import):
                found = [(alias.name, list[str]()) for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
                found = [(node.module, [alias.name for alias in node.names])]
            else:
                continue
            yield from ((module, names) for module, names in found if not self._is_beside(module))

    def _is_beside(self, module: str) -> bool:
        root = self.path.parent / module.partition(".")[0]
        return root.is_dir() or root.with_suffix(".py").exists()

    def enter(self) -> None:
        """Puts the directory of the script first in the search path of modules, unless Python was told not to."""
        if not getattr(sys.flags, "safe_path", False):
            sys.path[0] = str(self.path.parent)

    def run(self) -> None:
        """Executes the script as the module ``__main__`` of this process."""
        main = types.ModuleType("__main__")
        main.__dict__.update(__file__=str(self.path), __builtins__=__builtins__)
        sys.modules["__main__"] = main
        sys.argv = [str(self.path), *self.arguments]
        self.enter()
        exec(compile(self.path.read_bytes(), str(self.path), "exec"), main.__dict__)
