"""Wrong inputs of reports: results.json key by key, names that are markup, arguments."""

import functools
import json
import math
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from wrong_inputs.case import Case
from wrong_inputs.folders import finished

COMMAND = "fedem_lightning.report"
_VALUES: dict[str, Any] = {"missing": ..., "null": None, "text": "zz", "list": [1], "number": -1, "object": {}}
_MORE: dict[str, Any] = {"nan": math.nan, "inf": -math.inf, "huge": 10**400, "true": True, "deep": "DEEP"}
"""Tried on every third key: what JSON can say, and scores cannot be."""
_DEEP = "[" * 2000 + "]" * 2000
_NAMES = {
    "html": "<script>alert(1)</script>",
    "tex": "$\\frac{$",
    "formula": "=cmd|'/C calc'!A0",
    "newlines": "a\nb\r\nc",
    "markup": "[red]x[/] [/nothing]",
    "long": "x" * 5000,
    "nul": "a\0b",
    "escape": "\x1b[2J",
    "surrogate": "\ud800",
    "path": "../../x",
    "pipes": "a|b|`c`",
    "empty": "",
}


def cases() -> Iterator[Case]:
    """Every wrong report."""
    run = finished()
    results = json.loads((run / "results.json").read_text())
    for i, path in enumerate(_paths(results)):
        for label, value in (_VALUES | (_MORE if i % 3 == 0 else {})).items():
            change = functools.partial(_changed, path, value)
            yield _case(f"reports/results/{'.'.join(path)}-{label}", run, change)
    for label, name in _NAMES.items():
        for key in ("algorithm", "dataset", "backbone"):
            yield _case(f"reports/names/{key}-{label}", run, functools.partial(_changed, (key,), name))
    for words in (
        *(
            (),
            ("missing",),
            ("out", "--table", "no_such"),
            ("out", "--columns", "no_such"),
            ("out", "--target", "abc"),
        ),
        *(("out", "--compare", "a"), ("out", "--compare", "a", "b"), ("--out",)),
        *(("out", "--what"), ("/dev/null",), ("out/results.json",), ("out", "--out", "out/results.json")),
        *(("out", "--figures", "x"), ("out", "--out", "/proc/x/y")),
    ):
        yield Case(
            f"reports/arguments/{' '.join(words) or 'nothing'}",
            words,
            COMMAND,
            functools.partial(_prepare, run, lambda r: r),
        )


def _paths(tree: Any, above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every key of results.json, three levels deep."""
    for key, value in tree.items():
        yield (*above, key)
        if isinstance(value, dict) and len(above) < 2:
            yield from _paths(value, (*above, key))


def _changed(path: tuple[str, ...], value: Any, results: dict[str, Any]) -> dict[str, Any]:
    node = results
    for key in path[:-1]:
        node = node[key]
    if value is ...:
        del node[path[-1]]
    else:
        node[path[-1]] = value
    return results


def _case(name: str, run: Path, change: Any) -> Case:
    return Case(name, ("out", "--out", "reported"), COMMAND, functools.partial(_prepare, run, change), refused=False)


def _prepare(run: Path, change: Any, place: Path) -> None:
    shutil.copytree(run, place / "out")
    path = place / "out" / "results.json"
    path.write_text(json.dumps(change(json.loads(path.read_text()))).replace('"DEEP"', _DEEP))
