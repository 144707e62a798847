"""What makes a table less sure: rows with doubts, equal methods, chance, few evaluations, unlike runs."""

from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd

from fedem_lightning.report.doubts import doubtful_lines
from fedem_lightning.report.groups import Group, Setting, shorten
from fedem_lightning.run.summary import not_finite_lines

_FEW_EVALUATIONS = 5
"""Number of evaluations below which a row's curve is coarse."""


def warning_lines(setting: Setting) -> Iterator[str]:
    """Lines for readers of a table of scores, each with the rows that it is about."""
    yield from doubtful_lines(setting)
    for groups, reason in equal_rows(setting):
        names = " and ".join(shorten(group.name) for group in groups)
        yield f"{names} have equal test scores for every client and seed{f' ({reason})' if reason else ''}"
    if guessing := [f"{shorten(g.name)} ({share:.1f} %)" for g in setting.groups if (share := _guessed(g)) is not None]:
        always = "always predicting each client's most frequent class, whose share is in brackets"
        yield f"rows that are no better than {always}: {', '.join(guessing)}"
    if few := [f"{shorten(g.name)} ({n})" for g in setting.groups if (n := _n_evaluations(g)) < _FEW_EVALUATIONS]:
        coarse = "so curves are coarse (trainer.check_val_every_n_epoch)"
        yield f"fewer than {_FEW_EVALUATIONS} evaluations, {coarse}: {', '.join(few)}"
    yield from _unlike(setting)
    for group in setting.groups:
        for run in group.runs:
            yield from (f"{shorten(group.name)}, seed {run.seed}: {line}" for line in not_finite_lines(run.results))


def equal_rows(setting: Setting) -> list[tuple[list[Group], str]]:
    """Rows with the same test score for every client and seed, and why, as far as the runs show it."""
    found: dict[bytes, list[Group]] = defaultdict(list)
    for group in setting.groups:
        tables = [(run.seed, table) for run in group.runs if (table := run.scored) is not None]
        if len(tables) == len(group.runs):  # to six decimals, so that the order of a sum does not count
            parts = [(f"{seed} {','.join(t.index)} ", np.round(t["score"].to_numpy(), 6)) for seed, t in tables]
            found[b"".join(names.encode() + scores.tobytes() for names, scores in parts)].append(group)
    return [(groups, _why_equal(groups)) for groups in found.values() if len(groups) > 1]


def _why_equal(groups: Sequence[Group]) -> str:
    for group in groups:
        tables = [run.clients for run in group.runs]
        clusters = {table["cluster"].nunique() for table in tables if table is not None and "cluster" in table}
        if clusters == {1}:
            return f"{group.name} never split its clients, so it is FedAvg"
        if group.runs[0].config.get("algorithm.n_components") == 1:
            return f"{group.name} has one component, so it is FedAvg"
    return ""


def _guessed(group: Group) -> float | None:
    """The share of the clients' most frequent classes in %, if a row's accuracy is not above it; means over seeds."""
    scores = [run.results["test"].get("accuracy", {}).get("weighted") for run in group.runs]
    guesses = [run.results["class_scores"].get("majority_accuracy", {}).get("weighted") for run in group.runs]
    score, guess = (pd.Series(values, dtype=float).mean(skipna=False) for values in (scores, guesses))
    return 100 * float(guess) if score <= guess else None


def _n_evaluations(group: Group) -> float:
    """The least number of rounds after which a seed was evaluated; infinite if no seed has a table of rounds."""
    columns = [(run.metrics, f"test/{run.measure[0]}") for run in group.runs]
    counts = [int(metrics[name].notna().sum()) for metrics, name in columns if metrics is not None and name in metrics]
    return min(counts, default=float("inf"))


def _unlike(setting: Setting) -> Iterator[str]:
    """Seeds whose runs had different data, as their digests tell."""
    digests = pd.DataFrame([(run.seed, run.results.get("federation_digest")) for run in setting.runs])
    n = digests.groupby(0)[1].nunique()
    if seeds := n.index[n > 1].astype(str).tolist():
        yield f"not comparable: with seed {', '.join(seeds)} rows have different data (federation_digest)"
