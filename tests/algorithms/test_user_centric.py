"""User-centric aggregation, FedFOMO and Oracle against their equations, and their degenerate cases."""

import copy
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import adjusted_rand_score

from fedem_lightning import (
    ClientSGD,
    FedAvg,
    FederatedDataModule,
    FedFOMO,
    Linear,
    Local,
    Oracle,
    UserCentric,
    UserError,
)
from fedem_lightning.aggregation import Means, Models
from fedem_lightning.algorithms.client_gradients import gradients
from fedem_lightning.algorithms.streams import coefficients, silhouettes, squared_norms, stream_weights
from fedem_lightning.history import Round
from helpers.federations import grouped, make_data, make_model, make_trainer, parameters, train
from helpers.pretended_card import DEVICE, OnCard, PretendedCard
from helpers.reference import gradient

SGD = ClientSGD(lr=0.5, momentum=0.9)


def rows_of(model: Any, n: int) -> torch.Tensor:
    return torch.cat([rows.flatten(1) for rows in model.personal_models(torch.arange(n)).models.values()], dim=1)


# --- coefficients -----------------------------------------------------------------------------------------------------


def test_equation_6_by_hand() -> None:
    distance, variance = torch.tensor([[0.0, 2.0], [2.0, 0.0]]).double(), torch.tensor([1.0, 4.0]).double()
    w = coefficients(distance, variance, variance, torch.tensor([100, 300]), "eq6")
    expected = [[0.35466124, 0.64533876], [0.16817566, 0.83182434]]
    np.testing.assert_allclose(w / w.sum(dim=1, keepdim=True), expected, atol=1e-8)
    cosine = coefficients(distance, variance, variance, torch.tensor([100, 300]), "cosine")
    np.testing.assert_allclose(cosine, [[100, 0], [0, 300]])
    common = coefficients(distance, variance, variance, torch.tensor([100, 300]), "common")
    np.testing.assert_allclose(common, [[100, 300 * np.exp(-0.4)], [100 * np.exp(-0.4), 300]])


def test_gradients_and_noise_in_numpy() -> None:
    """g_i over all samples and Eq. 7 over five disjoint parts, whose membership is read off the sums."""
    data = make_data(sizes=(13, 30, 2))
    model = make_model(UserCentric, data, client_optimizer=SGD).double()
    model.statistics.plan(1)
    block = data.federation.block(torch.arange(3), "train")
    g, noise = gradients(model, block, n_parts=5, compared=model.gradients.names)
    w, b = (p.detach().numpy() for p in model.components[0].parameters())
    x, y, owner = block.x(torch.float64).numpy(), block.y().numpy(), block.owner.numpy()
    p = np.exp(x @ w.T + b)
    error = p / p.sum(axis=1, keepdims=True) - np.eye(3)[y]
    each = np.concatenate([(error[:, :, None] * x[:, None]).reshape(len(x), -1), error], axis=1)  # [n, D]
    found = torch.cat([g["linear.weight"].flatten(1), g["linear.bias"].flatten(1)], dim=1).numpy()
    from fedem_lightning.algorithms.client_gradients import _parts

    part = _parts(block, 5, model.seed).numpy()
    for i in range(3):
        mean = each[owner == i].mean(axis=0)
        np.testing.assert_allclose(found[i], mean, rtol=1e-9)
        means = [each[(owner == i) & (part == k)].mean(axis=0) for k in range(5) if ((owner == i) & (part == k)).any()]
        sizes = np.bincount(part[owner == i], minlength=5)
        assert sizes.max() - sizes.min() <= 1
        if len(means) > 1:
            assert float(noise[i]) == pytest.approx(np.mean([((m - mean) ** 2).sum() for m in means]), rel=1e-9)
    assert noise[2].isnan() == (np.bincount(owner)[2] < 2)


def test_only_the_compared_gradients_count() -> None:
    data, every, some = make_data(), ".", "bias$"
    block = data.federation.block(torch.arange(4), "train")
    stored, noise = {}, {}
    for pattern in (every, some):
        model = train(make_model(UserCentric, data, compared=pattern, client_optimizer=SGD), data, 1)
        stored[pattern] = model.gradients.read(block.clients)
        noise[pattern] = model.noise
    assert list(stored[every]) == ["linear.weight", "linear.bias"]
    assert list(stored[some]) == ["linear.bias"]
    assert torch.equal(stored[some]["linear.bias"], stored[every]["linear.bias"])
    assert bool((noise[some] < noise[every]).all())


