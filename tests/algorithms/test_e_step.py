"""The variants of FedEM's E-step against their equations, and what they are at their limits."""

from typing import Any

import numpy as np
import pytest
import torch

from fedem_lightning import ClientSGD, EStep, FedEM, Finetune
from fedem_lightning.algorithms.initialization import perturb
from fedem_lightning.em import mixture_weights, responsibilities
from fedem_lightning.errors import UserError
from helpers import by_hand
from helpers.federations import make_data, make_model, make_trainer, train

RNG = np.random.default_rng(0)
OWNER = np.array([0, 0, 0, 1, 1, 2, 2, 2, 2])
LOSSES = RNG.exponential(1.0, (9, 3))
PI = RNG.dirichlet(np.ones(3), 3)


def step(**options: Any) -> tuple[np.ndarray, np.ndarray]:
    """The weights and pi of a step in round 0."""
    q, pi = EStep(**options)(torch.tensor(PI), torch.tensor(LOSSES), torch.tensor(OWNER), 0)
    return q.numpy(), pi.numpy()


def softmax(rows: np.ndarray) -> np.ndarray:
    """Of each row."""
    return np.exp(rows) / np.exp(rows).sum(axis=1, keepdims=True)


def means(q: np.ndarray) -> np.ndarray:
    """Each client's mean of q, [3, M]."""
    return np.stack([q[t == OWNER].mean(axis=0) for t in range(3)])


def test_the_default_is_the_papers_bit_for_bit() -> None:
    pi, losses, owner = torch.tensor(PI), torch.tensor(LOSSES), torch.tensor(OWNER)
    q, new = EStep()(pi, losses, owner, 7)
    assert torch.equal(q, responsibilities(pi, losses, owner))
    assert torch.equal(new, mixture_weights(q, owner, pi))


def test_tempered_responsibilities_follow_deterministic_annealing() -> None:
    q, pi = step(temperature=4.0)
    np.testing.assert_allclose(q, softmax((np.log(PI[OWNER]) - LOSSES) / 4), rtol=1e-12)
    np.testing.assert_allclose(pi, means(q), rtol=1e-12)
    np.testing.assert_allclose(step(temperature=1e9)[0], 1 / 3, rtol=1e-6)  # as hot as can be: even


def test_pi_comes_from_the_samples_that_are_held_out_and_the_m_step_from_the_others() -> None:
    held = torch.tensor([True, False, False, False, True, True, True, False, False])
    q, pi = EStep(steps=2)(torch.tensor(PI), torch.tensor(LOSSES), torch.tensor(OWNER), 0, held)
    expected, mask = PI.copy(), held.numpy()
    for _ in range(2):
        each = softmax(np.log(expected[OWNER]) - LOSSES)
        expected = np.stack([each[mask & (t == OWNER)].mean(axis=0) for t in range(3)])
    np.testing.assert_allclose(pi.numpy(), expected, rtol=1e-12)
    weights = (
        softmax(np.log(expected[OWNER]) - LOSSES) * np.array([3, 2, 4])[OWNER, None] / np.array([2, 1, 2])[OWNER, None]
    )
    np.testing.assert_allclose(q.numpy(), np.where(mask[:, None], 0.0, weights), rtol=1e-12)
    np.testing.assert_allclose([q[t == OWNER].sum() for t in range(3)], [3, 2, 4])


def test_the_same_samples_are_held_out_in_every_round() -> None:
    """About the share that was asked for, by seed; also where a client has one sample."""
    block = make_data(sizes=(400, 1, 600)).federation.block(torch.arange(3), "train")
    held = EStep(held_out=0.25).held(block, seed=3)
    assert held is not None
    assert torch.equal(held, EStep(held_out=0.25).held(block, seed=3))  # type: ignore[arg-type]
    assert not torch.equal(held, EStep(held_out=0.25).held(block, seed=4))  # type: ignore[arg-type]
    assert 0.2 < held.double().mean() < 0.3
    assert EStep().held(block, seed=3) is None
    data = make_data()
    model = train(make_model(FedEM, data, n_components=2, e_step=EStep(held_out=0.5)), data, 2)
    assert bool(model.pi.isfinite().all())


