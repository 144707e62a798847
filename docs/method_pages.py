"""Adds to each page of docs/methods what the repository knows of the method, when the site is built.

`configs/algorithm/NAME.yaml` gives the settings and the class, docs/methods/costs.csv the costs; scores.csv beside it,
and scores.csv and field.csv in docs/lab_notes, the scores. A method without a page gets one, from the first comment of
its file, and a line on the page of all methods.
"""

import csv
import functools
import inspect
import re
from pathlib import Path
from typing import Any, NamedTuple

from api_pages import documented
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf

import fedem_lightning
from fedem_lightning.run.cli import CONFIG_DIR
from fedem_lightning.settings.keys import implied_adaptation, shipped

DOCS = Path(__file__).parent
INDEX, COSTS = DOCS / "methods" / "index.md", DOCS / "methods" / "costs.csv"
RESULTS, SCORES = DOCS / "methods" / "scores.csv", DOCS / "lab_notes" / "scores.csv"
FIELD = DOCS / "lab_notes" / "field.csv"
ARXIV = re.compile(r"arXiv ([\d.]*\d)")
OWN_DATA = ["dataset=npz", "dataset.path=mine.npz", "backbone=mlp"]  # nothing was chosen for these


class Setting(NamedTuple):
    """A key of a method's file, with its comment."""

    key: str
    value: Any
    comment: str


def methods() -> list[str]:
    """The names of all methods, as in algorithm=NAME."""
    return sorted(shipped("algorithm"))


def families() -> dict[str, list[str]]:
    """The methods by the headings of the page of all methods; one that it does not list is among others."""
    found: dict[str, list[str]] = {}
    for section in re.split(r"^## ", INDEX.read_text(), flags=re.M)[1:]:
        if names := re.findall(r"^- \[[^]`]+\]\((\w+)\.md\)", section, re.M):
            found[section.splitlines()[0]] = names
    listed = {name for names in found.values() for name in names}
    others = [name for name in methods() if name not in listed]
    return found | ({"Other methods": others} if others else {})


def with_others(index: str) -> str:
    """The page of all methods, with those that it does not list."""
    rows = [f"- [{title(name)}]({name}.md): {about(name)}\n" for name in families().get("Other methods", [])]
    return f"{index}\n## Other methods\n\n{''.join(rows)}" if rows else index


def title(name: str) -> str:
    """What figures and tables call a method."""
    return str(shipped("algorithm")[name].get("title", name))


def about(name: str) -> str:
    """The first comment of a method's file, with links to papers."""
    comment = re.match(r"(?:# .*\n)*", (CONFIG_DIR / "algorithm" / f"{name}.yaml").read_text())
    text = " ".join(line[2:] for line in comment[0].splitlines()) if comment else ""
    return ARXIV.sub(r"[\g<0>](https://arxiv.org/abs/\1)", text)


def new_page(name: str) -> str:
    """The page of a method that has none."""
    return f"# {title(name)}\n\n{about(name)}\n\n    python -m fedem_lightning algorithm={name}\n"


def completed(name: str, text: str) -> str:
    """A method's page with its scores, settings and class."""
    sections = [cost_section(name), scores_section(name), settings_section(name), class_section(name)]
    return "\n".join([text.rstrip() + "\n", *(line for section in sections for line in section)])


def cost_section(name: str) -> list[str]:
    """What a client keeps, receives, sends and computes, and what one does that joins later."""
    rows = [list(row.items())[1:] for row in table(COSTS) if row["method"] == name]
    if not rows:
        return []
    heads, cells = zip(*rows[0], strict=True)
    return ["## Cost", "", f"| {' | '.join(heads)} |", "|---|---|---|---|", f"| {' | '.join(cells)} |", ""]


@functools.cache
def composed(name: str) -> DictConfig:
    """The method's configuration, for data of one's own."""
    with initialize_config_dir(str(CONFIG_DIR), version_base="1.3"):
        return compose("config", [f"algorithm={name}", *OWN_DATA])


