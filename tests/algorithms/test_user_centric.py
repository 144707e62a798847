"""User-centric aggregation, FedFOMO and Oracle against their equations, and their degenerate cases."""

from typing import Any

import numpy as np
import pytest
import torch

from fedem_lightning import ClientSGD, FedAvg, FederatedDataModule, FedFOMO, Linear, Oracle, UserCentric, UserError
from fedem_lightning.methods import user_centric
from fedem_lightning.methods.streams import DENSE_LIMIT, _parts, coefficients, coordinates, gradients
from fedem_lightning.models.parts import model_bytes
from fedem_lightning.module.fitting import prepare
from helpers.by_hand import ALL_TRAIN, assert_agree, gradient, samples, vector
from helpers.federations import grouped, make_data, make_model, make_trainer, models_of, train, train_and_test

SGD = ClientSGD(lr=0.5, momentum=0.9)


def prepared(data: FederatedDataModule, **options: Any) -> UserCentric:
    """A model in double precision after its special round."""
    model = make_model(UserCentric, data, client_optimizer=SGD, **options).double()
    prepare(model, data.federation)
    model.statistics.plan(1)
    with torch.no_grad():
        model.initialize(data.federation)
    return model


def sample_gradients(model: Any, data: FederatedDataModule) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Gradients of a linear softmax model at each training sample [n, D], labels and owners, in NumPy."""
    block, theta = data.federation.block(data.federation.clients(), "train"), vector(model.components[0])
    x, y = block.x(torch.float64).numpy(), block.y().numpy()
    each = np.stack([gradient(theta, x[i : i + 1], y[i : i + 1]) for i in range(len(y))])
    return each, y, block.owner.numpy()


def stored_gradients(model: UserCentric) -> np.ndarray:
    rows = model.gradients[torch.arange(model.n_clients)]
    return torch.cat([rows["linear.weight"].flatten(1), rows["linear.bias"].flatten(1)], dim=1).numpy()


# --- gradients and coefficients ---------------------------------------------------------------------------------------


def test_equation_6_by_hand() -> None:
    distance, variance = torch.tensor([[0.0, 2.0], [2.0, 0.0]]).double(), torch.tensor([1.0, 4.0]).double()
    w = coefficients(distance, variance, variance, torch.tensor([100, 300]), "eq6")
    expected = [[0.35466124, 0.64533876], [0.16817566, 0.83182434]]
    np.testing.assert_allclose(w / w.sum(dim=1, keepdim=True), expected, atol=1e-8)
    cosine = coefficients(distance, variance, variance, torch.tensor([100, 300]), "cosine")
    np.testing.assert_allclose(cosine, [[100, 0], [0, 300]])


@pytest.mark.parametrize("engine", ["loop", "vmap"])
def test_gradients_noise_and_coefficients_in_numpy(engine: str) -> None:
    """g_i over all samples, Eq. 7 over five disjoint parts of equal size, W by Eq. 6, and what a run leaves of it."""
    data = make_data(sizes=(13, 30, 1), fractions=(1.0, 0.0, 0.0))
    model = prepared(data, engine=engine)
    block = data.federation.block(torch.arange(3), "train")
    nothing = {name: torch.zeros_like(rows[:1]) for name, rows in model.gradients[block.clients].items()}
    noise = gradients(model, block, 5, nothing)[1]
    each, _, owner = sample_gradients(model, data)
    part = _parts(block, 5, model.seed).numpy()
    g = np.stack([each[owner == i].mean(axis=0) for i in range(3)])
    np.testing.assert_allclose(stored_gradients(model), g, rtol=1e-9)
    variances = []
    for i in range(2):
        sizes = np.bincount(part[owner == i], minlength=5)
        assert sizes.max() - sizes.min() <= 1
        means = [each[(owner == i) & (part == k)].mean(axis=0) for k in range(5) if sizes[k]]
        variances.append(np.mean([((m - g[i]) ** 2).sum() for m in means]))
        assert float(noise[i]) == pytest.approx(variances[i], rel=1e-9)
    assert np.bincount(owner)[2] == 1
    assert noise[2].isnan()  # one part alone: the mean of the known ones
    sigma = np.sqrt([*variances, np.mean(variances)])
    rows = np.bincount(owner) * np.exp(-((g[:, None] - g) ** 2).sum(axis=2) / (2 * sigma[:, None] * sigma))
    np.testing.assert_allclose(model.w, rows / rows.sum(axis=1, keepdims=True), rtol=1e-9)
    assert model.stream.tolist() == [0, 1, 2]


@pytest.mark.parametrize("engine", ["loop", "vmap"])
def test_adjusted_gradients_in_numpy(engine: str) -> None:
    """Every sample's gradient less the mean of its class over all clients; the mean over all is then 0."""
    data = make_data(sizes=(13, 30, 9))
    model = prepared(data, label_adjusted=True, engine=engine)
    each, y, owner = sample_gradients(model, data)
    adjusted = each - np.stack([each[y == k].mean(axis=0) for k in range(3)])[y]
    expected = [adjusted[owner == i].mean(axis=0) for i in range(3)]
    np.testing.assert_allclose(stored_gradients(model), expected, atol=1e-12)
    assert np.abs(each.mean(axis=0)).max() > 0.01
    size = 8 * 3  # of a number from each client: one model comes, a gradient for each of three classes goes
    assert (model.statistics.up_bytes, model.statistics.down_bytes) == (3 * 15 * size, 15 * size)


