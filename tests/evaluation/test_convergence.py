"""Whether a training has ended, as its validation loss says."""

import math

import numpy as np
import pytest

from fedem_lightning.evaluate.convergence import best_round, convergence, fall, round_scores, unfinished_line


def _curves(losses: dict[int, float], split: str = "val") -> dict[int, dict[str, float]]:
    return {round_: {f"{split}/loss": loss} for round_, loss in losses.items()}


def test_a_loss_that_still_falls_is_said() -> None:
    found = convergence(_curves({r: math.exp(-r / 20) + 0.1 for r in range(0, 21, 2)}))
    assert found["finished"] is False
    assert found["rounds"] == [18, 20]
    assert found["split"] == "val"
    before, after = math.exp(-18 / 20) + 0.1, math.exp(-1) + 0.1
    assert found["share"] == pytest.approx((before - after) / min(after, 1.1 - after))
    assert "fell by" in unfinished_line(found)
    assert "rounds 18 to 20" in unfinished_line(found)


NOISE = np.random.default_rng(0).normal(size=21)
LOSSES: dict[str, tuple[dict[int, float], bool]] = {
    "at its floor": ({r: math.exp(-r / 20) + 0.1 for r in range(0, 301, 10)}, True),
    "slow from the start": ({r: 1.1 - 0.0001 * r for r in range(0, 201, 10)}, False),  # 0.2 % of it in a tenth
    "of separable classes, small": ({r: 1 / (1 + 5 * r) for r in range(0, 401, 10)}, True),  # it falls for ever
    "noise at a floor": ({5 * r: 0.3 + math.exp(-r) + 0.0004 * float(noise) for r, noise in enumerate(NOISE)}, True),
}


@pytest.mark.parametrize("kind", LOSSES)
def test_whether_a_loss_still_falls(kind: str) -> None:
    losses, finished = LOSSES[kind]
    found = convergence(_curves(losses))
    assert found["finished"] is finished
    assert (unfinished_line(found) == "") == finished


def test_a_fall_over_more_than_a_tenth_counts_by_its_share() -> None:
    rare = convergence(_curves({0: 1.0, 20: 0.505, 40: 0.487, 60: 0.48}))
    assert rare["share"] == pytest.approx(0.007 / 0.48 * 6 / 20)
    assert rare["finished"] is True


def test_what_cannot_be_told_has_its_reason() -> None:
    nothing = [{}, _curves({5: 0.3}), _curves({0: 1.0, 10: math.nan})]
    said = [convergence(curves) for curves in nothing]
    assert [found["finished"] for found in said] == [None, None, None]
    assert ["no loss" in said[0]["reason"], "once" in said[1]["reason"], "finite" in said[2]["reason"]] == [True] * 3
    assert convergence(_curves({0: 1.0, 10: 0.5}, "train"))["split"] == "train"


def test_losses_below_zero_are_compared_with_their_fall() -> None:
    assert fall({0: 2.0, 5: -1.0, 10: -1.3}, 5) == pytest.approx(0.3 / 3.3)
    assert fall({0: 2.0, 5: -1.3, 10: -1.0}, 5) == 0.0


def test_the_best_round_is_that_of_validation() -> None:
    val = {1: 0.7, 2: 0.8, 3: 0.8}
    curves = {r: {"val/accuracy": v, "val/loss": 1.0 - r / 10, "test/accuracy": v / 2} for r, v in val.items()}
    assert best_round({**curves, 4: {"lr": 0.1}}) == 2
    assert round_scores(curves, 2) == {"round": 2, "measure": "accuracy", "val": 0.8, "test": 0.4}
    assert best_round({1: {"val/mse": 4.0}, 2: {"val/mse": 3.0}, 3: {"val/mse": math.nan}}) == 2
    assert best_round({1: {"lr": 0.1}}) is None
