"""Names of methods for readers: as their papers write them."""

import functools
import re
from typing import NamedTuple

from fedem_lightning.run.usage import CONFIG_DIR

_SAID = re.compile(r"([^(:]+?)(?: \(([^()]*)\))?: (.*)$")


class Method(NamedTuple):
    """A method by the first comment of its configuration: "METHOD (AUTHORS, arXiv NUMBER): what it does."."""

    name: str  # of the file, as in algorithm=NAME
    title: str
    paper: str
    what: str


def described(text: str, name: str) -> Method | None:
    """The method that a configuration's text describes; None if its first comment is no such description."""
    lines = re.match(r"(?:# .*\n)+", text)
    said = _SAID.match(" ".join(line[2:] for line in lines[0].splitlines())) if lines else None
    return None if said is None else Method(name, said[1], said[2] or "", said[3].rstrip("."))


@functools.cache
def _titles() -> dict[str, str]:
    files = (CONFIG_DIR / "algorithm").glob("*.yaml")
    found = (described(path.read_text(encoding="utf-8"), path.stem) for path in files)
    return {method.name: method.title for method in found if method is not None}


def title(algorithm: str) -> str:
    """afl -> AFL, fedavg+finetune -> FedAvg + finetune; a method from elsewhere keeps the name that its user gave."""
    name, _, adaptation = algorithm.partition("+")
    return " + ".join(filter(None, (_titles().get(name, name), adaptation)))


@functools.cache
def adaptation_of(algorithm: str) -> str | None:
    """The adaptation that a shipped method's configuration chooses, which its name implies: fedavg_plus -> finetune."""
    path = CONFIG_DIR / "algorithm" / f"{algorithm}.yaml"
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    chosen = re.search(r"^  - override /adaptation\S*: (\w+)$", text, re.M)
    return None if chosen is None else chosen[1]