def test_cosines_in_numpy() -> None:
    """W from the directions of the gradients less their mean; a stream's negative weights are cut after its mean."""
    data = make_data(sizes=(13, 30, 9, 20, 25))
    model = prepared(data, n_streams=2, similarity="cosine")
    each, _, owner = sample_gradients(model, data)
    counts = np.bincount(owner)
    g = np.stack([each[owner == i].mean(axis=0) for i in range(5)]) - each.mean(axis=0)
    direction = g / np.linalg.norm(g, axis=1, keepdims=True)
    rows = counts * (direction @ direction.T)
    scaled = rows / np.maximum(rows, 0).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(model.w, np.maximum(scaled, 0), atol=1e-9)
    assert (scaled < 0).any()
    for stream in (0, 1):
        members = (model.stream == stream).numpy()
        np.testing.assert_allclose(model.weights[stream], np.maximum(scaled[members].mean(axis=0), 0), atol=1e-9)


def test_one_client_whose_loss_overflows_leaves_the_others_as_they_are() -> None:
    data = make_data(sizes=(20, 20, 20, 20))
    data.federation.samples.x[data.federation.splits["train"].positions(torch.tensor([1]))[0]] = np.inf  # type: ignore[attr-defined]
    model = train(make_model(UserCentric, data, n_streams=2, similarity="cosine", client_optimizer=SGD), data, 2)
    assert model.statistics.rejections.by_reason == {"not finite": 2}
    assert models_of(model).isfinite().all()


# --- aggregation ------------------------------------------------------------------------------------------------------


def test_three_rounds_in_numpy() -> None:
    """Eq. 5 from the coefficients: each round one full-batch step of every client, then each one's own mean."""
    data, lr = make_data(sizes=(12, 30, 9), fractions=ALL_TRAIN), 0.4
    model = make_model(UserCentric, data, batch_size=100, client_optimizer=ClientSGD(lr=lr)).double()
    theta = np.tile(vector(model.components[0]), (3, 1))
    train(model, data, 3)
    w = (model.weights / model.weights.sum(dim=1, keepdim=True)).numpy()
    for _ in range(3):
        theta = w @ [theta[t] - lr * gradient(theta[t], *samples(data, t)) for t in range(3)]
    assert_agree(models_of(model).numpy(), theta)


