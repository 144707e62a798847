"""PrivateMean against its equations in NumPy, and what it refuses."""

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import kstest, norm

from fedem_lightning import L2SGD, FedAvg, FedEM, PrivateMean, ShiftedExponentialNetwork, UserError
from fedem_lightning.aggregate import RoundContext, Sampling, Update, accountant
from fedem_lightning.aggregate.accountant import epsilon_of, noise_for
from fedem_lightning.aggregate.private import CLIP_RATE
from fedem_lightning.data.randomness import SystemNoise, sample_independently, secret_uniforms
from fedem_lightning.module.round import sampling_of
from fedem_lightning.run.callbacks import RoundCheckpoint
from fedem_lightning.run.summary import privacy_line
from helpers.conformance import Noisy
from helpers.federations import make_data, make_model, make_trainer, parameters

RNG = np.random.default_rng(0)


THETA = {"a": RNG.normal(size=(2, 3)), "b": RNG.normal(size=(2, 2, 2))}  # M = 2 components
SENT = {name: theta + 0.3 * RNG.normal(size=(5, *theta.shape)) for name, theta in THETA.items()}  # 5 clients


def collected(
    rule: PrivateMean, expected: float = 4.0, key: Any = (0, 0), parts: int = 1, left_out: int | None = None
) -> Any:
    """The means of a round with all clients but one, in so many blocks."""
    received = {name: torch.tensor(theta).unsqueeze(0) for name, theta in THETA.items()}
    sampling = Sampling(1.0, expected, 3)
    collector = rule.begin(RoundContext(torch.arange(5), list(THETA), lambda: received, sampling, key))
    for rows in torch.tensor([t for t in range(5) if t != left_out]).chunk(parts):
        models = {name: torch.tensor(sent)[rows] for name, sent in SENT.items()}
        start = {name: t.expand(len(rows), *t.shape[1:]) for name, t in received.items()}
        collector.add(Update(models, torch.ones(len(rows)), start), rows)
    return collector.compute()


def lengths() -> np.ndarray:
    """|d_t| over all components."""
    squares = [((SENT[name] - THETA[name]) ** 2).reshape(5, -1).sum(axis=1) for name in THETA]
    return np.sqrt(np.sum(squares, axis=0))


@pytest.mark.parametrize("parts", [1, 2, 5])
def test_without_noise_it_is_the_mean_of_clipped_updates_over_the_expected_size(parts: int) -> None:
    clip = float(np.median(lengths()))
    means = collected(PrivateMean(noise_multiplier=0.0, clip=clip), parts=parts)
    scales = np.minimum(1, clip / lengths())
    assert (scales < 1).any()
    assert (scales == 1).any()
    for name, theta in THETA.items():
        differences = (SENT[name] - theta) * scales.reshape(5, *[1] * theta.ndim)
        assert means.models[name].numpy() == pytest.approx(theta + differences.sum(axis=0) / 4, abs=1e-12)


def test_the_noise_has_its_standard_deviation() -> None:
    rule, quiet = PrivateMean(noise_multiplier=1.5, clip=0.2), PrivateMean(noise_multiplier=0.0, clip=0.2)
    large = PrivateMean(noise_multiplier=1.5, clip=0.2, cohort=400.0)  # the noise of a larger federation
    plain = collected(quiet).models
    draws = [collected(rule, key=(0, round_)).models for round_ in range(400)]
    noise = np.concatenate([(draw[name] - plain[name]).numpy().ravel() for draw in draws for name in THETA])
    assert noise.std() == pytest.approx(1.5 * 0.2 / 4, rel=0.03)
    assert abs(noise.mean()) < 4 * 1.5 * 0.2 / 4 / math.sqrt(len(noise))
    ratio = (draws[0]["a"] - plain["a"]) / (collected(large).models["a"] - plain["a"])
    assert ratio.numpy() == pytest.approx(np.full((2, 3), 100.0))


