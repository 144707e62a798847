"""Packages that import what they export once it is used: PyTorch and Lightning take seconds to load."""

import ast
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any


def exports(package: str, file: str) -> tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]:
    """What a package's `__init__.py` needs to be lazy: its `__all__`, `__getattr__` and `__dir__` (PEP 562).

    Args:
        package: its `__name__`.
        file: its `__file__`; the file `__init__.pyi` beside it imports every public name, for type checkers, editors
            and this function.

    """
    stub = ast.parse(Path(file).with_suffix(".pyi").read_text()).body
    home = {alias.name: str(node.module) for node in stub if isinstance(node, ast.ImportFrom) for alias in node.names}

    def get(name: str) -> Any:
        if name in home:
            value = getattr(import_module(home[name]), name)
            setattr(sys.modules[package], name, value)  # the next use finds it without asking
            return value
        if f"{package}.{name}" in home.values():
            return import_module(f"{package}.{name}")
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    def names() -> list[str]:
        return sorted({*home, *(name for name in vars(sys.modules[package]) if name.startswith("__"))})

    return sorted(home), get, names