def test_streams_are_means_with_centroids(monkeypatch: pytest.MonkeyPatch) -> None:
    """k-means finds both groups of rows; a member outside the cohort keeps its model."""
    data, rng = grouped(6), np.random.default_rng(0)
    rows = np.kron(np.array([[8.0, 1.0], [1.0, 9.0]]), np.ones((3, 3))) + rng.random((6, 6)) / 5
    monkeypatch.setattr(user_centric, "coefficients", lambda *_: torch.from_numpy(rows))
    model = make_model(UserCentric, data, n_streams=2, participation=5, client_optimizer=SGD)
    before = models_of(model).clone()
    train(model, data, 1)
    assert len(set(model.stream[:3].tolist())) == len(set(model.stream[3:].tolist())) == 1
    w = rows / rows.sum(axis=1, keepdims=True)
    for stream in range(2):
        members = (model.stream == stream).numpy()
        np.testing.assert_allclose(model.weights[stream], w[members].mean(axis=0))
    served = models_of(model)
    [absent] = (served == before).all(dim=1).nonzero().flatten().tolist()
    first, second = ([t for t in group if t != absent] for group in ((0, 1, 2), (3, 4, 5)))
    assert torch.equal(served[first[0]], served[first[1]])
    assert not torch.allclose(served[first[0]], served[second[0]])


@pytest.mark.parametrize("similarity", ["eq6", "cosine"])
@pytest.mark.parametrize("n_streams", [2, pytest.param(None, marks=pytest.mark.slow)])
def test_groups_are_found_and_served(n_streams: Any, similarity: str) -> None:
    data = grouped(n_clients=8, n=120)
    options = {"n_streams": n_streams, "similarity": similarity}
    model = make_model(UserCentric, data, client_optimizer=ClientSGD(lr=0.3), batch_size=20, **options)
    train(model, data, 10)
    if n_streams is not None:
        assert len(model.weights) == 2
        assert len({(int(s), int(g)) for s, g in zip(model.stream, data.federation.truth["group"], strict=True)}) == 2
        assert model.diagnostics["user_centric"]["streams"] == 2
    make_trainer(0).test(model, data, verbose=False)
    fedavg = train(make_model(FedAvg, data, client_optimizer=ClientSGD(lr=0.3), batch_size=20), data, 10)
    make_trainer(0).test(fedavg, data, verbose=False)
    assert model.clients.test_accuracy.min() > fedavg.clients.test_accuracy.max()


@pytest.mark.parametrize("n", [7, DENSE_LIMIT + 50])
def test_directions_have_the_coordinates_of_their_principal_components(n: int) -> None:
    points = np.random.default_rng(0).normal(size=(n, 4)) * (9.0, 5.0, 0.1, 0.1) + 100
    u, s, _ = np.linalg.svd(points - points.mean(axis=0), full_matrices=False)
    found = coordinates(torch.from_numpy(((points[:, None] - points) ** 2).sum(axis=2)), seed=0).numpy()[:, :2]
    expected = u[:, :2] * s[:2]
    np.testing.assert_allclose(found * np.sign((found * expected).sum(axis=0)), expected, rtol=1e-6, atol=1e-6)
    assert not coordinates(torch.zeros(5, 5).double(), 0).any()


@pytest.mark.parametrize("options", [{}, {"similarity": "cosine", "label_adjusted": True}])
def test_unseen_clients_get_the_mean_of_those_like_them(options: dict[str, Any]) -> None:
    """Of all known clients' models, by the row of W that an unseen client's gradient has, in NumPy."""
    data = grouped(n_clients=12, n=60, unseen_fraction=0.25)
    model = make_model(UserCentric, data, n_streams=2, **options, client_optimizer=ClientSGD(lr=0.3), batch_size=20)
    train_and_test(model, data, 4)
    seen, n = data.federation.seen.numpy(), data.federation.splits["train"].counts().numpy()
    g = torch.cat([rows.flatten(1) for rows in model.gradients[torch.arange(12)].values()], dim=1).numpy()
    sigma, served = model.noise.sqrt().numpy(), models_of(model).numpy()
    for u in np.flatnonzero(~seen):
        if options:
            w = (n * (g @ g[u]) / np.linalg.norm(g, axis=1) / np.linalg.norm(g[u])).clip(min=0)[seen]
        else:
            w = (n * np.exp(-((g - g[u]) ** 2).sum(axis=1) / (2 * sigma * sigma[u])))[seen]
        np.testing.assert_allclose(served[u], w @ served[seen] / w.sum(), rtol=1e-7, atol=1e-9)
        assert w[np.flatnonzero(seen) % 2 == u % 2].sum() > 0.5 * w.sum()