def test_annealing_raises_the_inverse_temperature_linearly() -> None:
    hot = EStep(temperature=5.0, annealing_rounds=4)
    assert [hot.inverse_temperature(r) for r in (0, 1, 2, 4, 9)] == pytest.approx([0.2, 0.4, 0.6, 1.0, 1.0])
    assert EStep(temperature=5.0).inverse_temperature(100) == 0.2


def test_all_samples_of_a_client_have_the_responsibilities_of_their_likelihood() -> None:
    q, pi = step(level="client")
    summed = np.stack([LOSSES[t == OWNER].sum(axis=0) for t in range(3)])
    np.testing.assert_allclose(q, softmax(-summed)[OWNER], rtol=1e-12)
    np.testing.assert_allclose(pi, softmax(-summed), rtol=1e-12)
    hard, _ = EStep(level="client")(torch.tensor(PI), torch.tensor(1e4 * LOSSES), torch.tensor(OWNER), 0)
    np.testing.assert_array_equal(hard.numpy(), np.eye(3)[summed.argmin(1)[OWNER]])  # HypCluster's choice


def test_several_steps_repeat_both_equations() -> None:
    pi = PI
    for _ in range(5):
        q = softmax(np.log(pi[OWNER]) - LOSSES)
        pi = means(q)
    for found, expected in zip(step(steps=5), (q, pi), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_the_m_step_may_weigh_by_pi() -> None:
    q, pi = step()
    mixed, same = step(client_share=0.25)
    np.testing.assert_allclose(mixed, 0.75 * q + 0.25 * pi[OWNER], rtol=1e-12)
    np.testing.assert_array_equal(same, pi)
    np.testing.assert_allclose(step(client_share=1.0)[0], pi[OWNER], rtol=1e-12)


def test_the_prior_adds_samples_to_each_component() -> None:
    q, _ = step()
    n = np.bincount(OWNER)[:, None]
    _, pi = step(concentration=3.0)
    np.testing.assert_allclose(pi, (n * means(q) + 2) / (n + 6), rtol=1e-12)
    _, kept = EStep(concentration=3.0)(torch.tensor(PI), torch.tensor(LOSSES[:3]), torch.tensor(OWNER[:3]), 0)
    np.testing.assert_allclose(kept[1:].numpy(), 1 / 3, rtol=1e-12)  # without samples there is the prior alone


@pytest.mark.parametrize(
    ("e_step", "beta"),
    [(EStep(temperature=4.0), 0.25), (EStep(temperature=4.0, annealing_rounds=6), 0.25 + 0.75 * 3 / 6), (EStep(), 1.0)],
    ids=["constant", "annealed", "the paper's"],
)
def test_the_temperature_holds_for_unseen_clients_too(e_step: EStep, beta: float) -> None:
    data = make_data(sizes=(30,) * 4, unseen_fraction=0.5)
    options: dict[str, Any] = {"client_optimizer": ClientSGD(lr=1.0), "personalize_steps": 1}
    model, trainer = make_model(FedEM, data, e_step=e_step, **options), make_trainer(3)
    trainer.fit(model, data)
    trainer.test(model, data, verbose=False)
    for t in data.federation.clients(seen=False).tolist():
        x, y = by_hand.samples(data, t)
        losses = np.stack([by_hand.losses(by_hand.vector(c), x, y) for c in model.components], axis=1)
        assert losses.std(axis=1).mean() > 0.05
        np.testing.assert_allclose(model.pi[t].numpy(), softmax(-beta * losses).mean(axis=0), rtol=1e-9)


WEIGHING: dict[str, dict[str, Any]] = {
    "the paper's": {},
    "hot": {"e_step": EStep(temperature=4.0)},
    "cooling": {"e_step": EStep(temperature=4.0, annealing_rounds=4)},
    "by client": {"e_step": EStep(level="client")},
    "shared with pi": {"e_step": EStep(client_share=0.25)},
    "three steps": {"e_step": EStep(steps=3)},
    "normalised": {"normalize_weights": True},
    "in a warm-up": {"warmup_rounds": 5},
}


@pytest.mark.parametrize("options", WEIGHING.values(), ids=WEIGHING)
def test_adaptations_weigh_samples_as_the_next_round_would(options: dict[str, Any]) -> None:
    """One tuning step on the full batch: theta_m - lr / n sum_i q_im grad l(theta_m; s_i)."""
    data, sgd = make_data(fractions=by_hand.ALL_TRAIN), ClientSGD(lr=0.7)
    model = train(make_model(FedEM, data, client_optimizer=ClientSGD(lr=1.0), **options), data, 2)
    block = data.federation.block(torch.arange(4), "train")
    model.local.batch_size = 1000
    tuned = Finetune(1, sgd).adapt(model, block)
    torch.testing.assert_close(tuned.mixture, model.pi)
    thetas = [by_hand.vector(component) for component in model.components]
    for t in range(4):
        x, y = by_hand.samples(data, t)
        losses = np.stack([by_hand.losses(theta, x, y) for theta in thetas], axis=1)
        q = weights_of(model.pi[t].numpy(), losses, **options)
        for m, theta in enumerate(thetas):
            expected = theta - 0.7 * by_hand.gradient(theta, x, y, q[:, m])
            by_hand.assert_agree(by_hand.row(tuned.models, t, m), expected)


def weights_of(
    pi: np.ndarray,
    losses: np.ndarray,
    e_step: EStep | None = None,
    normalize_weights: bool = False,
    warmup_rounds: int = 0,
) -> np.ndarray:
    """The weights of one client's samples in round 2, [n, M]."""
    step, start = e_step or EStep(), pi
    if warmup_rounds > 2:
        return np.ones_like(losses)
    beta = 1 / step.temperature
    beta += (1 - beta) * 2 / step.annealing_rounds if step.annealing_rounds else 0.0
    for _ in range(step.steps):
        joint = np.log(pi) - losses if step.level == "sample" else np.tile(-losses.sum(axis=0), (len(losses), 1))
        q = softmax(beta * (joint - joint.max(axis=1, keepdims=True)))
        pi = q.mean(axis=0)
    assert not np.allclose(pi, start)
    q = (1 - step.client_share) * q + step.client_share * pi
    return q / np.maximum(pi, 1e-6) if normalize_weights else q


@pytest.mark.parametrize("options", [{"temperature": 0.5}, {"concentration": 0.9}, {"client_share": 1.1}, {"steps": 0}])
def test_values_out_of_range_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=f"EStep.{next(iter(options))}: expected"):
        EStep(**options)