def settings(name: str) -> list[Setting]:
    """What the file of a method sets; learning rates are every method's."""
    found, parents, config = [], [], composed(name).algorithm
    in_python = inspect.signature(getattr(fedem_lightning, class_of(name))).parameters
    text = (CONFIG_DIR / "algorithm" / f"{name}.yaml").read_text()
    for line in re.findall(r"^title:.*\n((?:.*\n)*)", text, re.M)[0].splitlines():
        given = re.match(r"( *)(\w+):(?: ([^#\n]*[^#\s]))?(?:\s*# (.*))?$", line)
        if given is None or given[2] == "_target_":
            continue
        parents = [*parents[: len(given[1]) // 2], given[2]]
        key = ".".join(parents)
        if given[3] is not None and (given[4] or key != "client_optimizer.lr"):
            value, notes = OmegaConf.select(config, key), [given[4]] if given[4] else []
            notes += ["chosen anew for some data sets"] if "${oc.select:method" in given[3] else []
            if key in in_python and in_python[key].default not in (value, inspect.Parameter.empty):
                notes.append(f"in Python {in_python[key].default}")
            found.append(Setting(key, value, "; ".join(notes)))
    return found


def settings_section(name: str) -> list[str]:
    """A table of the method's settings, by which its users set them."""
    rows = [f"| `{s.key}` | `{shown(s.value)}` | {escaped(s.comment)} |" for s in settings(name)]
    head = ["| `algorithm.` | default | |", "|---|---|---|"] if rows else ["It has no settings of its own."]
    adaptation = implied_adaptation(name)
    implied = (
        [f"It sets `adaptation={adaptation}`: [its settings](adaptations.md#{adaptation}).", ""] if adaptation else []
    )
    shared = "All methods share [further settings](index.md#settings-of-all-methods), such as the learning rate."
    return ["## Settings", "", *head, *rows, "", *implied, shared, ""]


def shown(value: Any) -> str:
    """A value as in YAML."""
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def escaped(text: str) -> str:
    """Text of a cell."""
    return text.replace("|", "\\|")


def class_of(name: str) -> str:
    """The name of a method's class."""
    return str(shipped("algorithm")[name]["_target_"]).rpartition(".")[2]


def page_of(kind: str) -> str | None:
    """The method on whose page a class stands: the one called like it, or the first that uses it."""
    users = [name for name in methods() if class_of(name) == kind]
    return next((name for name in users if name.replace("_", "") == kind.lower()), users[0] if users else None)


def class_section(name: str) -> list[str]:
    """The class in Python, on the page of the method that is called like it."""
    kind, target = class_of(name), str(shipped("algorithm")[name]["_target_"])
    home = page_of(kind)
    if home != name:
        return ["## In Python", "", f"The class is [`{kind}`]({home}.md#in-python).", ""]
    return ["## In Python", "", documented(target, "../"), "    options: {members: false}\n"]


def scores_section(name: str) -> list[str]:
    """The method's own score, and its scores on each federation beside FedAvg's and Local's."""
    lines = [
        f"| [{row['data']}](../{row['page']}) | {row['here']} | {row['paper']} |"
        for row in table(RESULTS)
        if row["method"] == name and row["page"]
    ]
    lines = ["| data | here | the paper |", "|---|---|---|", *lines, ""] if lines else []
    shown = [title(other) for other in dict.fromkeys([name, "fedavg", "local"])]
    measured = [(experiment, scores) for experiment, scores in accuracies() if shown[0] in scores]
    rows = [f"| {name} | {' | '.join(scores.get(other, '-') for other in shown)} |" for name, scores in measured]
    head = [f"| test accuracy in % | {' | '.join(shown)} |", "|---|" + "---|" * len(shown)]
    lines += [*head, *rows, ""] if rows else []
    return ["## Scores", "", *lines] if lines else []


def accuracies() -> list[tuple[str, dict[str, str]]]:
    """Each experiment, and federation of the field, with the test accuracies of its methods, by their titles."""
    found: dict[str, dict[str, str]] = {}
    for row in table(SCORES):
        accuracy = f"{row['accuracy']} ± {row['accuracy_sd']}"
        found.setdefault(f"`+experiment={row['experiment']}`", {})[row["method"]] = accuracy
    for row in [row for row in table(FIELD) if row["method"] in shipped("algorithm")]:
        place = f"{row['federation'].replace('_', ' ')} ([the field](../reproduction/field.md))"
        found.setdefault(place, {})[title(row["method"])] = f"{100 - 100 * float(row['error']):.1f}"
    return list(found.items())


def table(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV file; none if it is not there."""
    return list(csv.DictReader(path.read_text().splitlines())) if path.is_file() else []
