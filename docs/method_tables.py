"""Writes the lists of methods in the documentation: `python docs/method_tables.py`, part of `make docs`.

The first comment of configs/algorithm/NAME.yaml says "TITLE (AUTHORS, arXiv NUMBER): what it does.", with the file's
`title`. From it come the table at the top of algorithms.md, and names and papers in the README; results in the README
are written by hand and stay. The API page gets the classes that `fedem_lightning.algorithms` exports.
"""

import ast
import re
from pathlib import Path
from typing import NamedTuple

from fedem_lightning.settings.shipped import shipped

ROOT = Path(__file__).parents[1]
ARXIV = re.compile(r"arXiv ([\d.]*\d)")


class Method(NamedTuple):
    """What a method's configuration says of it."""

    name: str  # of the file, as in algorithm=NAME
    title: str
    paper: str
    what: str


def described(path: Path) -> Method | None:
    """The method of a configuration; None if its first comment does not begin with the title, or says nothing."""
    comment = re.match(r"(?:# .*\n)+", path.read_text())
    text = " ".join(line[2:] for line in comment[0].splitlines()) if comment else ""
    title = str(shipped("algorithm")[path.stem].get("title"))
    said = re.match(rf"{re.escape(title)}(?: \(([^()]*)\))?: (.*)$", text)
    return None if said is None else Method(path.stem, title, said[1] or "", said[2].rstrip("."))


def reference(method: Method) -> str:
    """The paper, as a link where it is on arXiv; a method without a paper says what it does."""
    number = ARXIV.search(method.paper)
    text = ARXIV.sub("", method.paper).rstrip(", ") or method.what
    return f"[{text}](https://arxiv.org/abs/{number[1]})" if number else text


def methods(text: str) -> list[Method]:
    """All methods, in the order of the text's rows or headings; new ones last."""
    found = []
    for path in sorted((ROOT / "configs" / "algorithm").glob("*.yaml")):
        method = described(path)
        if method is None:
            expected = "`title: TITLE` and a first comment `# TITLE (AUTHORS, arXiv NUMBER): what it does.`"
            raise SystemExit(f"{path}: expected {expected}")
        found.append(method)
    place = {m.name: re.search(rf"^(?:\| |## )[^|\n]*`{m.name}`", text, re.M) for m in found}
    return sorted(found, key=lambda m: place[m.name].end() if place[m.name] else len(text))


def link(name: str, page: str) -> str:
    """A method's name, which leads to its section of algorithms.md once there is one."""
    for heading in re.findall(r"^## (.*)", page, re.M):
        if f"`{name}`" in heading:
            return f"[`{name}`](docs/algorithms.md#{re.sub(r'[^a-z0-9_ -]', '', heading).replace(' ', '-')})"
    return f"`{name}`"


def replaced(text: str, heading: str, rows: list[str]) -> str:
    """The text with other rows in the table that has this heading."""
    pattern = re.compile(rf"^({re.escape(heading)}\n\|[-|]+\|\n)(?:\|.*\n)*", re.M)
    return pattern.sub(lambda found: found[1] + "".join(f"{row}\n" for row in rows), text)


def in_readme(text: str, page: str) -> str:
    """The README with a row for each method: its name, its paper, and the result that stands there or a dash."""
    result = dict(re.findall(r"^\| \[?`(\w+)`[^|]*\|[^|]*\| (.*) \|$", text, re.M))
    rows = [f"| {link(m.name, page)} | {reference(m)} | {result.get(m.name, '-')} |" for m in methods(text)]
    return replaced(text, "| `algorithm=` | paper | test score: here / the paper's |", rows)


def in_algorithms(text: str) -> str:
    """The page of all algorithms with a row for each: name, method, paper, what it does."""
    sections = text[text.index("\n## `") :]
    rows = [f"| `{m.name}` | {m.title} | {reference(m)} | {linked(m.what)} |" for m in methods(sections)]
    return replaced(text, "| name | method | paper | what it does |", rows)


def linked(text: str) -> str:
    """Text in which arXiv's numbers are links."""
    return ARXIV.sub(r"[\g<0>](https://arxiv.org/abs/\1)", text)


def in_api(text: str) -> str:
    """The API page with every exported algorithm; new ones at the end of their section."""
    tree = ast.parse((ROOT / "src" / "fedem_lightning" / "algorithms" / "__init__.py").read_text())
    exported = next(ast.literal_eval(node.value) for node in tree.body if isinstance(node, ast.Assign))
    new = [f"::: fedem_lightning.{name}\n\n" for name in exported if f"::: fedem_lightning.{name}\n" not in text]
    return text.replace("## Surrogate optimisation\n", "".join(new) + "## Surrogate optimisation\n")


def written() -> dict[Path, str]:
    """Each file and its text."""
    readme, algorithms, api = ROOT / "README.md", ROOT / "docs" / "algorithms.md", ROOT / "docs" / "api.md"
    page = algorithms.read_text()
    return {
        readme: in_readme(readme.read_text(), page),
        algorithms: in_algorithms(page),
        api: in_api(api.read_text()),
    }


if __name__ == "__main__":
    for path, text in written().items():
        path.write_text(text)