def class_means(model: UserCentric, data: FederatedDataModule) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Gradients of a linear softmax model at each sample less its class's mean [n, D], as they are, owners."""
    block = data.federation.block(data.federation.clients(), "train")
    w, b = (p.detach().double().numpy() for p in model.components[0].parameters())
    x, y = block.x(torch.float64).numpy(), block.y().numpy()
    p = np.exp(x @ w.T + b)
    error = p / p.sum(axis=1, keepdims=True) - np.eye(3)[y]
    each = np.concatenate([(error[:, :, None] * x[:, None]).reshape(len(x), -1), error], axis=1)
    return each - np.stack([each[y == k].mean(axis=0) for k in range(3)])[y], each, block.owner.numpy()


@pytest.mark.parametrize("engine", ["loop", "vmap"])
def test_adjusted_gradients_in_numpy(engine: str) -> None:
    """Every sample's gradient less the mean of its class over all clients; the mean over all is then 0."""
    data = make_data(sizes=(13, 30, 9))
    model = make_model(UserCentric, data, label_adjusted=True, engine=engine, client_optimizer=SGD).double()
    model.prepare_for(data.federation)
    model.statistics.plan(1)
    with torch.no_grad():
        model.special_round(data.federation)
    adjusted, each, owner = class_means(model, data)
    rows = model.gradients.read(torch.arange(3))
    found = torch.cat([rows["linear.weight"].flatten(1), rows["linear.bias"].flatten(1)], dim=1).numpy()
    np.testing.assert_allclose(found, [adjusted[owner == i].mean(axis=0) for i in range(3)], atol=1e-12)
    assert np.abs(each.mean(axis=0)).max() > 0.01
    np.testing.assert_allclose(adjusted.mean(axis=0), 0, atol=1e-12)


@pytest.mark.filterwarnings("ignore:algorithm. the coefficients leave")  # there are few different samples
def test_label_frequencies_alone_leave_no_adjusted_gradient() -> None:
    """Three clients with the same samples of each class, in other numbers; a fourth whose features are others."""
    rng, x, y, client = np.random.default_rng(0), [], [], []
    samples = rng.normal(size=(3, 5))  # one of each class
    for i, times in enumerate([(30, 10, 5), (5, 30, 10), (10, 10, 40)]):
        x.append(np.repeat(samples, times, axis=0))
        y.append(np.repeat([0, 1, 2], times))
        client.append(np.full(sum(times), i))
    data = FederatedDataModule.from_arrays(
        np.concatenate(x), np.concatenate(y), np.concatenate(client), n_classes=3, fractions=(1.0, 0.0, 0.0)
    )
    norms = {}
    for adjusted in (False, True):
        model = make_model(UserCentric, data, label_adjusted=adjusted, client_optimizer=SGD)
        norms[adjusted] = squared_norms(train(model, data, 1).gradients, torch.arange(3))
    assert bool((norms[False] > 0.01).all())
    assert bool((norms[True] < 1e-20).all())


def test_cosines_in_numpy() -> None:
    """W from the directions of the gradients less their mean; a stream's negative weights are cut after its mean."""
    data = make_data(sizes=(13, 30, 9, 20, 25))
    model = make_model(UserCentric, data, n_streams=2, similarity="cosine", client_optimizer=SGD).double()
    model.statistics.plan(1)
    with torch.no_grad():
        model.special_round(data.federation)
    _, each, owner = class_means(model, data)
    counts = np.bincount(owner)
    g = np.stack([each[owner == i].mean(axis=0) for i in range(5)]) - each.mean(axis=0)
    direction = g / np.linalg.norm(g, axis=1, keepdims=True)
    rows = counts * (direction @ direction.T)
    np.testing.assert_allclose(model.w, np.maximum(rows, 0) / np.maximum(rows, 0).sum(axis=1, keepdims=True), atol=1e-9)
    scaled = rows / np.maximum(rows, 0).sum(axis=1, keepdims=True)
    assert (scaled < 0).any()
    for stream in (0, 1):
        members = (model.stream == stream).numpy()
        np.testing.assert_allclose(model.weights[stream], np.maximum(scaled[members].mean(axis=0), 0), atol=1e-9)


