"""Parameters of classes, read in the source, which takes no time: to import them is to load PyTorch."""

import ast
import functools
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec, resolve_name
from pathlib import Path
from typing import Any

from fedem_lightning.settings.check import AllowedValues, Parameters

_READ = ("fedem_lightning", "pytorch_lightning", "lightning_fabric")
"""Packages whose source is read; of a user's own class, or of PyTorch's, nothing is known here."""
_LIGHT = ("typing", "collections.abc", "annotated_types", "pydantic", "pathlib", "fedem_lightning.settings")
"""Of these modules, names in annotations are what they are; a class of any other one stands for any value."""


class _Module(dict[str, Any]):
    """The values that a module's names have in annotations, each once it is asked for; KeyError: nobody knows."""

    def __init__(self, name: str) -> None:
        top, *inner = name.split(".")
        home = find_spec(top) if top in _READ else None
        place = Path(home.origin).parent.joinpath(*inner) if home and home.origin else Path("nowhere")
        files = (place / "__init__.pyi", place / "__init__.py", place.with_suffix(".py"))
        file = next(filter(Path.is_file, files), None)
        package = name if file and file.stem == "__init__" else name.rpartition(".")[0]
        self._stands: dict[str, Any] = {}  # what defines a name, or the module and the name of an import
        for node in ast.parse(file.read_text(encoding="utf-8")).body if file else []:
            if isinstance(node, ast.ImportFrom):
                source = resolve_name("." * node.level + (node.module or ""), package)
                self._stands |= {alias.asname or alias.name: (source, alias.name) for alias in node.names}
            elif isinstance(node, ast.ClassDef | ast.FunctionDef):
                self._stands[node.name] = node
            elif isinstance(node, ast.Assign):
                self._stands[ast.unparse(node.targets[0])] = node.value

    def __missing__(self, name: str) -> Any:
        stands = self._stands[name]
        if isinstance(stands, tuple) and stands[0].startswith(_LIGHT):
            return getattr(import_module(stands[0]), stands[1])
        module, node = self.resolved(name)
        return module.value(node) if isinstance(node, ast.expr) else Any

    def resolved(self, name: str) -> tuple["_Module", Any]:
        """The module where a name stands, and what defines it."""
        stands = self._stands[name]
        return _module(stands[0]).resolved(stands[1]) if isinstance(stands, tuple) else (self, stands)

    def value(self, annotation: ast.expr | None) -> Any:
        """What an annotation allows; `Any`, if something in it is not known here."""
        try:
            return eval(ast.unparse(annotation), {}, self) if annotation else Any
        except Exception:  # of whatever somebody's annotation does with what stands for any value
            return Any


_module = functools.cache(_Module)


@functools.cache
def signature(path: str) -> Parameters:
    """As `parameters` of what an import path means; anything is taken by what is not known here."""
    module, _, name = path.rpartition(".")
    try:
        return _parameters(*_module(module).resolved(name))
    except KeyError:
        return Parameters({}, open=True)


def _parameters(module: _Module, node: Any) -> Parameters:
    known: dict[str, AllowedValues] = {}
    for place, call in _calls(module, node):
        if call is None:
            return Parameters(known, open=True)
        if isinstance(call, ast.ClassDef):
            hints = {ast.unparse(one.target): one.annotation for one in call.body if isinstance(one, ast.AnnAssign)}
        else:
            hints = {one.arg: one.annotation for one in [*call.args.args, *call.args.kwonlyargs] if one.arg != "self"}
        known = {name: AllowedValues(place.value(hint)) for name, hint in hints.items()} | known
        if isinstance(call, ast.ClassDef):  # fields of base classes follow
            continue
        others = call.args.kwarg and call.args.kwarg.annotation
        if isinstance(others, ast.Subscript) and isinstance(others.slice, ast.Tuple):  # Annotated[Any, GROUP, ...]
            for group in others.slice.elts[1:]:
                known = _parameters(*place.resolved(ast.unparse(group))).known | known
            break
        if call.args.kwarg is None:
            break
    return Parameters(known, open=False)


def _calls(module: _Module, node: Any) -> Iterator[tuple[_Module, Any]]:
    """What takes the arguments: functions, dataclasses, those of base classes last; None: something unknown."""
    if isinstance(node, ast.FunctionDef):
        yield module, node
        return
    inits = [part for part in node.body if isinstance(part, ast.FunctionDef) and part.name == "__init__"]
    marks = " ".join(map(ast.unparse, node.decorator_list))
    yield from ((module, call) for call in inits or [node] * ("dataclass" in marks))
    for base in map(ast.unparse, node.bases):
        try:
            yield from _calls(*module.resolved(base))
        except KeyError:  # of another package
            yield module, None
