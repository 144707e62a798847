"""`--recommend`: which number of components and which method, by validation scores alone; tests never count."""

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from fedem_lightning.report.diagnostic_tables import entropy, final_weights
from fedem_lightning.report.groups import Group, Setting, comparable
from fedem_lightning.report.more_columns import unchosen_line
from fedem_lightning.report.significance import CHANCE_LEVEL, ENOUGH_SEEDS, said_p, t_test

_KEY = "algorithm.n_components"


class _Difference(NamedTuple):
    """A paired test of two rows' validation scores.

    Args:
        gain: mean over the common seeds, positive where the first row is better.
        p: two-sided p-value; NaN with fewer than five common seeds.
        n_seeds: number of common seeds.

    """

    gain: float
    p: float
    n_seeds: int

    @property
    def is_better(self) -> bool:
        """Whether the first row is better beyond chance."""
        return self.gain > 0 and self.p < CHANCE_LEVEL


def recommendation(setting: Setting) -> list[str]:
    """Lines about one setting: the number of components of each method that has several, then the method."""
    known = [group for group in setting.groups if _seeds(group)]
    if not known:
        lacking = "no validation scores, so nothing can be recommended: the runs had no validation samples"
        return [f"{lacking}; {_way_to_val(setting)}"]
    lines, candidates = [], []
    families: dict[str, list[Group]] = defaultdict(list)
    for group in known:
        rest = {k: v for k, v in group.config.items() if k != _KEY}
        families[f"{group.algorithm} {comparable(rest)}"].append(group)
    for family in families.values():
        best, said = _number_of_components(sorted(family, key=_m)) if len(family) > 1 else (family[0], [])
        candidates.append(best)
        lines += said
    lines += _method(candidates)
    missing = [group.label for group in setting.groups if group not in known]
    return lines + ([f"without validation scores, so not considered: {', '.join(missing)}"] if missing else [])


def _way_to_val(setting: Setting) -> str:
    """What gives the runs validation samples."""
    split = setting.groups[0].config.get("dataset.split")
    if split is None:
        return "dataset.fractions sets their share, where the data have no split of their own"
    return f"the column of dataset.split={split} has no val; without dataset.split they are drawn"


def _number_of_components(family: list[Group]) -> tuple[Group, list[str]]:
    """The smallest M that no larger one beats beyond chance (without a test: at all), and a line with the reasons."""
    best = family[0]
    for group in family[1:]:
        found = _difference(group, best)
        if found.gain > 0 and (math.isnan(found.p) or found.p * (len(family) - 1) < CHANCE_LEVEL):
            best = group
    reasons = []
    for other in family:
        if other is not best:
            found = _difference(best, other)
            said = f"{_score(other)} for M = {_m(other):g} ({_p(found)})"
            if _m(other) > _m(best):
                better = "better" if math.isnan(found.p) else "better beyond chance"
                said = f"M = {_m(other):g} is not {better}: {_score(other)} ({_p(found)}){_flaws(other)}"
            reasons.append(said)
    smaller = [r for r in reasons if not r.startswith("M = ")]
    larger = [r for r in reasons if r.startswith("M = ")]
    first = f"{best.algorithm}: M = {_m(best):g}: validation {_score(best)}"
    first += f" against {', '.join(smaller)}" if smaller else ""
    return best, ["; ".join([first + _mixture(best), *larger])]


def _method(candidates: Sequence[Group]) -> Iterator[str]:
    ordered = sorted(candidates, key=lambda group: -group.runs[0].sign * float(np.mean(list(_seeds(group).values()))))
    best, *others = ordered
    if not others:
        yield f"method: {best.label} is the only one with validation scores ({_score(best)})"
        return
    tested = [(other, _difference(best, other)) for other in others]
    equal = [f"{other.label} ({_score(other)}, {_p(found)})" for other, found in tested if not found.is_better]
    second, found = tested[0]
    yield (
        f"method: {best.label}: validation {_score(best)} against {_score(second)} for {second.label} ({_p(found)})"
        + (_likelihood(best, second) + _mixture(best) + _flaws(best))
    )
    untuned = unchosen_line(candidates)
    if equal:
        also = f"; {untuned}" if untuned else ""
        yield f"not sure: {best.label} is not shown to be better than {', '.join(equal)}; more seeds may tell{also}"
    elif untuned:
        yield f"not sure: {best.label} is better than every other method beyond chance, but {untuned}"
    else:
        worst_p = said_p(max(found.p for _, found in tested))
        yield f"sure: {best.label} is better than every other method beyond chance (at worst {worst_p})"


def _difference(a: Group, b: Group) -> _Difference:
    """Tests two rows' validation scores by Student's test over five or more common seeds; fewer are not tested."""
    mine, theirs, sign = _seeds(a), _seeds(b), a.runs[0].sign
    gains = [sign * (mine[seed] - theirs[seed]) for seed in mine if seed in theirs]
    if not gains:
        return _Difference(sign * float(np.mean(list(mine.values())) - np.mean(list(theirs.values()))), math.nan, 0)
    return _Difference(float(np.mean(gains)), t_test(gains) if len(gains) >= ENOUGH_SEEDS else math.nan, len(gains))


def _seeds(group: Group, measure: str = "") -> dict[int, float]:
    """The weighted validation score of each seed, in the table's unit; empty unless all seeds have one."""
    name, factor = (measure, 1.0) if measure else group.runs[0].measure
    found = {}
    for run in group.runs:
        value = ((run.results.get("val") or {}).get(name) or {}).get("weighted")
        if not isinstance(value, (int, float)) or not math.isfinite(value):
            return {}
        found[run.seed] = factor * value
    return found


def _m(group: Group) -> float:
    m = group.config.get(_KEY)
    return float(m) if isinstance(m, (int, float)) else math.inf


def _score(group: Group) -> str:
    percent = group.runs[0].measure[1] == 100
    return f"{np.mean(list(_seeds(group).values())):{'.1f' if percent else '.4g'}}"


def _p(found: _Difference) -> str:
    few = f"no test: {found.n_seeds} of {ENOUGH_SEEDS} common seeds"
    return few if math.isnan(found.p) else f"{said_p(found.p)} over {found.n_seeds} seeds"


def _likelihood(best: Group, other: Group) -> str:
    losses = [_seeds(group, "loss") for group in (best, other)]
    if best.runs[0].measure[0] == "loss" or not all(losses):
        return ""
    mine, theirs = (float(np.mean(list(found.values()))) for found in losses)
    return f"; validation loss {mine:.3g} against {theirs:.3g}"


def _mixture(group: Group) -> str:
    """The entropy of the mixture weights in words, if there are any."""
    weights = [found for run in group.runs if (found := final_weights(run)) is not None and len(found.seen)]
    if not weights:
        return ""
    mean = float(np.mean([entropy(found.seen) for found in weights]))
    most = math.log(weights[0].seen.shape[1])
    said = "clients mix the components" if mean > most / 2 else "most clients rely on one component"
    return f"; entropy of pi {mean:.2f} of at most {most:.2f} nats: {said}"


def _flaws(group: Group) -> str:
    """Dead components in words, if a run has any."""
    dead = [len((run.results.get("components") or {}).get("dead") or []) for run in group.runs]
    if not any(dead):
        return ""
    return f", and {max(dead)} dead component{'s' * (max(dead) > 1)} in {sum(map(bool, dead))} of {len(dead)} runs"
