"""Start of the package: lazy packages, signals while modules are loaded, rank of the process, freed memory.

Imports are light.

A lazy package imports its exports at first use, because PyTorch and Lightning take seconds to load.
"""

import ast
import os
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

TRIM_THRESHOLD, TOP_PAD, MMAP_THRESHOLD = -1, -2, -3  # options of glibc's mallopt, from malloc.h
KEPT = {MMAP_THRESHOLD: 2**30, TRIM_THRESHOLD: 2**31 - 1, TOP_PAD: 2**26}  # bytes


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


def keep_freed_memory() -> bool:
    """Lets glibc keep freed memory instead of giving it back to the system; whether it does.

    Each local step makes tensors of megabytes and frees them. Without this the system takes their pages back and clears
    them for the next step, which takes up to half of a round on a CPU. The user's own settings are kept.
    """
    own = any(name.startswith("MALLOC_") or name == "GLIBC_TUNABLES" for name in os.environ)
    if own or not sys.platform.startswith("linux"):
        return False
    import ctypes

    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another C library
        return False
    return all([mallopt(option, value) == 1 for option, value in KEPT.items()])