def swapped(seed: int) -> FederatedDataModule:
    """Clients with label frequencies of their own; half of them have their first two features swapped."""
    rng, client = np.random.default_rng(seed), np.repeat(np.arange(12), 300)
    centres = 2 * rng.normal(size=(8, 8)) * np.repeat([1, 0.7], 4)
    y = np.concatenate([rng.choice(8, size=300, p=p) for p in rng.dirichlet(np.ones(8), size=12)])
    x = centres[y] + rng.normal(size=(len(y), 8))
    x[client % 2 == 1, :2] = x[client % 2 == 1, 1::-1]
    return FederatedDataModule.from_arrays(x, y, client, n_classes=8)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))])
def test_groups_behind_label_shift_need_adjusted_gradients(seed: int) -> None:
    data, found = swapped(seed), {}
    for adjusted in (False, True):
        options = {"n_streams": 2, "similarity": "cosine", "label_adjusted": adjusted}
        model = train(make_model(UserCentric, data, client_optimizer=SGD, **options), data, 1)
        found[adjusted] = adjusted_rand_score(np.arange(12) % 2, model.stream)
    assert found[False] < 0.5
    assert found[True] == 1


def test_gradients_by_class_cost_a_message_each() -> None:
    data = make_data()
    sent = {}
    for compared in (None, "bias$"):
        model = make_model(UserCentric, data, label_adjusted=True, compared=compared, client_optimizer=SGD)
        train(model, data, 2)
        sent[compared] = model.statistics.up_bytes, model.statistics.down_bytes
    size = 8 * 4  # of a number from each client; 3 of the model's 15 are biases
    assert sent[None] == ((2 * 15 + 3 * 15) * size, 3 * 15 * size)
    assert sent["bias$"] == ((2 * 15 + 3 * 3) * size, 3 * 15 * size)


def test_identical_data_gives_the_shares_of_samples() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(40, 4)), rng.integers(3, size=40)
    split = np.zeros(120, dtype=int)
    data = FederatedDataModule.from_arrays(
        np.concatenate([x] * 3), np.concatenate([y] * 3), np.repeat([0, 1, 2], 40), split=split, n_classes=3
    )
    model = train(make_model(UserCentric, data, client_optimizer=SGD), data, 1)
    shares = model.weights / model.weights.sum(dim=1, keepdim=True)
    torch.testing.assert_close(shares, torch.full_like(shares, 1 / 3), rtol=1e-6, atol=1e-6)


# --- aggregation ------------------------------------------------------------------------------------------------------


def test_three_rounds_in_numpy() -> None:
    """Eq. 5 from the coefficients: each round one full-batch step of every client, then each one's own mean."""
    data, lr = make_data(sizes=(12, 30, 9), fractions=(1.0, 0.0, 0.0)), 0.4
    model = make_model(UserCentric, data, batch_size=100, client_optimizer=ClientSGD(lr=lr))
    start = [p.detach().double().numpy().copy() for p in model.components[0].parameters()]
    train(model, data, 3)
    w = (model.weights / model.weights.sum(dim=1, keepdim=True)).numpy()
    theta = [[p.copy() for p in start] for _ in range(3)]
    for _ in range(3):
        trained = []
        for t in range(3):
            block = data.federation.block(torch.tensor([t]), "train")
            x, y = block.x(torch.float64).numpy(), block.y().numpy()
            weight, bias = theta[t]
            p = np.exp(x @ weight.T + bias)
            error = (p / p.sum(axis=1, keepdims=True) - np.eye(3)[y]) / len(y)
            trained.append([weight - lr * error.T @ x, bias - lr * error.sum(axis=0)])
        theta = [[sum(w[i, j] * trained[j][k] for j in range(3)) for k in range(2)] for i in range(3)]
    expected = np.stack([np.concatenate([weight.ravel(), bias]) for weight, bias in theta])
    np.testing.assert_allclose(rows_of(model, 3).numpy(), expected, rtol=1e-9)


class Fixed(UserCentric):
    """Coefficients that a test chooses."""

    rows: torch.Tensor

    def coefficients(self, distance: Any, noise: Any, other_noise: Any, counts: torch.Tensor) -> torch.Tensor:
        return self.rows.to(self.noise)