@pytest.mark.parametrize("initialization", ["shared", "perturbed", "farthest"])
def test_one_model_stands_for_equal_components_until_the_warm_up_ends(initialization: str) -> None:
    spread = []
    for rounds in (1, 2, 3):
        data = make_data()
        model = train(make_model(FedEM, data, initialization=initialization, warmup_rounds=2), data, rounds)
        vectors = [
            torch.nn.utils.parameters_to_vector(component.parameters()).detach() for component in model.components
        ]
        spread.append(max(float((vectors[0] - other).abs().max()) for other in vectors[1:]))
    assert spread[0] == 0
    assert (spread[1] > 0) == (initialization != "shared")  # which becomes different by pi, a round later
    assert spread[2] > 0


def test_noise_scales_with_the_values_of_a_tensor() -> None:
    network = torch.nn.Linear(200, 200)
    before = {name: p.detach().clone() for name, p in network.named_parameters()}
    perturb(torch.nn.ModuleList([network]), 0.5, np.random.default_rng(0))
    for name, p in network.named_parameters():
        assert float((p.detach() - before[name]).std() / before[name].std()) == pytest.approx(0.5, rel=0.2)


def test_normalized_weights_have_mean_one() -> None:
    data, seen = make_data(), list[torch.Tensor]()
    model = make_model(FedEM, data, normalize_weights=True)

    def solver(models: object, block: object, round_: int, weights: torch.Tensor) -> object:
        seen.append(weights)
        return models

    model.local.solve = solver
    block = data.federation.block(data.federation.clients(), "train")
    model.client_update(block, 0)
    for t in range(len(block.clients)):
        np.testing.assert_allclose(seen[0][block.owner == t].mean(dim=0).detach().numpy(), 1, rtol=1e-4)
