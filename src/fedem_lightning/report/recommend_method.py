"""`--recommend`: which number of components and which method, by validation scores alone; tests never count."""

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence

import pandas as pd

from fedem_lightning.report.groups import Group, Setting, comparable
from fedem_lightning.report.scores_table import final_scores, unchosen_line
from fedem_lightning.report.significance import CHANCE_LEVEL, ENOUGH_SEEDS, said_p, t_test

_KEY = "algorithm.n_components"


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
