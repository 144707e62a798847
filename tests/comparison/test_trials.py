"""Which settings `compare` tries: a grid of rates that grows at its edge, then other keys, then finer rates."""

import math
from collections.abc import Callable
from typing import Any

import pytest

from fedem_lightning import UserError
from fedem_lightning.comparison.trials import RATE, Candidate, Setting, candidates, default_candidates, next_setting


def tried(candidate: Candidate, error: Callable[[Setting], float], n: int, **start: Any) -> list[Setting]:
    """The settings of n trials, whose errors are a function of the setting."""
    found: list[tuple[Setting, float]] = []
    for _ in range(n):
        setting = next_setting(candidate, found, start)
        assert setting is not None
        assert setting not in [one for one, _ in found]
        found.append((setting, error(setting)))
    return [setting for setting, _ in found]


def test_rates_go_on_beyond_the_edge_at_which_the_best_one_lies() -> None:
    rates = [s[RATE] for s in tried(Candidate("a", "A", ()), lambda s: abs(math.log(s[RATE] / 3)), 6)]
    assert rates == [0.1, 0.03, 0.3, 1.0, 3.0, 10.0]
    rates = [s[RATE] for s in tried(Candidate("a", "A", ()), lambda s: abs(math.log(s[RATE] / 0.1)), 7)]
    assert rates == [0.1, 0.03, 0.3, 0.056, 0.18, 0.075, 0.13]


def test_every_method_gets_as_many_trials_as_are_asked_for() -> None:
    for candidate in default_candidates(linear=True):
        assert len(tried(candidate, lambda s: abs(math.log(s[RATE] / 0.1)), 40, **{RATE: 0.1})) == 40


def test_where_all_rates_diverge_lower_ones_follow() -> None:
    rates = [s[RATE] for s in tried(Candidate("a", "A", ()), lambda s: math.inf, 5)]
    assert rates == [0.1, 0.03, 0.3, 0.01, 0.003]


def test_other_keys_are_tried_at_the_best_rate() -> None:
    fedem = next(c for c in default_candidates(linear=True) if c.name == "fedem")
    found = tried(fedem, lambda s: abs(math.log(s[RATE] / 0.1)) + abs(s["n_components"] - 4), 6)
    assert [s[RATE] for s in found] == [0.1, 0.03, 0.3, 0.1, 0.1, 0.1]
    assert [s["n_components"] for s in found] == [3, 3, 3, 2, 4, 5]


def test_a_tuned_method_begins_with_the_best_setting_of_its_base() -> None:
    tuned = next(c for c in default_candidates(linear=True) if c.name == "fedem_tuned")
    found = tried(tuned, lambda s: 1.0, 5, **{"n_components": 4, RATE: 0.056})
    assert all(setting[RATE] == 0.056 and setting["n_components"] == 4 for setting in found)
    assert len({setting["adaptation.client_optimizer.lr"] for setting in found}) > 2


def test_a_tuned_method_follows_its_base_to_better_settings() -> None:
    """The base's best rate is 0.1, then 0.03, in the end 0.056; with 0.1 all diverges, and 0.01 is best for tuning."""
    tuned = next(c for c in default_candidates(linear=True) if c.name == "fedavg_tuned")
    found: list[tuple[Setting, float]] = []
    for rate in (0.1, 0.03, 0.03, 0.03, 0.03, 0.056):
        setting = next_setting(tuned, found, {RATE: rate})
        assert setting is not None
        found.append((setting, setting["adaptation.client_optimizer.lr"] if rate < 0.1 else math.inf))
    assert [setting[RATE] for setting, _ in found] == [0.1, 0.03, 0.03, 0.03, 0.03, 0.056]
    assert [setting["adaptation.client_optimizer.lr"] for setting, _ in found] == [0.1, 0.01, 0.03, 0.3, 0.01, 0.01]
    assert [setting["adaptation.epochs"] for setting, _ in found] == [1, 1, 1, 1, 5, 1]


def test_named_methods_come_with_their_bases_and_with_those_that_answers_compare_with() -> None:
    assert [c.name for c in candidates(["fedem_tuned"], linear=True)] == ["local", "fedavg", "fedem", "fedem_tuned"]
    assert [c.name for c in candidates(["ditto"], linear=False)] == ["local", "fedavg", "ditto"]
    own = candidates(["my.package.MyMethod"], linear=False)[-1]
    assert own.words == ("algorithm._target_=my.package.MyMethod",)
    with pytest.raises(UserError, match="did you mean ditto"):
        candidates(["dito"], linear=False)