def test_wrong_values_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    data = make_data()
    with pytest.raises(UserError, match="n_streams: 9 streams, but only 4 clients train"):
        train(make_model(UserCentric, data, n_streams=9), data, 1)
    numbers = FederatedDataModule.from_arrays(np.ones((9, 2)), np.ones(9), np.repeat([0, 1, 2], 3), task="regression")
    with pytest.raises(UserError, match="label_adjusted: the samples do not have one class each"):
        train(make_model(UserCentric, numbers, label_adjusted=True), numbers, 1)
    monkeypatch.setattr(user_centric, "MATRIX_LIMIT", 3)
    assert not len(train(make_model(UserCentric, data, client_optimizer=SGD), data, 1).w)


# --- FedFOMO ----------------------------------------------------------------------------------------------------------


def test_models_that_are_all_worse_change_nothing() -> None:
    """Training labels are the opposite of what is right on validation samples."""
    rng = np.random.default_rng(0)
    x, split = rng.normal(size=(80, 4)), np.tile([0, 0, 1, 1], 20)
    y = (x[:, 0] > 0).astype(int) ^ (split == 0)
    data = FederatedDataModule.from_arrays(x, y, np.arange(80) // 40, split=split, n_classes=2)
    good = Linear((4,), 2)
    with torch.no_grad():
        good.linear.weight.copy_(torch.tensor([[-1.0, 0, 0, 0], [1.0, 0, 0, 0]]))
        good.linear.bias.zero_()
    fomo = FedFOMO(good, n_clients=2, batch_size=4, client_optimizer=ClientSGD(lr=0.1))
    before = models_of(fomo.double()).clone()
    train(fomo, data, 1)
    assert (fomo.affinity < 0).all()
    assert torch.equal(models_of(fomo), before)


def test_downloads_are_limited_and_follow_affinity() -> None:
    data = make_data(sizes=(20,) * 5)
    model = train(make_model(FedFOMO, data, n_downloads=2, exploration=0.0, client_optimizer=SGD), data, 2)
    assert model.statistics.up_bytes == 2 * 5 * model_bytes(model.components[0])
    assert model.statistics.down_bytes == 2 * model.statistics.up_bytes
    model.affinity[0] = torch.tensor([9.0, 1.0, 3.0, 2.0, -1.0])
    chosen = model._choose(0, torch.arange(5), 0.0, 7)
    assert chosen.tolist() == [False, False, True, True, False]  # never its own
    explored = torch.stack([model._choose(0, torch.arange(5), 1.0, r) for r in range(40)])
    assert (explored.sum(dim=1) == 2).all()
    assert explored[:, 1:].any(dim=0).all()


# --- Oracle -----------------------------------------------------------------------------------------------------------


def test_one_group_is_fedavg_and_two_are_two_streams() -> None:
    data = grouped(6, n_groups=1)
    oracle = train(make_model(Oracle, data, client_optimizer=SGD), data, 3)
    fedavg = train(make_model(FedAvg, data, client_optimizer=SGD), data, 3)
    torch.testing.assert_close(models_of(oracle), models_of(fedavg), rtol=1e-14, atol=1e-15)
    two = grouped(6, unseen_fraction=1 / 3)
    model = train(make_model(Oracle, two, client_optimizer=SGD), two, 3)
    assert model.statistics.air_bytes == 3 * (4 + 2) * model_bytes(model.components[0])  # two streams
    with pytest.raises(UserError, match="Oracle needs data whose true groups are known"):
        train(make_model(Oracle, make_data()), make_data(), 1)