def test_the_noise_of_a_round_is_the_seeds_and_without_a_key_nobodys() -> None:
    def noisy(key: Any) -> torch.Tensor:
        return collected(PrivateMean(), key=key).models["a"]

    assert torch.equal(noisy((0, 1)), noisy((0, 1)))
    assert not torch.equal(noisy((0, 1)), noisy((0, 2)))
    assert not torch.equal(noisy((0, 1)), noisy((1, 1)))
    assert not torch.equal(noisy(None), noisy(None))


def test_the_clip_follows_a_quantile() -> None:
    clip = float(np.median(lengths()))
    rule = PrivateMean(noise_multiplier=0.0, clip=clip, quantile=0.5)
    collected(rule, expected=5.0)
    assert float(rule.length) == pytest.approx(clip * math.exp(-0.2 * (3 / 5 - 0.5)))
    rule = PrivateMean(noise_multiplier=1.0, quantile=0.5)
    z = rule.noise_of_updates(50.0)
    assert z**-2 + (2 * 0.05 * 50) ** -2 == pytest.approx(1.0)  # Andrew et al., Theorem 1
    assert z > 1
    rule = PrivateMean(noise_multiplier=3.0, quantile=0.5)  # 2 z clients, where that is more than 5 %
    assert (rule.noise_of_count(12.0), rule.noise_of_count(1000.0)) == (0.5, 0.05)
    assert rule.noise_of_updates(12.0) == pytest.approx(3.0 / math.sqrt(15 / 16))


def released(rule: PrivateMean, left_out: int | None, expected: float) -> tuple[np.ndarray, float]:
    """What a round tells: the sum of clipped updates over S, and the number of short ones, read from the next S."""
    clip = float(rule.length)
    models = collected(rule, expected, left_out=left_out).models
    total = np.concatenate([(models[name].numpy() - theta).ravel() for name, theta in THETA.items()])
    assert rule.quantile is not None
    share = rule.quantile - math.log(float(rule.length) / clip) / CLIP_RATE
    return total * expected / clip, share * expected


@pytest.mark.parametrize("clip", [0.01, float(np.median(lengths())), 100.0])  # all are long, some, none
def test_one_client_moves_what_a_round_tells_by_no_more_than_its_noise_hides(clip: float) -> None:
    """The pair (sum, number) of Gaussians with and without a client is as near as two Gaussians at distance 1 / z."""
    z, size = 1.3, 5.0
    rule = PrivateMean(noise_multiplier=z, clip=clip, quantile=0.5)
    deviations = rule.noise_of_updates(size), rule.noise_of_count(size) * size
    distances = []
    for t in range(5):
        runs = [released(PrivateMean(z, clip, quantile=0.5), left_out, size) for left_out in (None, t)]
        of_sum, of_count = np.linalg.norm(runs[0][0] - runs[1][0]), abs(runs[0][1] - runs[1][1])
        assert of_sum <= 1 + 1e-9
        distances.append(math.hypot(of_sum / deviations[0], of_count / deviations[1]))
    assert max(distances) <= (1 + 1e-6) / z
    if clip < 1:
        assert max(distances) == pytest.approx(1 / z)  # and no noise is wasted
    delta, epsilon = 1e-6, epsilon_of(z, 1.0, 20, 1e-6).value
    assert gaussian_delta(epsilon, math.sqrt(20) * max(distances)) <= 1.02 * delta


def gaussian_delta(epsilon: float, distance: float) -> float:
    """The hockey-stick divergence of two Gaussians of deviation 1 at this distance (Balle and Wang 2018, Theorem 8)."""
    up, down = distance / 2 - epsilon / distance, -distance / 2 - epsilon / distance
    return float(norm.cdf(up) - math.exp(epsilon) * norm.cdf(down))


