"""The answer of a comparison: whether clients gain by models of their own, from errors by client and seed."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd
from scipy import stats

from fedem_lightning.evaluate.summaries import mean_tests
from fedem_lightning.report.gains_by_client import CHANCE_LEVEL, t_interval, t_test

MARGIN = 0.01
"""A gain below this is none: of an accuracy in points, of another error as a share of the one model's."""


@dataclass(frozen=True)
class Gain:
    """How much lower the error of one method is than that of another, over seeds and clients."""

    mean: float
    low: float  # the outer ends of two 95 % intervals, over seeds and over clients
    high: float
    p: float  # the larger p-value of both tests
    better: tuple[str, ...]  # clients with a lower error on average over seeds
    worse: tuple[str, ...]
    deviation: float  # of the seeds' mean gains


def gain(errors: pd.DataFrame, of: pd.DataFrame) -> Gain:
    """Compares errors [clients, seeds] with those `of` another method, paired by client and seed.

    Two tests have to agree, and two intervals are joined: Student's over the seeds' means, which assumes that seeds are
    independent (they share samples, and so are not quite); and Student's with Hall's correction over the clients' means
    (`mean_tests`), which assumes that clients are drawn from a population.
    """
    d = (of - errors).dropna()  # [clients, seeds]; positive: better
    by_seed, by_client = d.mean(axis=0).to_numpy(), d.mean(axis=1)
    tested = mean_tests(by_client.to_numpy(), np.zeros(len(d), dtype=np.int64), 1)
    p = [t_test(by_seed), float(tested.p[0])]
    low, high = t_interval(by_seed) if len(by_seed) > 1 else (math.nan, math.nan)
    return Gain(
        float(d.to_numpy().mean()),
        float(np.nanmin([low, tested.low[0]])),
        float(np.nanmax([high, tested.high[0]])),
        float(np.nanmax(p)),
        tuple(by_client.index[by_client > 0]),
        tuple(by_client.index[by_client < 0]),
        float(by_seed.std(ddof=1)) if len(by_seed) > 1 else math.nan,
    )


@dataclass(frozen=True)
class Answer:
    """What `compare` has found."""

    verdict: Literal["yes", "no", "cannot tell"]
    chosen: str  # the method to use
    rival: str  # the best one by validation of the other kind
    to_one_model: Gain | None  # of the best personal method over the best one with one model; None: one seed or client
    to_local: Gain | None  # of the chosen method over clients that train alone
    more_seeds: int | None = None  # that would show a difference of `MARGIN`, where the answer is open


def answer(
    validation: Mapping[str, float],
    errors: Mapping[str, pd.DataFrame],
    one_model: Sequence[str],
    margin: float,
    local: str = "local",
) -> Answer:
    """The answer from validation errors, and test errors [clients, seeds], by method.

    Validation picks the best personal method, and the best one with one model; test errors compare these two alone, so
    that a choice among many methods adds no chance. No: the interval of the personal one's gain ends below `margin`.
    Yes: else, its gain is `margin` or more, and it is better by both tests of `gain`. Else nobody can tell.
    """

    def best(names: Sequence[str]) -> str:
        return min(names, key=lambda name: validation[name])

    personal = best([name for name in errors if name not in one_model])
    shared = best([name for name in errors if name in one_model])
    compared = gain(errors[personal], errors[shared])
    verdict: Literal["yes", "no", "cannot tell"] = "cannot tell"
    if compared.high < margin:
        verdict = "no"
    elif compared.mean >= margin and compared.p < CHANCE_LEVEL:
        verdict = "yes"
    chosen = personal if verdict == "yes" else shared
    to_local = None if chosen == local or local not in errors else gain(errors[chosen], errors[local])
    more = seeds_needed(compared, margin, errors[personal].shape[1]) if verdict == "cannot tell" else None
    return Answer(verdict, chosen, shared if chosen == personal else personal, compared, to_local, more)


def seeds_needed(compared: Gain, margin: float, seeds: int) -> int | None:
    """How many more seeds would shorten the interval over seeds to `margin` on each side; None: over a hundred."""
    for n in range(seeds + 1, 101):
        if stats.t.ppf(1 - CHANCE_LEVEL / 2, n - 1) * compared.deviation / math.sqrt(n) <= margin:
            return n - seeds
    return None
