"""HypCluster against its equations, and its degenerate cases."""

from typing import Any

import numpy as np
import torch

from fedem_lightning import (
    ClientSGD,
    FederatedDataModule,
    HypCluster,
    Local,
)
from helpers.federations import make_data, make_model, make_trainer, parameters, split_of, stored, train, train_and_test

SGD = ClientSGD(lr=0.5, momentum=0.9)


def two_groups(n_clients: int = 6, n: int = 30, **options: Any) -> FederatedDataModule:
    """Odd clients have the opposite labels of even ones."""
    rng = np.random.default_rng(0)
    client = np.repeat(np.arange(n_clients), n)
    x = rng.normal(size=(len(client), 4))
    y = (x[:, 0] > 0).astype(int) ^ (client % 2)
    return FederatedDataModule.from_arrays(x, y, client, n_classes=2, **options)


def logits(w: np.ndarray, b: np.ndarray, x: np.ndarray) -> np.ndarray:
    z = x @ w.T + b
    return z - np.log(np.exp(z).sum(axis=1, keepdims=True))


def test_two_rounds_in_numpy() -> None:
    """Eq. 4, one full-batch step of each client, and the mean within each cluster, written out."""
    data, lr = make_data(fractions=(1.0, 0.0, 0.0)), 0.5
    model = make_model(
        HypCluster,
        data,
        n_components=2,
        initialization="random",
        batch_size=100,
        client_optimizer=ClientSGD(lr=lr),
    )
    h = [
        (c.linear.weight.detach().double().numpy().copy(), c.linear.bias.detach().double().numpy().copy())
        for c in model.components
    ]
    train(model, data, 2)
    x, y = stored(data.federation).x.numpy(), stored(data.federation).y.numpy()
    split = split_of(data.federation, "train")
    rows = [split.index[split.offsets[t] : split.offsets[t + 1]].numpy() for t in range(4)]
    for _ in range(2):
        sums: list[Any] = [[0.0, 0.0, 0.0], [0.0, 0.0, 0.0]]
        chosen = []
        for t in range(4):
            xt, yt = x[rows[t]], y[rows[t]]
            losses = [-logits(w, b, xt)[np.arange(len(yt)), yt].mean() for w, b in h]
            f = int(np.argmin(losses))
            chosen.append(f)
            w, b = h[f]
            error = (np.exp(logits(w, b, xt)) - np.eye(3)[yt]) / len(yt)
            sums[f][0] += len(yt) * (w - lr * error.T @ xt)
            sums[f][1] += len(yt) * (b - lr * error.sum(axis=0))
            sums[f][2] += len(yt)
        h = [(s[0] / s[2], s[1] / s[2]) if s[2] else old for s, old in zip(sums, h, strict=True)]
    assert model.cluster.tolist() == chosen
    for component, (w, b) in zip(model.components, h, strict=True):
        np.testing.assert_allclose(component.linear.weight.detach().numpy(), w, rtol=1e-9)
        np.testing.assert_allclose(component.linear.bias.detach().numpy(), b, rtol=1e-9)


def test_a_hypothesis_that_nobody_wants_stays_as_it_is() -> None:
    data = make_data()
    model = make_model(HypCluster, data, n_components=2, initialization="random", client_optimizer=SGD)
    with torch.no_grad():
        model.components[1].linear.bias.copy_(torch.tensor([1e4, -1e4, 0.0]))  # wrong for nearly all
    before = parameters(model.components[1])
    model.server_optimizer = lambda p: torch.optim.SGD(p, lr=1.0, momentum=0.9)
    train(model, data, 3)
    assert torch.equal(parameters(model.components[1]), before)
    assert model.cluster.tolist() == [0, 0, 0, 0]
    assert parameters(model).isfinite().all()


def lowest(model: Any, data: FederatedDataModule) -> list[int]:
    """For each client the hypothesis with the lowest mean loss on its training samples, in NumPy."""
    found = []
    for t in range(data.n_clients):
        block = data.federation.block(torch.tensor([t]), "train")
        x, y = block.x(torch.float64).numpy(), block.y().numpy()
        models = [(c.linear.weight.detach().numpy(), c.linear.bias.detach().numpy()) for c in model.components]
        found.append(int(np.argmin([-logits(w, b, x)[np.arange(len(y)), y].mean() for w, b in models])))
    return found


def test_unseen_clients_go_where_their_loss_is_lowest() -> None:
    data = two_groups(n_clients=12, unseen_fraction=0.5)
    model = make_model(HypCluster, data, initialization="sampled", client_optimizer=ClientSGD(lr=0.3))
    train_and_test(model, data, 8)
    assert model.cluster.tolist() == lowest(model, data)
    assert len(set(model.cluster[::2].tolist())) == len(set(model.cluster[1::2].tolist())) == 1
    assert model.cluster[0] != model.cluster[1]
    assert (model.clients.test_accuracy > 0.7).all()


def test_clients_that_were_not_sampled_are_assigned_by_the_newest_models() -> None:
    data = two_groups(n_clients=10)
    model = make_model(HypCluster, data, participation=2, initialization="sampled", client_optimizer=SGD)
    train(model, data, 6)
    make_trainer(0).test(model, data, verbose=False)
    assert model.cluster.tolist() == lowest(model, data)


def test_the_sampled_start_is_trained_on_single_clients() -> None:
    """As Local trains each of them; full batches, whose order does not matter."""
    data, starts = two_groups(n_clients=8), []
    options: dict[str, Any] = {"client_optimizer": ClientSGD(lr=0.3), "batch_size": 1000}
    for seed in (0, 0, 1):
        model = make_model(HypCluster, data, seed=seed, initial_epochs=5, **options).double()
        model.statistics.plan(1)
        model.initialize(data.federation)
        starts.append(torch.stack([component.linear.weight.detach() for component in model.components]))
    alone = train(make_model(Local, data, local_epochs=5, **options), data, 1).personal_models(torch.arange(8)).models
    for rows in starts:
        gap = (rows.unsqueeze(1) - alone["linear.weight"].transpose(0, 1)).abs().amax(dim=(2, 3))  # [M, T]
        whose = gap.argmin(dim=1)
        assert gap.amin(dim=1).max() < 1e-12
        assert len(whose.unique()) == len(rows)
    assert torch.equal(starts[0], starts[1])
    assert not torch.allclose(starts[0], starts[2])