def test_the_identity_is_local_bit_for_bit() -> None:
    data = make_data()
    user_centric = make_model(Fixed, data, client_optimizer=SGD)
    user_centric.rows = torch.eye(4)
    with pytest.warns(UserWarning, match="leave every client alone"):
        train(user_centric, data, 4)
    local = train(make_model(Local, data, client_optimizer=SGD), data, 4)
    assert torch.equal(rows_of(user_centric, 4), rows_of(local, 4))


def test_equal_rows_are_fedavg_bit_for_bit() -> None:
    data = make_data()
    counts = data.federation.splits["train"].counts()
    user_centric = make_model(Fixed, data, client_optimizer=SGD)
    user_centric.rows = counts.expand(4, 4).double()
    train(user_centric, data, 4)
    assert len(user_centric.weights) == 1
    fedavg = train(make_model(FedAvg, data, client_optimizer=SGD), data, 4)
    assert torch.equal(rows_of(user_centric, 4), rows_of(fedavg, 4))


def test_streams_are_means_with_centroids() -> None:
    data = grouped(6)
    model = make_model(Fixed, data, n_streams=2, client_optimizer=SGD)
    rng = np.random.default_rng(0)
    rows = np.kron(np.array([[8.0, 1.0], [1.0, 9.0]]), np.ones((3, 3))) + rng.random((6, 6)) / 5
    model.rows = torch.from_numpy(rows)
    train(model, data, 1)
    assert len(set(model.stream[:3].tolist())) == len(set(model.stream[3:].tolist())) == 1
    assert len(model.weights) == 2
    w = rows / rows.sum(axis=1, keepdims=True)
    for stream in range(2):
        members = (model.stream == stream).numpy()
        np.testing.assert_allclose(model.weights[stream], w[members].mean(axis=0))
    served = rows_of(model, 6)
    assert torch.equal(served[0], served[2])
    assert not torch.allclose(served[0], served[3])


@pytest.mark.parametrize("similarity", ["eq6", "cosine"])
@pytest.mark.parametrize("n_streams", ["auto", *(pytest.param(n, marks=pytest.mark.slow) for n in (2, None))])
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


