"""What makes a table of scores less sure: few seeds or evaluations, equal methods, chance, rates that nobody chose."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from fedem_lightning.errors import one_line
from fedem_lightning.report.cells import shorten
from fedem_lightning.report.groups import Group, Setting
from fedem_lightning.run.summary import not_finite_lines

UNCHOSEN = "*"
"""The mark of a learning rate that nobody chose."""
_FEW_EVALUATIONS = 5
"""Number of evaluations below which a row's curve is coarse."""


def warning_lines(setting: Setting) -> Iterator[str]:
    """Lines for readers of a table of scores, each with the rows that it is about."""
    if said := unchosen_line(setting.groups):
        yield f"{UNCHOSEN} {said}"
    for groups, reason in equal_rows(setting):
        names = " and ".join(shorten(group.in_text) for group in groups)
        yield f"{names} have equal test scores for every client and seed{f' ({reason})' if reason else ''}"
    guessing = [f"{shorten(g.in_text)} ({share:.1f} %)" for g in setting.groups if (share := _guessed(g)) is not None]
    if guessing:
        always = "always predicting each client's most frequent class, whose share is in brackets"
        yield f"rows that are no better than {always}: {', '.join(guessing)}"
    counts = {shorten(g.in_text): n for g in setting.groups if (n := _n_evaluations(g)) < _FEW_EVALUATIONS}
    if counts:
        named = ", ".join(f"{label} ({n})" for label, n in counts.items())
        coarse = "so curves are coarse (trainer.check_val_every_n_epoch)"
        yield f"fewer than {_FEW_EVALUATIONS} evaluations, {coarse}: {named}"
    for group in setting.groups:
        for run in group.runs:
            yield from (f"{shorten(group.in_text)}, seed {run.seed}: {line}" for line in not_finite_lines(run.results))


def unchosen(group: Group) -> list[str]:
    """Whose learning rate nobody chose for a row's data: the row's label, or "ADAPTATION of LABEL"."""
    label = shorten(group.in_text)
    found = [
        f"{one_line(rate['of'])} of {label}" if number else label
        for run in group.runs
        for number, rate in enumerate(run.results.get("learning_rates") or [])
        if rate["chosen_by"] is None
    ]
    return list(dict.fromkeys(found))


def unchosen_line(groups: Sequence[Group]) -> str:
    """What to do about rows whose learning rate is the default; empty if there are none."""
    names = [name for group in groups for name in unchosen(group)]
    if not names:
        return ""
    return (
        f"nobody chose the learning rate of {', '.join(names)} for these data, and another may be much better: "
        "choose one with +tune=learning_rate (docs/trackers.md), in Python with client_optimizer=ClientSGD(lr=...)"
    )


def equal_rows(setting: Setting) -> list[tuple[list[Group], str]]:
    """Rows with the same test score for every client and seed, and why, as far as the runs show it."""
    keys: dict[str, bytes] = {}
    for group in setting.groups:
        tables = [(run.seed, table) for run in group.runs if (table := run.scored) is not None]
        if len(tables) == len(group.runs):
            parts = [(seed, ",".join(table.index), table["score"].to_numpy()) for seed, table in tables]
            keys[group.label] = b"".join(f"{seed} {names} ".encode() + _digits(scores) for seed, names, scores in parts)
    return _alike(setting.groups, keys)


def said_alike(groups: Sequence[Group], lines: Mapping[str, np.ndarray]) -> str:
    """A sentence for a figure's caption about the lines, by label, that lie on one another; empty without any."""
    found = _alike(groups, {label: _digits(values) for label, values in lines.items()})
    said = [(" and ".join(group.name for group in rows), reason) for rows, reason in found]
    return "".join(f" {names} coincide{f': {reason}' if reason else ''}." for names, reason in said)


def _alike(groups: Sequence[Group], keys: Mapping[str, bytes]) -> list[tuple[list[Group], str]]:
    """The rows whose keys, by label, are equal, with the reason as far as the runs show it."""
    found: dict[bytes, list[Group]] = defaultdict(list)
    for group in groups:
        if group.label in keys:
            found[keys[group.label]].append(group)
    return [(rows, _why_equal(rows)) for rows in found.values() if len(rows) > 1]


def _digits(values: np.ndarray) -> bytes:
    """Numbers to six decimals, so that the order of a sum does not count."""
    return np.round(values, 6).tobytes()


def _why_equal(groups: Sequence[Group]) -> str:
    for group in groups:
        tables = [run.clients for run in group.runs]
        clusters = {table["cluster"].nunique() for table in tables if table is not None and "cluster" in table}
        if clusters == {1}:
            return f"{group.name} never split its clients, so it is FedAvg"
        if group.config.get("algorithm.n_components") == 1:
            return f"{group.name} has one component, so it is FedAvg"
    return ""


def _guessed(group: Group) -> float | None:
    """The share of the clients' most frequent classes in %, if a row's accuracy is not above it; means over seeds."""
    pairs = []
    for run in group.runs:
        classes = (run.results.get("class_scores") or {}).get("majority_accuracy", {}).get("weighted")
        accuracy = run.results["test"].get("accuracy", {}).get("weighted")
        if classes is None or accuracy is None:
            return None
        pairs.append((accuracy, classes))
    score, guess = np.mean(pairs, axis=0)
    return 100 * float(guess) if score <= guess else None


def _n_evaluations(group: Group) -> float:
    """The least number of rounds after which a seed was evaluated; infinite if no seed has a table of rounds."""
    columns = [(run.metrics, f"test/{run.measure[0]}") for run in group.runs]
    counts = [int(metrics[name].notna().sum()) for metrics, name in columns if metrics is not None and name in metrics]
    return min(counts, default=float("inf"))
