"""What makes a table less sure: rows that are compared with no other one, guesses, unlike runs.

A row is compared with no other one if its training had not ended, or if nobody chose its learning rate.
"""

from collections.abc import Iterable, Iterator

import pandas as pd

from fedem_lightning.evaluate.convergence import unfinished_line
from fedem_lightning.report.groups import Group, Setting, shorten
from fedem_lightning.run.summary import not_finite_lines
from fedem_lightning.settings.errors import one_line
from fedem_lightning.settings.keys import UNCHOSEN

MARK = "*"
"""Of a learning rate that nobody chose for a row's data."""
UNFINISHED = "†"
"""Of a row with a run whose training had not ended."""


def unchosen(group: Group) -> list[str]:
    """Whose learning rate nobody chose for a row's data: the row's name, or "ADAPTATION of NAME"."""
    rates = [pair for run in group.runs for pair in enumerate(run.results.get("learning_rates") or [])]
    whose = [f"{one_line(rate['of'])} of " * (n > 0) for n, rate in rates if rate["chosen_by"] in UNCHOSEN]
    return [of + shorten(group.name) for of in dict.fromkeys(whose)]


def finished(group: Group) -> bool | None:
    """Whether the training of all seeds had ended, as results.json says under `convergence`; None: it is not known."""
    message = [run.results["convergence"].get("finished") for run in group.runs]
    return False if False in message else None if None in message else True


def doubt(group: Group) -> str:
    """Why a row is compared with no other one; empty: it is."""
    training = "its training had not ended" if finished(group) is False else ""
    rate = "nobody chose its learning rate" if unchosen(group) else ""
    return " and ".join(filter(None, (training, rate)))


def doubts(groups: Iterable[Group]) -> str:
    """The rows with a doubt, each with its reason; empty: all are compared."""
    return ", ".join(f"{shorten(group.name)} ({message})" for group in groups if (message := doubt(group)))


def warning_lines(setting: Setting) -> Iterator[str]:
    """Lines for readers of a table of scores, each with the rows that it is about, and what mends the matter."""
    if rates := [name for group in setting.groups for name in unchosen(group)]:
        yield (
            f"{MARK} nobody chose the learning rate of {', '.join(rates)} for these data, and another may be much "
            "better: choose one with +tune=learning_rate (docs/trackers.md), in Python with "
            "client_optimizer=ClientSGD(lr=...)"
        )
    yield from (f"{UNFINISHED} {_unfinished(group)}" for group in setting.groups if finished(group) is False)
    if len(setting.groups) > 1 and (result := doubts(setting.groups)):
        yield f"not compared with other rows: {result}"
    if guessing := [f"{shorten(g.name)} ({share:.1f} %)" for g in setting.groups if (share := _guessed(g)) is not None]:
        always = "always predicting each client's most frequent class, whose share is in brackets"
        yield f"rows that are no better than {always}: {', '.join(guessing)}"
    digests = pd.DataFrame([(run.seed, run.results.get("federation_digest")) for run in setting.runs])
    n = digests.groupby(0)[1].nunique()
    if seeds := n.index[n > 1].astype(str).tolist():
        yield f"not comparable: with seed {', '.join(seeds)} rows have different data (federation_digest)"
    for group in setting.groups:
        for run in group.runs:
            yield from (f"{shorten(group.name)}, seed {run.seed}: {line}" for line in not_finite_lines(run.results))


def _unfinished(group: Group) -> str:
    """The seeds whose loss still fell, by how much it did with the first of them, and how to go on."""
    runs = [run for run in group.runs if run.results["convergence"].get("finished") is False]
    seeds, message = ", ".join(str(run.seed) for run in runs), unfinished_line(runs[0].results["convergence"])
    more = "go on by its command with ckpt_path=auto and more trainer.max_epochs (and callbacks.best_round.patience)"
    return f"{shorten(group.name)}, seed{'s' * (len(runs) > 1)} {seeds}: {message}; {more}"


def unknown_line(setting: Setting) -> list[str]:
    """A line on rows of which it is not known whether their training had ended; none without any."""
    rows = [group for group in setting.groups if finished(group) is None]
    names = "any row" if len(rows) == len(setting.groups) else ", ".join(shorten(group.name) for group in rows)
    return [f"whether training had ended is not known of {names}"] if rows else []


def _guessed(group: Group) -> float | None:
    """The share of the clients' most frequent classes in %, if a row's accuracy is not above it; means over seeds."""
    scores = [run.results["test"].get("accuracy", {}).get("weighted") for run in group.runs]
    guesses = [run.results["class_scores"].get("majority_accuracy", {}).get("weighted") for run in group.runs]
    score, guess = (pd.Series(values, dtype=float).mean(skipna=False) for values in (scores, guesses))
    return 100 * float(guess) if score <= guess else None