def test_streams_of_members_in_the_true_groups_are_the_oracle() -> None:
    """Exactly those of `Oracle` if the groups are found; a stream for everybody is then Local."""
    data = grouped(n_clients=8, n=120)
    options = {"similarity": "cosine", "members_only": True, "client_optimizer": SGD}
    model = train(make_model(UserCentric, data, n_streams=2, **options), data, 4)
    assert adjusted_rand_score(np.arange(8) % 2, model.stream) == 1
    oracle = train(make_model(Oracle, data, client_optimizer=SGD), data, 4)
    torch.testing.assert_close(rows_of(model, 8), rows_of(oracle, 8), rtol=1e-12, atol=1e-14)
    alone = train(make_model(UserCentric, data, **options), data, 4)
    local = train(make_model(Local, data, client_optimizer=SGD), data, 4)
    torch.testing.assert_close(rows_of(alone, 8), rows_of(local, 8), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(("sizes", "n_streams"), [((20, 20), "auto"), ((20, 30), "auto"), ((20, 30, 25), 1)])
def test_one_stream_by_cosine_is_fedavg(sizes: tuple[int, ...], n_streams: Any) -> None:
    """The directions of all have no mean to go by."""
    data = make_data(sizes=sizes)
    options = {"similarity": "cosine", "refresh_every": 1, "client_optimizer": SGD}
    model = train(make_model(UserCentric, data, n_streams=n_streams, **options), data, 3)
    fedavg = train(make_model(FedAvg, data, client_optimizer=SGD), data, 3)
    torch.testing.assert_close(rows_of(model, len(sizes)), rows_of(fedavg, len(sizes)), rtol=1e-12, atol=1e-14)


def test_members_that_point_apart_share_by_their_samples() -> None:
    rows = torch.tensor([[2.0, -2.0, -1.0], [-3.0, 3.0, -1.0], [1.0, -1.0, 4.0]])
    labels = torch.tensor([0, 0, 1])
    torch.testing.assert_close(stream_weights(rows, labels), torch.tensor([[2.0, 3.0, 0.0], [1.0, 0.0, 4.0]]))


@pytest.mark.parametrize("adjusted", [False, True])
def test_gradients_of_rounding_alone_have_no_direction(adjusted: bool) -> None:
    """Clients with identical data share one mean; so do those that differ by label frequencies alone."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(3, 5)), np.arange(3)
    times = [(30, 10, 5), (5, 30, 10), (10, 10, 25)] if adjusted else [(7, 20, 9)] * 3
    client = np.repeat([0, 1, 2], [sum(n) for n in times])
    rows = np.concatenate([np.repeat(y, n) for n in times])
    data = FederatedDataModule.from_arrays(x[rows], rows, client, n_classes=3, fractions=(1.0, 0.0, 0.0))
    options = {"similarity": "cosine", "label_adjusted": adjusted, "n_streams": "auto", "client_optimizer": SGD}
    for precision in ("64-true", "32-true"):
        model = train(make_model(UserCentric, data, **options), data, 1, precision=precision)
        assert len(model.weights) == 1
        counts = torch.bincount(torch.from_numpy(client)).to(model.w)
        torch.testing.assert_close(model.w, (counts / counts.sum()).expand(3, 3))


def test_no_silhouette_above_zero_means_one_stream() -> None:
    data = make_data(sizes=(9, 9, 9))
    model = make_model(Fixed, data, n_streams="auto", client_optimizer=SGD)
    model.rows = torch.tensor([[1.0, 2.0, 2.0], [2.0, 1.0, 2.0], [2.0, 2.0, 1.0]])  # equally far apart
    train(model, data, 1)
    assert len(model.weights) == 1
    assert silhouettes(np.eye(3), 2, seed=0) == {2: 0.0}


def test_members_outside_the_cohort_keep_their_model() -> None:
    data = grouped(6)
    model = make_model(UserCentric, data, n_streams=2, participation=3, client_optimizer=SGD)
    before = copy.deepcopy(rows_of(model, 6))
    train(model, data, 1)
    moved = (rows_of(model, 6) != before).any(dim=1)
    assert moved.sum() == 3


def test_on_a_card_clients_take_their_streams_average(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server counts the streams' weights on the CPU; the streams themselves are on the card."""
    data = grouped(6)
    model = make_model(UserCentric, data, n_streams=2)
    written: list[Any] = []
    monkeypatch.setattr(model.models, "write", lambda *given: written.append(given))
    monkeypatch.setattr(model.server, "step", lambda: None)
    model.stream = OnCard(torch.tensor([0, 1, 0, 1, 0, 1]))
    averages: Models = {"theta": OnCard(torch.tensor([[5.0], [7.0]]))}
    means = Means(averages, nonempty=torch.tensor([True, False]), weight=torch.ones(2))
    with PretendedCard():
        with pytest.raises(RuntimeError, match="same device"):
            torch.ones(6)[torch.arange(6).to(DEVICE)]
        model.server_update(means, Round(0, data.federation, OnCard(torch.tensor([0, 1, 2]))))
    [(clients, models)] = written
    assert (clients.held.tolist(), models["theta"].held.tolist()) == ([0, 2], [[[5.0]], [[5.0]]])


@pytest.mark.parametrize("options", [{}, {"similarity": "cosine", "label_adjusted": True}])
def test_unseen_clients_get_the_mean_of_those_like_them(options: dict[str, Any]) -> None:
    """Of all known clients' models, by the row of W that an unseen client's gradient has, in NumPy."""
    data = grouped(n_clients=12, n=60, unseen_fraction=0.25)
    model = make_model(UserCentric, data, n_streams=2, **options, client_optimizer=ClientSGD(lr=0.3), batch_size=20)
    trainer = make_trainer(4)
    trainer.fit(model, data)
    trainer.test(model, data, verbose=False)
    seen, n = data.federation.seen.numpy(), data.federation.splits["train"].counts().numpy()
    g = torch.cat([rows.flatten(1) for rows in model.gradients.read(torch.arange(12)).values()], dim=1).numpy()
    sigma, served = model.noise.sqrt().numpy(), rows_of(model, 12).numpy()
    for u in np.flatnonzero(~seen):
        if options:
            w = (n * (g @ g[u]) / np.linalg.norm(g, axis=1) / np.linalg.norm(g[u])).clip(min=0)[seen]
        else:
            w = (n * np.exp(-((g - g[u]) ** 2).sum(axis=1) / (2 * sigma * sigma[u])))[seen]
        np.testing.assert_allclose(served[u], w @ served[seen] / w.sum(), rtol=1e-7, atol=1e-9)
        assert w[np.flatnonzero(seen) % 2 == u % 2].sum() > 0.5 * w.sum()


def test_coefficients_are_refreshed_at_the_mean_of_all_models() -> None:
    """After the second of three rounds: gradients at the mean of the models that two rounds leave, by n_i, in NumPy."""
    data, size = grouped(6, n=30), (5 * 3 + 3) * 8 * 6
    kept, twice = (make_model(UserCentric, data, client_optimizer=SGD) for _ in range(2))
    refreshed = make_model(UserCentric, data, refresh_every=2, client_optimizer=SGD)
    start = parameters(kept.components)
    for model, rounds in ((kept, 3), (twice, 2), (refreshed, 3)):
        train(model, data, rounds)
    mean = np.average(rows_of(twice, 6).numpy(), axis=0, weights=data.federation.splits["train"].counts().numpy())
    np.testing.assert_allclose(parameters(refreshed.components).numpy(), mean, rtol=1e-9, atol=1e-12)
    found = refreshed.gradients.read(torch.arange(6))
    for i in range(6):
        block = data.federation.block(torch.tensor([i]), "train")
        x, y = block.x(torch.float64).numpy(), block.y().numpy()
        d_w, d_b = gradient(mean[:15].reshape(3, 5), mean[15:], x, y, np.ones(len(y)))
        np.testing.assert_allclose(found["linear.weight"][i, 0], d_w, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(found["linear.bias"][i, 0], d_b, rtol=1e-9, atol=1e-12)
    assert torch.equal(parameters(kept.components), start)
    assert not torch.allclose(kept.w, refreshed.w)
    assert kept.statistics.up_bytes == 4 * size
    assert refreshed.statistics.up_bytes == 5 * size


def test_clients_left_alone_are_reported() -> None:
    data = make_data(sizes=(9, 9, 9))
    model = make_model(Fixed, data, client_optimizer=SGD)
    model.rows = torch.eye(3)
    model.statistics.plan(1)
    with pytest.warns(UserWarning, match="the coefficients leave every client alone"):
        model.special_round(data.federation)


def test_wrong_values_are_named() -> None:
    data = make_data()
    for options, message in (
        ({"n_streams": 0}, "n_streams"),
        ({"n_parts": 1}, "n_parts: expected "),
        ({"similarity": "cos"}, "similarity: expected 'eq6', 'common' or 'cosine', got 'cos'"),
        ({"refresh_every": 0}, "refresh_every"),
        ({"compared": "("}, "compared: '\\(' is no regular expression"),
        ({"compared": "head"}, "compared: 'head' is in no parameter's name; they are linear.weight"),
        ({"max_streams": 1}, "max_streams"),
    ):
        with pytest.raises(UserError, match=message):
            make_model(UserCentric, data, **options)
    with pytest.raises(UserError, match="n_streams: 9 streams, but only 4 clients train"):
        train(make_model(UserCentric, data, n_streams=9), data, 1)
    numbers = FederatedDataModule.from_arrays(np.ones((9, 2)), np.ones(9), np.repeat([0, 1, 2], 3), task="regression")
    with pytest.raises(UserError, match="label_adjusted: the samples do not have one class each"):
        train(make_model(UserCentric, numbers, label_adjusted=True), numbers, 1)


# --- FedFOMO ----------------------------------------------------------------------------------------------------------


def test_one_round_of_fedfomo_in_numpy() -> None:
    data = make_data(sizes=(20, 25, 30))
    model = make_model(FedFOMO, data, exploration=0.0, batch_size=100, client_optimizer=ClientSGD(lr=0.8))
    start = rows_of(model.double(), 3).numpy().copy()
    train(model, data, 1)
    trained = model.trained.read(torch.arange(3))
    sent = torch.cat([rows.flatten(1) for rows in trained.values()], dim=1).numpy()

    def loss(row: np.ndarray, t: int) -> float:
        block = data.federation.block(torch.tensor([t]), "val")
        z = block.x(torch.float64).numpy() @ row[:12].reshape(3, 4).T + row[12:]
        return float((np.log(np.exp(z).sum(axis=1)) - z[np.arange(len(z)), block.y()]).mean())

    for i in range(3):
        w = np.array([(loss(start[i], i) - loss(row, i)) / np.linalg.norm(row - start[i]) for row in sent])
        np.testing.assert_allclose(model.affinity[i], w, rtol=1e-9)
        positive = w.clip(min=0)
        expected = start[i] + positive / positive.sum() @ (sent - start[i]) if positive.any() else start[i]
        np.testing.assert_allclose(rows_of(model, 3)[i].numpy(), expected, rtol=1e-9)


def test_alone_and_improving_fedfomo_is_local() -> None:
    data = make_data(sizes=(40,))
    fomo = train(make_model(FedFOMO, data, client_optimizer=ClientSGD(lr=0.05)), data, 1)
    local = train(make_model(Local, data, client_optimizer=ClientSGD(lr=0.05)), data, 1)
    assert float(fomo.affinity[0, 0]) > 0
    assert torch.equal(rows_of(fomo, 1), rows_of(local, 1))


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
    before = rows_of(fomo.double(), 2).clone()
    train(fomo, data, 1)
    assert (fomo.affinity < 0).all()
    assert torch.equal(rows_of(fomo, 2), before)


def test_downloads_are_limited_and_follow_affinity() -> None:
    data = make_data(sizes=(20,) * 5)
    model = train(make_model(FedFOMO, data, n_downloads=2, exploration=0.0, client_optimizer=SGD), data, 2)
    sent = model.transmission(torch.arange(5))
    assert (sent.down, sent.up) == (2.0, 1)
    assert model.statistics.down_bytes == 2 * model.statistics.up_bytes
    model.affinity[0] = torch.tensor([9.0, 1.0, 3.0, 2.0, -1.0])
    chosen = model._choose(0, torch.arange(5), 0.0, 7)
    assert chosen.tolist() == [False, False, True, True, False]  # never its own
    explored = torch.stack([model._choose(0, torch.arange(5), 1.0, r) for r in range(40)])
    assert (explored.sum(dim=1) == 2).all()
    assert explored[:, 1:].any(dim=0).all()


# --- Oracle -----------------------------------------------------------------------------------------------------------


def test_one_group_is_fedavg_and_groups_do_not_mix() -> None:
    data = grouped(6, n_groups=1)
    oracle = train(make_model(Oracle, data, client_optimizer=SGD), data, 3)
    fedavg = train(make_model(FedAvg, data, client_optimizer=SGD), data, 3)
    torch.testing.assert_close(rows_of(oracle, 6), rows_of(fedavg, 6), rtol=1e-14, atol=1e-15)
    two = grouped(6, unseen_fraction=1 / 3)
    model = make_model(Oracle, two, client_optimizer=SGD)
    trainer = make_trainer(3)
    trainer.fit(model, two)
    trainer.test(model, two, verbose=False)
    served = rows_of(model, 6)
    assert torch.equal(served[0], served[2])  # unseen clients have a group too
    assert not torch.allclose(served[0], served[1])
    assert model.transmission(torch.arange(6)).streams == 2
    with pytest.raises(UserError, match="Oracle needs data whose true groups are known"):
        train(make_model(Oracle, make_data()), make_data(), 1)
    assert isinstance(model.components[0], Linear)


def test_a_warm_up_is_one_mean_for_all_and_then_coefficients() -> None:
    data = grouped(6, n=90)
    model = make_model(UserCentric, data, n_streams=2, warmup_rounds=3, client_optimizer=ClientSGD(lr=0.1))
    start = parameters(model.components)
    train(model, data, 2)
    fedavg = train(make_model(FedAvg, data, client_optimizer=ClientSGD(lr=0.1)), data, 2)
    torch.testing.assert_close(rows_of(model, 6), rows_of(fedavg, 6), rtol=1e-12, atol=1e-14)
    assert len(model.weights) == 1
    model = make_model(UserCentric, data, n_streams=2, warmup_rounds=3, client_optimizer=ClientSGD(lr=0.1))
    train(model, data, 6)
    assert len(model.weights) == 2
    assert not torch.allclose(parameters(model.components), start)  # where the gradients were compared
    assert model.statistics.up_bytes == 7 * 6 * (5 * 3 + 3) * 8


# --- gradients that are not finite ------------------------------------------------------------------------------------


def with_bad_samples(bad: tuple[int, ...], n_clients: int = 5, **options: Any) -> FederatedDataModule:
    """All clients but some unseen ones; the training samples of `bad` became infinite after they were checked."""
    client = np.repeat(np.arange(n_clients), 20)
    names = [f"clinic {t}" for t in range(n_clients)]
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(len(client), 4)), rng.integers(3, size=len(client))
    data = FederatedDataModule.from_arrays(x, y, client, names=np.array(names), n_classes=3, **options)
    x_stored: torch.Tensor = data.federation.samples.x  # type: ignore[attr-defined]
    for t in bad:
        x_stored[client == t] = np.inf
    return data


@pytest.mark.parametrize("similarity", ["eq6", "common", "cosine"])
@pytest.mark.parametrize("n_streams", [None, 2, "auto"])
def test_a_gradient_that_is_not_finite_is_rejected_and_its_client_named(similarity: str, n_streams: Any) -> None:
    data = with_bad_samples((1,))
    model = make_model(UserCentric, data, n_streams=n_streams, similarity=similarity, client_optimizer=SGD)
    expected = r"gradients of 1 of 5 clients are not finite \(clinic 1\); these clients' models are excluded"
    with pytest.warns(UserWarning, match=expected):
        train(model, data, 2)
    assert model.statistics.rejections.total == 1 + 2  # its gradient, and its models
    assert not model.weights[:, 1].any()
    assert model.w[1].tolist() == pytest.approx([0.25, 0, 0.25, 0.25, 0.25])
    assert not model.w[[0, 2, 3, 4], 1].any()
    assert model.embedding[1].isnan().all()
    assert rows_of(model, 5).isfinite().all()


@pytest.mark.parametrize("n_streams", [None, 2])
def test_the_other_clients_do_not_notice_it(n_streams: int | None) -> None:
    """Their streams are those of a federation in which the client does not train."""
    data, without = with_bad_samples((1,)), with_bad_samples((), unseen=["clinic 1"])
    models = [
        make_model(UserCentric, d, n_streams=n_streams, similarity="common", client_optimizer=SGD)
        for d in (data, without)
    ]
    with pytest.warns(UserWarning, match="clinic 1"):
        train(models[0], data, 2)
    train(models[1], without, 2)
    others = [0, 2, 3, 4]
    assert torch.equal(models[0].stream[others], models[1].stream[others])
    assert torch.equal(rows_of(models[0], 5)[others], rows_of(models[1], 5)[others])


def test_an_unseen_client_hears_nothing_of_it_and_may_have_bad_samples_itself() -> None:
    data = with_bad_samples((1, 3), n_clients=6, unseen=["clinic 3", "clinic 4"])
    model, trainer = make_model(UserCentric, data, client_optimizer=SGD), make_trainer(1)
    with pytest.warns(UserWarning, match=r"gradients of 1 of 4 clients .*clinic 1"):
        trainer.fit(model, data)
    trainer.test(model, data, verbose=False)
    seen = [0, 2, 5]
    counts = data.federation.splits["train"].counts(torch.tensor(seen)).double()
    by_samples = (counts / counts.sum()) @ rows_of(model, 6)[seen]
    torch.testing.assert_close(rows_of(model, 6)[3], by_samples)
    assert rows_of(model, 6)[4].isfinite().all()


def test_no_gradient_at_all_ends_the_run() -> None:
    data = with_bad_samples((0, 1, 2, 3, 4))
    with pytest.raises(UserError, match="in a special round no client sent a finite gradient"):
        train(make_model(UserCentric, data), data, 1)


def test_a_gradient_that_was_known_once_does_not_stand_for_one_that_is_not_finite() -> None:
    data = with_bad_samples(())
    model = train(make_model(UserCentric, data, client_optimizer=SGD), data, 1)
    assert model.weights[:, 1].any()
    data.federation.samples.x[20:40] = np.inf  # type: ignore[attr-defined]
    with torch.no_grad(), pytest.warns(UserWarning, match="clinic 1"):
        model.special_round(data.federation)
    assert not model.weights[:, 1].any()
