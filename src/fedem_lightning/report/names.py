"""Names for readers: a method's name as its paper writes it, and what distinguishes rows of one method."""

import functools
import re
from typing import NamedTuple

from fedem_lightning.report.groups import Group, Setting, differing_keys, short, show
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
    found = (described(path.read_text(), path.stem) for path in files)
    return {method.name: method.title for method in found if method is not None}


def title(algorithm: str) -> str:
    """afl -> AFL, fedavg+finetune -> FedAvg + finetune; a method from elsewhere keeps the name that its user gave."""
    name, _, adaptation = algorithm.partition("+")
    return " + ".join(filter(None, (_titles().get(name, name), adaptation)))


def row_names(setting: Setting) -> dict[str, str]:
    """A short name for every row of a table, by the row's label: the title, and the keys in which rivals differ."""
    return {group.label: row_name(group, setting.groups) for group in setting.groups}


def row_name(group: Group, rivals: list[Group]) -> str:
    """The method's title; where rows of the method differ, with the values of the keys that do."""
    same = [rival.config for rival in rivals if rival.algorithm == group.algorithm]
    keys = differing_keys(same)
    details = ", ".join(f"{short(key, group.config)}={show(group.config.get(key))}" for key in keys)
    return f"{title(group.algorithm)} ({details})" if details else title(group.algorithm)
