"""Fast start of the package: lazy packages, signals while modules are loaded, rank of the process. Imports are light.

A lazy package imports its exports at first use, because PyTorch and Lightning take seconds to load.
"""

import ast
import sys
import warnings
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

OLD_NAMES = {f"{kind}Federation": f"{kind}DataModule" for kind in ("Density", "Image", "Npz", "Text")}
"""Names of version 0.1.0, which are kept for one version."""


def exports(package: str, file: str) -> tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]:
    """The `__all__`, `__getattr__` and `__dir__` of a package that imports its exports at first use (PEP 562).

    Args:
        package: its `__name__`.
        file: its `__file__`; the file `__init__.pyi` in the same folder imports every public name, for type checkers,
            editors and this function. `from PACKAGE.part import *` stands for the part's `__all__`.

    """
    home = _imported(Path(file).with_suffix(".pyi"))
    for part in [module for name, module in home.items() if name == "*"]:
        home |= dict.fromkeys(_listed(Path(file).with_name(part.removeprefix(f"{package}.")) / "__init__.py"), part)
    home = {name: module for name, module in home.items() if name != "*" and module != package}

    def get(name: str) -> Any:
        if OLD_NAMES.get(name) in home:
            warnings.warn(f"{package}.{name} is now called {OLD_NAMES[name]}; the old name will go", stacklevel=3)
            name = OLD_NAMES[name]
        if name in home:
            value = getattr(import_module(home[name]), name)
            setattr(sys.modules[package], name, value)  # later uses do not call this function
            return value
        if f"{package}.{name}" in home.values():
            return import_module(f"{package}.{name}")
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    def names() -> list[str]:
        return sorted({*home, *(name for name in vars(sys.modules[package]) if name.startswith("__"))})

    return sorted(home), get, names


def _imported(stub: Path) -> dict[str, str]:
    """Each name that a file imports from a module, and that module."""
    found = [node for node in ast.parse(stub.read_text(encoding="utf-8")).body if isinstance(node, ast.ImportFrom)]
    return {alias.name: str(node.module) for node in found for alias in node.names}


def _listed(file: Path) -> list[str]:
    """The `__all__` of a file."""
    assigned = [node for node in ast.parse(file.read_text(encoding="utf-8")).body if isinstance(node, ast.Assign)]
    return next(ast.literal_eval(node.value) for node in assigned if ast.unparse(node.targets[0]) == "__all__")