@pytest.mark.parametrize(("z", "q"), [(0.8, 0.1), (1.5, 0.5)])
def test_epsilon_of_one_subsampled_mechanism_is_that_of_the_integral(z: float, q: float) -> None:
    """Of N(0, z^2) and its mixture with N(1, z^2), the client added or removed; by sums over a grid."""
    x = np.linspace(-20 * z, 20 * z + 1, 400_001)
    without = norm.pdf(x, 0, z)
    mixed = (1 - q) * without + q * norm.pdf(x, 1, z)
    epsilon = epsilon_of(z, q, 1, 1e-6).value
    pairs = [(mixed, without), (without, mixed)]
    found = max(np.maximum(a - math.exp(epsilon) * b, 0).sum() * (x[1] - x[0]) for a, b in pairs)
    assert found == pytest.approx(1e-6, rel=0.03)


def test_an_update_that_is_not_finite_counts_as_none() -> None:
    rule = PrivateMean(noise_multiplier=0.0, clip=1e6)
    received = {"a": torch.zeros(1, 1, 2)}
    collector = rule.begin(RoundContext(torch.arange(2), ["a"], lambda: received, Sampling(1.0, 2.0, 3)))
    models = {"a": torch.tensor([[[1.0, 1.0]], [[torch.nan, 0.0]]])}
    finite = collector.add(Update(models, torch.ones(2), {"a": torch.zeros(2, 1, 2)}), torch.arange(2))
    assert finite.tolist() == [True, False]
    alone = Update({"a": models["a"][1:]}, torch.ones(1), {"a": torch.zeros(1, 1, 2)})  # a block of nobody else
    assert collector.add(alone, torch.tensor([1])).tolist() == [False]
    assert collector.compute().models["a"].tolist() == [[0.5, 0.5]]


def test_cohorts_are_drawn_independently() -> None:
    clients, draws = torch.arange(3, 53), [sample_independently(torch.arange(3, 53), 0.3, 0, r) for r in range(500)]
    sizes = np.array([len(draw) for draw in draws])
    assert sizes.mean() == pytest.approx(15, abs=0.6)
    assert sizes.var() == pytest.approx(50 * 0.3 * 0.7, rel=0.25)
    assert all(torch.isin(draw, clients).all() and draw.tolist() == sorted(draw.tolist()) for draw in draws)
    sizes = np.array([len(sample_independently(torch.arange(2), 0.3, 0, r)) for r in range(2000)])
    assert np.bincount(sizes, minlength=3) / 2000 == pytest.approx([0.49, 0.42, 0.09], abs=0.04)  # none is forced
    assert torch.equal(sample_independently(clients, 1.0, 0, 0), clients)


def test_noise_from_the_system_is_normal() -> None:
    drawn = SystemNoise().normal((200, 500))
    assert drawn.shape == (200, 500)
    assert kstest(drawn.ravel(), norm.cdf).pvalue > 1e-6
    assert not np.array_equal(SystemNoise().normal((3,)), SystemNoise().normal((3,)))
    assert SystemNoise().normal().shape == ()
    uniform = secret_uniforms("secret", 100_000, 0, 5)
    assert kstest(uniform, "uniform").pvalue > 1e-6
    assert np.array_equal(uniform, secret_uniforms("secret", 100_000, 0, 5))
    assert not np.array_equal(uniform, secret_uniforms("secret", 100_000, 0, 6))


@pytest.mark.parametrize("kind", [FedEM, L2SGD])
def test_a_round_without_a_client_adds_noise_alone(kind: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "fedem_lightning.module.round.draw_cohort",
        lambda self, federation, round_: federation.clients()[: 4 * (round_ == 1)],
    )
    options = {"probability": 0.2} if kind is L2SGD else {}
    data, private = make_data(), PrivateMean(noise_multiplier=1.0, clip=0.3, quantile=0.5)
    networks = {"uplink": ShiftedExponentialNetwork(rho=2.0, t_min=0.0, mu=1.0)}
    model = make_model(kind, data, aggregation=private, **options)
    model.networks = networks
    before, trainer, rule = parameters(model.components), make_trainer(1), model.aggregation
    trainer.fit(model, data)
    moved = parameters(model.components) - before
    deviation = rule.noise_of_updates(4.0) * 0.3 / 4
    assert float(moved.std()) == pytest.approx(deviation, rel=0.3)
    assert float(rule.length) != pytest.approx(0.3)  # half of nobody is short: the share is 1/2 and noise
    assert float(trainer.callback_metrics["cohort"]) == model.statistics.up_bytes == 0
    trainer.fit_loop.max_epochs = 2
    trainer.fit(model, data)
    assert float(trainer.callback_metrics["cohort"]) == 4
    assert model.statistics.up_bytes > 0


