"""Makes the pages of docs/api, and pages of the source code that they link to, when the site is built.

A public name stands on the page of its part of the package; the class of a method stands on the method's page.
"""

import functools
import importlib
import inspect
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PACKAGES = ("fedem_lightning", "fedem_lightning.data", "fedem_lightning.report")
THEMES = {  # parts of the package with a page together, and the page's title
    "algorithms": ("algorithms", "Algorithms"),
    "adaptation": ("adaptation", "Adaptations"),
    "client_optimizers": ("training", "Optimisers and engines"),
    "engine": ("training", "Optimisers and engines"),
    "backbones": ("backbones", "Networks"),
    "data": ("data", "Data"),
    "data.": ("data_options", "Options and parts of data"),  # what only fedem_lightning.data has
    "models": ("trained_models", "Trained models"),
    "serving": ("trained_models", "Trained models"),
    "run": ("trained_models", "Trained models"),
    "report": ("report", "Reports"),
    "aggregation": ("aggregation", "Aggregation and faults"),
    "faults": ("aggregation", "Aggregation and faults"),
    "network": ("communication", "Communication"),
    "topology": ("communication", "Communication"),
    "compression": ("communication", "Communication"),
    "errors": ("errors", "Errors"),
}


@functools.cache
def public() -> dict[str, Any]:
    """Every public object by the shortest name that it is imported by."""
    found: dict[str, Any] = {}
    for package in map(importlib.import_module, PACKAGES):
        objects = {f"{package.__name__}.{name}": getattr(package, name) for name in package.__all__}
        found |= {name: value for name, value in objects.items() if value not in found.values()}
    return found


def pages(on_method_pages: set[str]) -> dict[str, str]:
    """The text of each page of docs/api, by its name, without the classes that have a page of their own."""
    names: dict[tuple[str, str], list[str]] = {}
    for name, value in public().items():
        part = "data." if name.startswith("fedem_lightning.data.") else value.__module__.split(".")[1]
        names.setdefault(THEMES.get(part, (part, part.capitalize())), []).append(name)
    texts = {}
    for theme in dict.fromkeys([*THEMES.values(), *names]):
        own = [name for name in sorted(names.get(theme, []), key=place) if name not in on_method_pages]
        texts[theme[0]] = f"# {theme[1]}\n\n" + "\n".join(documented(name, "../") for name in own)
    return texts


def place(name: str) -> tuple[int, str]:
    """Base classes first."""
    return len(getattr(public()[name], "__mro__", ())), name


def documented(name: str, root: str) -> str:
    """The directive that documents a name, below a link to its source; `root` leads to the root of the site."""
    return f"{source_link(name, root)}\n\n::: {name}\n"


def source_link(name: str, root: str) -> str:
    """A link to where a name is defined: at the project's address, if it has one, else on the site."""
    value = public()[name] if name in public() else getattr(importlib.import_module(name.rpartition(".")[0]), name)
    path, line = source_file(value).relative_to(ROOT), inspect.getsourcelines(value)[1]
    address = repository()
    page = f"{root}source/{path.with_suffix('.html').relative_to('src')}#__codelineno-0-{line}"
    target = f"{address}/blob/main/{path}#L{line}" if address else page
    return f'<a class="source" href="{target}"><code>{path.relative_to("src")}</code>, line {line}</a>'


def source_file(value: Any) -> Path:
    """The file that defines an object."""
    return Path(str(inspect.getsourcefile(inspect.unwrap(value)))).resolve()


def source_pages() -> dict[str, str]:
    """A page for each file that a public name is defined in, by its path on the site."""
    files = sorted({source_file(value) for value in public().values()}) if repository() is None else []
    texts = {}
    for file in files:
        path = file.relative_to(ROOT / "src")
        head = f"---\nsearch: {{exclude: true}}\n---\n# {path}\n\n"
        code = f'~~~~~~{{.python linenums="1"}}\n{file.read_text()}~~~~~~\n'
        texts[f"source/{path.with_suffix('.md')}"] = head + code
    return texts


@functools.cache
def repository() -> str | None:
    """The address of the repository, if pyproject.toml has one."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    address = project.get("urls", {}).get("Repository")
    return None if address is None else str(address).rstrip("/")
