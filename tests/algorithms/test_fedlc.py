"""FedLC: against its loss in NumPy, where it is FedAvg, and what it refuses."""

from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import logsumexp, softmax

from fedem_lightning import ClientSGD, FedAvg, FederatedDataModule, FedLC, Linear, UserError
from fedem_lightning.data.randomness import sample_cohort
from fedem_lightning.data.tasks import Classification
from fedem_lightning.methods.fedlc import LossAgainstOthers
from helpers.by_hand import ALL_TRAIN, assert_agree, batches, logits, samples, vector
from helpers.federations import make_data, make_model, make_trainer, models_of, train

LR, ROUNDS = 0.3, 4
PLAIN: dict[str, Any] = {"client_optimizer": ClientSGD(lr=LR), "batch_size": 4}


def margins(y: np.ndarray, tau: float) -> np.ndarray:
    """m_i, [3]; infinite for a class without samples."""
    with np.errstate(divide="ignore"):
        return tau * np.bincount(y, minlength=3) ** -0.25


def slope(theta: np.ndarray, x: np.ndarray, y: np.ndarray, m: np.ndarray, keep_own: bool) -> np.ndarray:
    """The gradient of the mean loss by theta."""
    f, own = logits(theta, x) - m, np.eye(3)[y]
    others = softmax(f if keep_own else np.where(own > 0, -np.inf, f), axis=1)
    error = (others - own) / len(y)
    return np.concatenate([(error.T @ x).ravel(), error.sum(axis=0)])


@pytest.mark.parametrize("engine", ["loop", "vmap"])
@pytest.mark.parametrize("keep_own", [False, True])
def test_fedlc_agrees_with_numpy(keep_own: bool, engine: str) -> None:
    data = make_data(sizes=(7, 12, 5, 9), fractions=ALL_TRAIN, seed=3)
    counts = [np.bincount(samples(data, t)[1], minlength=3) for t in range(4)]
    assert any((n == 0).any() for n in counts)  # a class is absent
    model = make_model(FedLC, data, tau=0.8, keep_own=keep_own, participation=2, engine=engine, **PLAIN).double()
    w = vector(model.components[0])
    train(model, data, ROUNDS)
    for k in range(ROUNDS):
        ends, cohort = [], sample_cohort(torch.arange(4), 2, 0, k).tolist()
        for t in cohort:
            theta, (x, y) = w, samples(data, t)
            m = margins(y, 0.8)
            for rows in batches(data, t, 4, 1, k):
                theta = theta - LR * slope(theta, x[rows], y[rows], m, keep_own)
            ends.append(theta)
        w = np.average(ends, axis=0, weights=[counts[t].sum() for t in cohort])
    assert_agree(vector(model.components[0]), w)
    block = data.federation.block(torch.tensor([1]), "train")
    assert_agree(model.predict(block).exp().numpy(), softmax(logits(w, samples(data, 1)[0]), axis=1))  # plain logits


def test_the_loss_is_the_papers_and_cross_entropy_is_its_softplus() -> None:
    rng = np.random.default_rng(0)
    f, y = rng.normal(size=(9, 3)) * 4, np.arange(9) % 3
    expected = [-np.log(np.exp(row[c]) / np.exp(np.delete(row, c)).sum()) for row, c in zip(f, y, strict=True)]
    task = Classification(3)
    found = LossAgainstOthers(task).losses(torch.from_numpy(f), torch.from_numpy(y)).numpy()
    assert_agree(found, np.array(expected))
    assert_agree(task.losses(torch.from_numpy(f), torch.from_numpy(y)).numpy(), np.log1p(np.exp(found)))
    assert_agree(found, logsumexp(np.where(np.eye(3)[y] > 0, -np.inf, f), axis=1) - f[np.arange(9), y])


@pytest.mark.parametrize("balanced", [False, True])
def test_without_margins_or_with_equal_ones_it_is_fedavg(balanced: bool) -> None:
    """With y in the sum: of equal numbers of labels margins cancel."""
    rng = np.random.default_rng(0)
    x, client = rng.normal(size=(36, 4)), np.repeat(np.arange(3), [9, 9, 18])
    y = np.arange(36) % 3 if balanced else rng.integers(3, size=36)
    data = FederatedDataModule.from_arrays(x, y, client, n_classes=3, fractions=ALL_TRAIN)
    found = train(make_model(FedLC, data, tau=2.0 if balanced else 0.0, keep_own=True, **PLAIN), data, 3)
    fedavg = train(make_model(FedAvg, data, **PLAIN), data, 3)
    assert_agree(vector(found.components[0]), vector(fedavg.components[0]))


def test_one_logit_is_the_difference_of_two() -> None:
    """Weights of class 1 alone move as the difference of both classes' do, by half of the rate."""
    data = make_data(sizes=(9, 20), n_classes=2, task="binary", fractions=ALL_TRAIN)
    two = make_data(sizes=(9, 20), n_classes=2, fractions=ALL_TRAIN)
    for keep_own in (False, True):
        one = make_model(FedLC, data, keep_own=keep_own, **PLAIN).double()
        both = make_model(FedLC, two, keep_own=keep_own, **{**PLAIN, "client_optimizer": ClientSGD(lr=LR / 2)}).double()
        first, pair = (model.components[0].network.linear for model in (one, both))
        with torch.no_grad():
            first.weight.copy_(pair.weight[1:] - pair.weight[:1])
            first.bias.copy_(pair.bias[1:] - pair.bias[:1])
        train(one, data, 3)
        train(both, two, 3)
        assert_agree(first.weight.detach().numpy(), (pair.weight[1:] - pair.weight[:1]).detach().numpy())


def test_unseen_clients_of_fedlc_have_w() -> None:
    data = make_data(sizes=(20,) * 4, unseen_fraction=0.25)
    model, trainer = make_model(FedLC, data, **PLAIN), make_trainer(2)
    trainer.fit(model, data)
    before = models_of(model)
    trainer.test(model, data, verbose=False)
    assert torch.equal(models_of(model), before)
    assert torch.equal(before[0], before[data.federation.clients(seen=False)[0]])


def test_a_client_of_one_class_is_refused_in_one_line() -> None:
    x, client = np.random.default_rng(0).normal(size=(30, 4)), np.arange(30) % 3
    y = np.where(client == 1, 2, np.arange(30) % 2)
    data = FederatedDataModule.from_arrays(x, y, client, n_classes=3)
    with pytest.raises(UserError, match=r"samples of one class only, such as 1; algorithm\.keep_own=true") as error:
        train(FedLC(Linear((4,), 3), 3), data, 1)
    assert "\n" not in str(error.value)
    train(FedLC(Linear((4,), 3), 3, keep_own=True), data, 1)
