"""What makes a table less sure: rows with doubts, equal methods, guesses, unlike runs."""

from collections import defaultdict
from collections.abc import Iterator

import numpy as np
import pandas as pd

from fedem_lightning.report.doubts import doubtful_lines
from fedem_lightning.report.groups import Group, Setting, shorten
from fedem_lightning.run.summary import not_finite_lines


def warning_lines(setting: Setting) -> Iterator[str]:
    """Lines for readers of a table of scores, each with the rows that it is about."""
    yield from doubtful_lines(setting)
    for groups in equal_rows(setting):
        names = " and ".join(shorten(group.name) for group in groups)
        yield f"{names} have equal test scores for every client and seed"
    if guessing := [f"{shorten(g.name)} ({share:.1f} %)" for g in setting.groups if (share := _guessed(g)) is not None]:
        always = "always predicting each client's most frequent class, whose share is in brackets"
        yield f"rows that are no better than {always}: {', '.join(guessing)}"
    yield from _unlike(setting)
    for group in setting.groups:
        for run in group.runs:
            yield from (f"{shorten(group.name)}, seed {run.seed}: {line}" for line in not_finite_lines(run.results))


def equal_rows(setting: Setting) -> list[list[Group]]:
    """Rows with the same test score for every client and seed."""
    found: dict[bytes, list[Group]] = defaultdict(list)
    for group in setting.groups:
        tables = [(run.seed, table) for run in group.runs if (table := run.scored) is not None]
        if len(tables) == len(group.runs):  # to six decimals, so that the order of a sum does not count
            parts = [(f"{seed} {','.join(t.index)} ", np.round(t["score"].to_numpy(), 6)) for seed, t in tables]
            found[b"".join(names.encode() + scores.tobytes() for names, scores in parts)].append(group)
    return [groups for groups in found.values() if len(groups) > 1]


def _guessed(group: Group) -> float | None:
    """The share of the clients' most frequent classes in %, if a row's accuracy is not above it; means over seeds."""
    scores = [run.results["test"].get("accuracy", {}).get("weighted") for run in group.runs]
    guesses = [run.results["class_scores"].get("majority_accuracy", {}).get("weighted") for run in group.runs]
    score, guess = (pd.Series(values, dtype=float).mean(skipna=False) for values in (scores, guesses))
    return 100 * float(guess) if score <= guess else None


def _unlike(setting: Setting) -> Iterator[str]:
    """Seeds whose runs had different data, as their digests tell."""
    digests = pd.DataFrame([(run.seed, run.results.get("federation_digest")) for run in setting.runs])
    n = digests.groupby(0)[1].nunique()
    if seeds := n.index[n > 1].astype(str).tolist():
        yield f"not comparable: with seed {', '.join(seeds)} rows have different data (federation_digest)"
