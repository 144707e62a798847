"""Choices by validation samples, where tests never count: `--choose` for each client, `--recommend` for all together.

Clients choose the best of several runs as in Mansour et al. 2020, Sec. 4.2.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from fedem_lightning.errors import require
from fedem_lightning.evaluation.summaries import summarize_table
from fedem_lightning.records.measures import SPLITS
from fedem_lightning.report.collect import OPTIONAL
from fedem_lightning.report.finished_run import Run
from fedem_lightning.report.groups import Group, Setting, as_typed, comparable, relevant, sortable
from fedem_lightning.report.scores_table import final_scores
from fedem_lightning.report.significance import CHANCE_LEVEL, ENOUGH_SEEDS, said_p, t_test
from fedem_lightning.report.warning_lines import unchosen_line

_CHOSEN = "best by hold-out"
"""The value of the key in the configuration of a chosen run, which its label shows."""

_SCORE_COLUMNS = r"^(id|population|n_(train|val|test)|(train|val|test)_\w+)$"
_KEY = "algorithm.n_components"


@dataclass(frozen=True)
class Chosen(Run):
    """A run combined from runs of one seed: every client comes from one of them.

    Args:
        folder, results, config: see `Run`; scores are those of the chosen rows, communication and seconds are the sums
            over all runs.
        table: the chosen rows of clients.parquet, scores only.
        note: how many clients chose each run.

    """

    table: pd.DataFrame
    note: str

    @property
    def metrics(self) -> None:
        """None: clients choose after the last round, so there are no curves."""

    @property
    def clients(self) -> pd.DataFrame:
        """The chosen rows."""
        return self.table

    @property
    def samples(self) -> None:
        """None: the samples' scores are not chosen with the rows."""


def choose(runs: Iterable[Run], key: str) -> list[Chosen]:
    """Combines runs that differ in `key` alone to one run: every client chooses the run with its lowest loss.

    The loss is that of the client's validation samples; a client without any uses the loss of all clients.

    Args:
        runs: any runs; those without a table of clients are left out.
        key: key of the configuration, e.g. algorithm.n_components.

    Returns:
        The combined runs; the value of their `key` is "best by hold-out".

    Raises:
        UserError: no runs with the same data and seed differ in `key` alone; or there are no validation samples.

    """
    families: dict[str, dict[str, Run]] = defaultdict(dict)
    for run in sorted(runs, key=lambda r: r.date):  # of two runs with the same value the newer one counts
        if key in run.config and run.clients is not None:
            names = ("seed", "dataset", "backbone", "federation_digest")
            same = [run.algorithm, *(run.results.get(name) for name in names)]
            shared = comparable({k: v for k, v in relevant(run.config).items() if k != key})
            families[f"{same} {shared} {hash(tuple(run.clients.id))}"][as_typed(run.config[key])] = run
    found = [list(family.values()) for family in families.values() if len(family) > 1]
    alone = "no runs with the same data and seed differ in it alone"
    require(bool(found), f"--choose {key}: nothing to choose from, {alone}")
    return [_chosen(sorted(family, key=lambda run: sortable(run.config[key])), key) for family in found]


def _chosen(runs: list[Run], key: str) -> Chosen:
    tables = [clients for run in runs if (clients := run.clients) is not None]
    held_out = all("val_loss" in table and table.n_val.any() for table in tables)
    require(held_out, f"--choose {key}: no validation samples to choose by in {runs[0].folder}")
    winner = np.stack([_losses(table) for table in tables]).argmin(axis=0)  # [T]
    scores = [table.filter(regex=_SCORE_COLUMNS)[winner == i] for i, table in enumerate(tables)]
    best = pd.concat(scores).sort_index()
    is_seen = (best.population == "seen").to_numpy()
    taken = np.bincount(winner[is_seen], minlength=len(runs))
    shares = ", ".join(f"{as_typed(run.config[key])} by {n}" for run, n in zip(runs, taken, strict=True))
    note = f"{_CHOSEN} over {key}: {runs[0].algorithm}, seed {runs[0].seed}, clients took {shares}"
    results = _results(runs, best[is_seen], best[~is_seen])
    return Chosen(runs[-1].folder, results, {**runs[0].config, key: _CHOSEN}, best, note)


def _losses(clients: pd.DataFrame) -> np.ndarray:
    """The loss by which each client chooses, [T]; infinite where it is not finite."""
    loss, n = clients.val_loss.to_numpy(dtype=float), clients.n_val.to_numpy()
    overall = np.average(loss[n > 0], weights=n[n > 0])
    return np.nan_to_num(np.where(n > 0, loss, overall), nan=np.inf, posinf=np.inf)