def test_of_two_upper_bounds_the_tighter_one_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    accountant.epsilon_of.cache_clear()
    tight = epsilon_of(1.0, 0.1, 20, 1e-6)
    accountant.epsilon_of.cache_clear()
    monkeypatch.setattr(accountant, "PLD_UP_TO", 0.0)
    loose = epsilon_of(1.0, 0.1, 20, 1e-6)
    accountant.epsilon_of.cache_clear()
    assert (tight.accountant, loose.accountant) == ("PLD", "RDP")
    assert 0.5 * loose.value < tight.value < loose.value < epsilon_of(1.0, 1.0, 20, 1e-6).value


def test_the_exact_epsilon_is_that_of_all_rounds_together() -> None:
    for z, rounds in ((2.0, 4), (0.7, 10), (20.0, 1)):
        found = epsilon_of(z, 1.0, rounds, 1e-6)
        assert found.accountant == "Gaussian"
        assert 1e-6 * (1 - 1e-5) < gaussian_delta(found.value, math.sqrt(rounds) / z) <= 1e-6


EXTREMES = [(0.01, 0.1, 100, 1e-6), (1e-8, 0.1, 100, 1e-6), (1e-200, 0.1, 9, 1e-6), (1e-200, 1.0, 9, 1e-6)]
EXTREMES += [(0.1, 1.0, 100, 1e-6), (1e9, 0.5, 10**9, 1e-6), (1.0, 1e-9, 10**7, 1e-6), (1.0, 0.1, 100, 1e-30)]
EXTREMES += [(3.0, 0.3, 10**6, 1e-6), (1e9, 1.0, 5, 1e-6), (0.3, 1e-7, 1, 1e-300)]


def test_no_noise_is_too_extreme_for_the_accountant() -> None:
    """Once the first hung, and the fifth took 19.7 GB."""
    for z, q, rounds, delta in EXTREMES:
        found = epsilon_of(z, q, rounds, delta).value
        assert 0 <= found <= epsilon_of(z, 1.0, rounds, delta).value  # sampling only helps
    assert epsilon_of(1e-200, 0.1, 9, 1e-6).value == math.inf
    assert epsilon_of(1e9, 0.5, 10**9, 1e-6).value > 0  # the total variation is 6e-6, more than delta
    assert epsilon_of(1.0, 0.1, 0, 1e-6).value == 0


@pytest.mark.parametrize(("epsilon", "q"), [(3.0, 0.1), (3.0, 1.0), (1000.0, 0.1), (1e15, 1.0)])
def test_the_noise_is_the_least_that_spends_epsilon(epsilon: float, q: float) -> None:
    z = noise_for(epsilon, q, 30, 1e-6)
    assert epsilon_of(z, q, 30, 1e-6).value <= epsilon < epsilon_of(z / 1.0001, q, 30, 1e-6).value


