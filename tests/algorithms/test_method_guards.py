"""Details of single methods that other tests would let slip: each is worked out once more in NumPy, from the paper."""

from typing import Any

import numpy as np
import pytest
import torch

from fedem_lightning import ClientSGD, DFedEM, FederatedDataModule, FedFOMO, Oracle, Topology
from fedem_lightning.data.randomness import sample_cohort
from fedem_lightning.methods import fedfomo
from helpers.by_hand import gradient, losses, responsibilities, samples, vector
from helpers.federations import make_data, make_model, models_of, train, train_and_test

LR = 0.8
FULL: dict[str, Any] = {"batch_size": 100, "client_optimizer": ClientSGD(lr=LR)}  # one step a round, on all samples


def trained(theta: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return theta - LR * gradient(theta, x, y)


# --- FedFOMO ----------------------------------------------------------------------------------------------------------


def combined(
    data: FederatedDataModule, i: int, own: np.ndarray, candidates: list[np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """Eq. 4 and 5: client i's weights before they are cut at 0, and its new model."""
    x, y = samples(data, i, "val")
    gains = [(losses(own, x, y) - losses(theta, x, y)).mean() for theta in candidates]
    w = np.array([gain / np.linalg.norm(theta - own) for gain, theta in zip(gains, candidates, strict=True)])
    positive = np.maximum(w, 0)
    if not positive.any():
        return w, own
    return w, own + sum(p / positive.sum() * (theta - own) for p, theta in zip(positive, candidates, strict=True))


def test_three_rounds_of_fedfomo_with_cohorts_and_one_download() -> None:
    data = make_data(sizes=(20, 25, 30, 15, 22))
    model = make_model(FedFOMO, data, n_downloads=1, exploration=0.0, participation=3, **FULL).double()
    affinity = np.random.default_rng(0).random((5, 5)) / 10  # so that no two models are equally welcome
    model.affinity.copy_(torch.from_numpy(affinity))
    theta = np.tile(vector(model.components), (5, 1))
    train(model, data, 3)
    downloads, helpful = set(), 0
    for round_ in range(3):
        cohort = sample_cohort(torch.arange(5), 3, seed=0, round_=round_).tolist()
        sent = {i: trained(theta[i], *samples(data, i)) for i in cohort}
        for i in cohort:
            best = max((j for j in cohort if j != i), key=lambda j: affinity[i, j])
            w, theta[i] = combined(data, i, theta[i], [sent[i], sent[best]])
            affinity[i, [i, best]] += w
            downloads.add((i, best))
            helpful += w[1] > 0
    assert len({i for i, _ in downloads}) < len(downloads)  # some client changed its mind
    assert helpful
    np.testing.assert_allclose(model.affinity.numpy(), affinity, rtol=1e-9)
    np.testing.assert_allclose(models_of(model), theta, rtol=1e-9)


def test_exploration_of_fedfomo_decays(monkeypatch: pytest.MonkeyPatch) -> None:
    """All downloads of the first round are by chance, all later ones by affinity."""
    data, others = make_data(sizes=(20,) * 6), ~np.eye(6, dtype=bool)
    monkeypatch.setattr(fedfomo, "DECAY", 1.0)
    options: dict[str, Any] = {"n_downloads": 1, "exploration": 1.0}
    model = make_model(FedFOMO, data, **options, **FULL)
    friend = 100 * np.roll(np.eye(6), 1, axis=1)  # client i would have the model of client i + 1
    model.affinity.copy_(torch.from_numpy(friend))
    for round_ in range(3):
        before = model.affinity.clone()
        train(model, data, 1)
        downloaded = (model.affinity != before).numpy() & others
        assert downloaded.sum(axis=1).tolist() == [1] * 6
        assert (downloaded == (friend > 0)).all() == (round_ > 0)


def test_an_unseen_client_of_fedfomo_trains_and_takes_a_step() -> None:
    data = make_data(sizes=(20, 25, 30, 15, 22), unseen_fraction=0.4)
    seen = data.federation.seen.numpy()
    model = make_model(FedFOMO, data, exploration=0.0, **FULL)
    start = vector(model.components)
    train_and_test(model, data, 1)
    sent = {j: trained(start, *samples(data, j)) for j in np.flatnonzero(seen).tolist()}
    mean = np.mean([combined(data, j, start, list(sent.values()))[1] for j in sent], axis=0)
    assert len(sent) == 3
    for i in np.flatnonzero(~seen).tolist():
        own = trained(mean, *samples(data, i))
        w, expected = combined(data, i, mean, [*sent.values(), own])
        assert (w[:-1] > 0).any()
        np.testing.assert_allclose(models_of(model)[i], expected, rtol=1e-9)


# --- without a server -------------------------------------------------------------------------------------------------


def test_an_unseen_client_without_a_server_starts_from_the_mean_of_all() -> None:
    """A ring leaves the clients apart. The unseen client takes the mean of their components, then one E-step."""
    data = make_data(sizes=(20,) * 6, unseen_fraction=1 / 6)
    seen = data.federation.seen.numpy()
    model = train_and_test(make_model(DFedEM, data, n_components=2, topology=Topology(graph="ring"), **FULL), data, 2)
    (unseen,) = np.flatnonzero(~seen).tolist()
    models = models_of(model).numpy().reshape(6, 2, 15)
    mean = models[seen].mean(axis=0)
    assert all(np.abs(own - mean).max() > 1e-3 for own in models[seen])
    np.testing.assert_allclose(models[unseen], mean, rtol=1e-12)
    x, y = samples(data, unseen)
    expected = responsibilities(np.full(2, 0.5), mean, x, y).mean(axis=0)
    np.testing.assert_allclose(model.pi[unseen].numpy(), expected, rtol=1e-9)


# --- Oracle -----------------------------------------------------------------------------------------------------------


def test_two_rounds_of_oracle_and_its_unseen_client() -> None:
    """Two groups of clients of unequal sizes; the unseen client has the model of its group."""
    data = make_data(sizes=(20, 45, 30, 15, 22, 50), unseen_fraction=1 / 6)
    seen = data.federation.seen.numpy()
    group = np.where(seen, [0, 0, 1, 1, 1, 0], 1)
    data.federation.truth["group"] = group
    model = make_model(Oracle, data, **FULL)
    theta = {g: vector(model.components) for g in (0, 1)}
    train_and_test(model, data, 2)
    for _ in range(2):
        for g in theta:
            members = [t for t in range(6) if seen[t] and group[t] == g]
            sent = np.stack([trained(theta[g], *samples(data, t)) for t in members])
            theta[g] = np.average(sent, axis=0, weights=[len(samples(data, t)[1]) for t in members])
    assert np.abs(theta[0] - theta[1]).max() > 0.01
    np.testing.assert_allclose(models_of(model), [theta[g] for g in group], rtol=1e-9)