def _results(runs: list[Run], seen: pd.DataFrame, unseen: pd.DataFrame) -> dict[str, Any]:
    """Results in the form of results.json; bytes and time are the sums over all runs among which clients choose."""
    seconds = [run.results["seconds"].get("per_round") for run in runs]
    sent = [run.results["communication"] for run in runs]
    kept = ("algorithm", "adaptation", "dataset", "backbone", "seed", "n_clients", "reference", "environment")
    return {
        **{key: {} for key in OPTIONAL},
        **{name: value for name, value in runs[0].results.items() if name in kept},
        "rounds": max(run.results["rounds"] for run in runs),
        **{split: summarize_table(seen, split) for split in SPLITS},
        "unseen": {split: summarize_table(unseen, split) for split in SPLITS} if len(unseen) else {},
        "seconds": {"per_round": None if None in seconds else sum(seconds)},
        "communication": {name: sum(s[name] for s in sent) for name in ("up_bytes", "down_bytes")},
    }


def recommendation(setting: Setting) -> list[str]:
    """Lines about one setting: the number of components of each method that has several, then the method."""
    seeds = {group.label: {run.seed: final_scores(run).get("val") for run in group.runs} for group in setting.groups}
    val = pd.DataFrame(seeds, dtype=float)  # validation scores by seed and label
    known = [group for group in setting.groups if val[group.label].count() == len(group.runs)]
    if not known:
        split = setting.groups[0].config.get("dataset.split")
        way = f"the column of dataset.split={split} has no val; without dataset.split they are drawn"
        if split is None:
            way = "dataset.fractions sets their share, where the data have no split of their own"
        return [f"no validation scores, so nothing can be recommended: the runs had no validation samples; {way}"]
    lines, candidates = [], []
    families: dict[str, list[Group]] = defaultdict(list)
    for group in known:
        rest = {k: v for k, v in group.config.items() if k != _KEY}
        families[f"{group.algorithm} {comparable(rest)}"].append(group)
    for family in families.values():
        best, *others = family
        if others:
            best, line = _number_of_components(sorted(family, key=_m), val)
            lines.append(line)
        candidates.append(best)
    lines += _method(candidates, val)
    missing = [group.label for group in setting.groups if group not in known]
    return lines + ([f"without validation scores, so not considered: {', '.join(missing)}"] if missing else [])


def _number_of_components(family: Sequence[Group], val: pd.DataFrame) -> tuple[Group, str]:
    """The smallest M that no larger one beats beyond chance (without a test: at all), and a line with the reasons."""
    best = family[0]
    for group in family[1:]:
        gain, p, _ = _difference(group, best, val)
        if gain > 0 and (math.isnan(p) or p * (len(family) - 1) < CHANCE_LEVEL):
            best = group
    reasons = []
    for other in family:
        if other is not best:
            _, p, how = _difference(best, other, val)
            better = "better" if math.isnan(p) else "better beyond chance"
            larger = f" is not {better}" if _m(other) > _m(best) else ""
            reasons.append(f"M = {_m(other):g}{larger}: {_score(other, val)} ({how})")
    return best, "; ".join([f"{best.algorithm}: M = {_m(best):g}: validation {_score(best, val)}", *reasons])


def _method(candidates: Sequence[Group], val: pd.DataFrame) -> Iterator[str]:
    best, *others = sorted(candidates, key=lambda group: -group.runs[0].sign * val[group.label].mean())
    if not others:
        yield f"method: {best.label} is the only one with validation scores ({_score(best, val)})"
        return
    tested = [(other, *_difference(best, other, val)) for other in others]
    listed = ", ".join(f"{_score(other, val)} for {other.label} ({how})" for other, _, _, how in tested)
    yield f"method: {best.label}: validation {_score(best, val)} against {listed}"
    equal = [other.label for other, gain, p, _ in tested if not (gain > 0 and p < CHANCE_LEVEL)]
    untuned = unchosen_line(candidates)
    if equal:
        also = f"; {untuned}" if untuned else ""
        yield f"not sure: {best.label} is not shown to be better than {', '.join(equal)}; more seeds may tell{also}"
    elif untuned:
        yield f"not sure: {best.label} is better than every other method beyond chance, but {untuned}"
    else:
        worst_p = said_p(max(p for _, _, p, _ in tested))
        yield f"sure: {best.label} is better than every other method beyond chance (at worst {worst_p})"


def _difference(a: Group, b: Group, val: pd.DataFrame) -> tuple[float, float, str]:
    """Student's test of two rows over the seeds that both have.

    Returns:
        The mean gain, positive where `a` is better; its p-value, NaN with fewer than five common seeds; both in words.

    """
    sign = a.runs[0].sign
    gains = sign * (val[a.label] - val[b.label]).dropna()
    if len(gains) >= ENOUGH_SEEDS:
        p = t_test(gains.to_numpy())
        return gains.mean(), p, f"{said_p(p)} over {len(gains)} seeds"
    gain = gains.mean() if len(gains) else sign * (val[a.label].mean() - val[b.label].mean())
    return gain, math.nan, f"no test: {len(gains)} of {ENOUGH_SEEDS} common seeds"


def _m(group: Group) -> float:
    m = group.config.get(_KEY)
    return float(m) if isinstance(m, (int, float)) else math.inf


def _score(group: Group, val: pd.DataFrame) -> str:
    percent = group.runs[0].measure[1] == 100
    return f"{val[group.label].mean():{'.1f' if percent else '.4g'}}"
