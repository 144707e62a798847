"""Which row of a setting to take, by validation scores alone: how many components, then which method."""

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import pandas as pd

from fedem_lightning.report.groups import Group, comparable
from fedem_lightning.report.significance import CHANCE_LEVEL, ENOUGH_SEEDS, said_p, t_test
from fedem_lightning.report.warning_lines import unchosen_line

_KEY = "algorithm.n_components"


class Recommended(NamedTuple):
    """The row to take.

    Args:
        lines: the reasons: the number of components of each method that has several, then the method.
        sure: the row, if it is better than every other method beyond chance and every learning rate was chosen.

    """

    lines: list[str]
    sure: Group | None


def recommended(groups: Sequence[Group], val: pd.DataFrame) -> Recommended:
    """The row of some groups, at least one, to take by their validation scores `val`, by seed and label."""
    lines, candidates = [], []
    families: dict[str, list[Group]] = defaultdict(list)
    for group in groups:
        rest = {k: v for k, v in group.config.items() if k != _KEY}
        families[f"{group.algorithm} {comparable(rest)}"].append(group)
    for family in families.values():
        best, *others = family
        if others:
            best, line = _number_of_components(sorted(family, key=_m), val)
            lines.append(line)
        candidates.append(best)
    said, sure = _method(candidates, val)
    return Recommended(lines + said, sure)


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


def _method(candidates: Sequence[Group], val: pd.DataFrame) -> tuple[list[str], Group | None]:
    """Lines about the best method, and its row if it is surely the best."""
    best, *others = sorted(candidates, key=lambda group: -group.runs[0].sign * val[group.label].mean())
    if not others:
        return [f"method: {best.label} is the only one with validation scores ({_score(best, val)})"], None
    tested = [(other, *_difference(best, other, val)) for other in others]
    listed = ", ".join(f"{_score(other, val)} for {other.label} ({how})" for other, _, _, how in tested)
    line = f"method: {best.label}: validation {_score(best, val)} against {listed}"
    equal = [other.label for other, gain, p, _ in tested if not (gain > 0 and p < CHANCE_LEVEL)]
    untuned = unchosen_line(candidates)
    if equal:
        also = f"; {untuned}" if untuned else ""
        said = f"not sure: {best.label} is not shown to be better than {', '.join(equal)}; more seeds may tell{also}"
        return [line, said], None
    if untuned:
        return [line, f"not sure: {best.label} is better than every other method beyond chance, but {untuned}"], None
    worst_p = said_p(max(p for _, _, p, _ in tested))
    return [line, f"sure: {best.label} is better than every other method beyond chance (at worst {worst_p})"], best


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
