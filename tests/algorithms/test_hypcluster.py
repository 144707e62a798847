"""HypCluster against its equations, and its degenerate cases."""

from typing import Any

import numpy as np
import torch

from fedem_lightning import ClientSGD, FederatedDataModule, HypCluster, Local
from helpers.by_hand import ALL_TRAIN, assert_agree, gradient, losses, samples, vector
from helpers.federations import grouped, make_data, make_model, make_trainer, parameters, train, train_and_test

SGD = ClientSGD(lr=0.5, momentum=0.9)


def lowest(thetas: list[np.ndarray], data: FederatedDataModule) -> list[int]:
    """For each client the hypothesis with the lowest mean loss on its training samples (Eq. 4), in NumPy."""
    clients = [samples(data, t) for t in range(data.n_clients)]
    return [int(np.argmin([losses(theta, x, y).mean() for theta in thetas])) for x, y in clients]


def hypotheses(model: Any) -> list[np.ndarray]:
    return [vector(component) for component in model.components]


def test_two_rounds_in_numpy() -> None:
    """One full-batch step of each client, and the mean within each cluster, written out."""
    data, lr = make_data(fractions=ALL_TRAIN), 0.5
    options: dict[str, Any] = {"batch_size": 100, "client_optimizer": ClientSGD(lr=lr)}
    model = make_model(HypCluster, data, n_components=2, initialization="random", **options).double()
    h = hypotheses(model)
    train(model, data, 2)
    for _ in range(2):
        chosen = lowest(h, data)
        sent = [h[f] - lr * gradient(h[f], *samples(data, t)) for t, f in enumerate(chosen)]
        for f in set(chosen):
            members = [t for t in range(4) if chosen[t] == f]
            weights = [len(samples(data, t)[1]) for t in members]
            h[f] = np.average([sent[t] for t in members], axis=0, weights=weights)
    assert model.cluster.tolist() == chosen
    for found, expected in zip(hypotheses(model), h, strict=True):
        assert_agree(found, expected)


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


def test_unseen_clients_go_where_their_loss_is_lowest() -> None:
    data = grouped(n_clients=12, n=120, unseen_fraction=0.5)
    model = make_model(HypCluster, data, initialization="sampled", client_optimizer=ClientSGD(lr=0.3))
    train_and_test(model, data, 8)
    assert model.cluster.tolist() == lowest(hypotheses(model), data)
    assert len(set(model.cluster[::2].tolist())) == len(set(model.cluster[1::2].tolist())) == 1
    assert model.cluster[0] != model.cluster[1]
    assert (model.clients.test_accuracy > 0.7).all()


def test_clients_that_were_not_sampled_are_assigned_by_the_newest_models() -> None:
    data = grouped(n_clients=10)
    model = make_model(HypCluster, data, participation=2, initialization="sampled", client_optimizer=SGD)
    train(model, data, 6)
    make_trainer(0).test(model, data, verbose=False)
    assert model.cluster.tolist() == lowest(hypotheses(model), data)


def test_the_sampled_start_is_trained_on_single_clients() -> None:
    """As Local trains each of them; full batches, whose order does not matter."""
    data, starts = grouped(n_clients=8), []
    options: dict[str, Any] = {"client_optimizer": ClientSGD(lr=0.3), "batch_size": 1000}
    for seed in (0, 0, 1):
        model = make_model(HypCluster, data, seed=seed, **options).double()
        model.statistics.plan(1)
        model.initialize(data.federation)
        starts.append(torch.stack([component.linear.weight.detach() for component in model.components]))
    alone = train(make_model(Local, data, **options), data, 1).personal_models(torch.arange(8)).models
    for rows in starts:
        gap = (rows.unsqueeze(1) - alone["linear.weight"].transpose(0, 1)).abs().amax(dim=(2, 3))  # [M, T]
        whose = gap.argmin(dim=1)
        assert gap.amin(dim=1).max() < 1e-12
        assert len(whose.unique()) == len(rows)
    assert torch.equal(starts[0], starts[1])
    assert not torch.allclose(starts[0], starts[2])