def test_every_model_plans_its_own_noise() -> None:
    rule = PrivateMean(epsilon=2.0, delta=1e-4, quantile=0.5)
    found = []
    for aggregation, share, rounds in ((rule, 0.25, 2), (rule, 0.5, 30)):
        model = make_model(FedAvg, make_data(sizes=(10,) * 20), aggregation=aggregation, participation=share)
        make_trainer(rounds).fit(model, make_data(sizes=(10,) * 20))
        found.append(model.aggregation.report(sampling_of(model, 20, rounds))["privacy"])
        assert found[-1]["noise_multiplier"] == float(model.state_dict()["aggregation.z"])
        assert found[-1]["clip"] != pytest.approx(0.1)  # it follows the quantile
    assert [one["epsilon"] for one in found] == pytest.approx([2.0, 2.0], rel=1e-4)
    again = make_model(FedAvg, make_data(), aggregation=model.aggregation).aggregation
    assert [float(again.z), float(again.length)] == pytest.approx([0.0, 0.1])
    again.z.fill_(0.7)  # as a checkpoint has it
    again.plan(Sampling(0.5, 10.0, 100))
    assert float(again.z) == 0.7


def test_the_report_says_what_was_spent_by_whom_and_what_it_assumes() -> None:
    rule = PrivateMean(noise_multiplier=1.0, cohort=1000.0)
    found = rule.report(Sampling(0.1, 20.0, 10))["privacy"]
    assert (found["n_clients"], found["sampling"]) == (10_000, 0.1)
    assert found["epsilon"] == epsilon_of(1.0, 0.1, 10, 1e-6).value
    assert "the seed" in found["assumptions"][0]
    assert "secret" in rule.report(Sampling(0.1, 20.0, 10, deployed=True))["privacy"]["assumptions"][0]
    assert PrivateMean(noise_multiplier=0.0).report(Sampling(1.0, 4.0, 3))["privacy"]["epsilon"] is None
    line = privacy_line(found, 200)
    assert re.match(r"privacy of a client among 10000, .* epsilon [\d.]+ at delta 1e-06, if nobody", line)


@pytest.mark.parametrize(
    ("options", "rounds", "said"),
    [
        (
            {"epsilon": 1e-9},
            30,
            r"aggregation.epsilon: expected at least .* noise multiplier of 1.0.*, got 1e-09",
        ),
        ({"epsilon": 3.0}, 0, "aggregation.epsilon: the number of rounds must be known before"),
    ],
)
def test_what_cannot_be_planned_is_refused(options: dict[str, Any], rounds: int, said: str) -> None:
    with pytest.raises(UserError, match=f"^{said}"):
        PrivateMean(**options).plan(Sampling(0.5, 2.0, rounds))


def test_small_cohorts_and_statistics_of_normalisation_are_refused() -> None:
    data = make_data()
    with pytest.raises(UserError, match=r"aggregation.cohort: expected at least the run's own cohorts of 4 clients"):
        make_trainer(1).fit(make_model(FedAvg, data, aggregation=PrivateMean(cohort=2.0)), data)
    model = FedAvg(Noisy(), n_clients=data.n_clients, aggregation=PrivateMean())
    with pytest.raises(UserError, match=r"clients also send norm.running_mean"):
        make_trainer(1).fit(model, data)


@pytest.mark.parametrize("rule", [{}, {"quantile": 0.5}])
@pytest.mark.parametrize("kind", [FedAvg, FedEM])
def test_a_resumed_run_in_float32_has_the_same_bits(kind: Any, rule: dict[str, Any], tmp_path: Path) -> None:
    def fresh() -> Any:
        private = PrivateMean(**{"noise_multiplier": 1.1, "clip": 0.3, **rule})
        return make_model(kind, make_data(), participation=0.5, aggregation=private)

    straight, resumed = fresh(), fresh()
    saving = {"callbacks": [RoundCheckpoint(2, keep=9, dirpath=tmp_path)], "enable_checkpointing": True}
    make_trainer(4, "32-true", **saving).fit(straight, make_data())
    start = tmp_path / "round-000002.ckpt"
    make_trainer(4, "32-true").fit(resumed, make_data(), ckpt_path=start, weights_only=True)
    torch.testing.assert_close(resumed.state_dict(), straight.state_dict(), rtol=0, atol=0)
    assert resumed.aggregation.z.dtype is torch.float64
