"""FedRC: rounds in NumPy, FedEM as its first round, sequences, clients that join later."""

from typing import Any

import numpy as np
import pytest
import torch

from fedem_lightning import ClientSGD, FedEM, FedRC
from helpers import by_hand, perceptron
from helpers.federations import make_data, make_model, parameters, train
from helpers.perceptron import BODY, HEAD, Model

M, Y, ROUNDS = 3, 3, 3


def model_of(kind: Any, **options: Any) -> Any:
    given = {"participation": 2, "client_optimizer": ClientSGD(lr=0.2), "hidden": True, "initialization": "random"}
    return make_model(kind, perceptron.Clients().data, n_components=M, **{**given, **options})


class Numpy:
    """Rounds of FedRC in NumPy."""

    def __init__(self, model: Any) -> None:
        self.clients = perceptron.Clients()
        self.components = [perceptron.start_of(model, m) for m in range(M)]
        self.pi = np.full((len(perceptron.SIZES), M), 1 / M)
        self.shares = np.full((M, Y), 1 / Y)  # p(y; m)

    def q(self, t: int, pi: np.ndarray) -> np.ndarray:
        x, y = self.clients.samples[t]
        likelihoods = np.exp(-np.stack([perceptron.losses(model, x, y) for model in self.components], axis=1))
        q = pi * likelihoods / self.shares[:, y].T
        return q / q.sum(axis=1, keepdims=True)

    def round(self, number: int) -> None:
        sent, sizes, sums = [], [], np.zeros((M, Y))
        for t in self.clients.cohort(number):
            y = self.clients.samples[t][1]
            q = self.q(t, self.pi[t])
            self.pi[t] = q.mean(axis=0)
            for i, label in enumerate(y):
                sums[:, label] += q[i]
            sent.append([self.local(t, number, m, q) for m in range(M)])
            sizes.append(len(y))
        self.components = [perceptron.mean([models[m] for models in sent], sizes) for m in range(M)]
        self.shares = sums / sums.sum(axis=1, keepdims=True)

    def local(self, t: int, number: int, m: int, q: np.ndarray) -> Model:
        model, (x, y) = self.components[m], self.clients.samples[t]
        for rows in by_hand.batches(self.clients.data, t, self.clients.batch_size, 1, number):
            each = [perceptron.gradient(model, x[i : i + 1], y[i : i + 1]) for i in rows]
            mean = {name: sum(q[i, m] * g[name] for i, g in zip(rows, each, strict=True)) / len(rows) for name in model}
            model = perceptron.plus(model, mean, -self.clients.lr)
        return model


@pytest.mark.parametrize("engine", ["loop", "vmap"])
def test_rounds_agree_with_numpy(engine: str) -> None:
    """Unequal clients, a cohort of two, minibatches; then the pi of a client that joins."""
    model, data = model_of(FedRC, engine=engine), perceptron.Clients().data
    expected = Numpy(model)
    for number in range(ROUNDS):
        expected.round(number)
    train(model, data, ROUNDS)
    np.testing.assert_allclose(model.label_shares.numpy(), expected.shares, rtol=1e-9)
    np.testing.assert_allclose(model.pi.numpy(), expected.pi, rtol=1e-9)
    for m in range(M):
        perceptron.assert_models_agree(perceptron.start_of(model, m), expected.components[m])
    model.personalize_clients(data.federation, torch.tensor([1]))
    pi = np.full(M, 1 / M)
    for _ in range(20):
        pi = expected.q(1, pi).mean(axis=0)
    np.testing.assert_allclose(model.pi[1].numpy(), pi, rtol=1e-9)


def test_the_first_round_is_fedems() -> None:
    data = perceptron.Clients().data
    one, two = train(model_of(FedRC), data, 1), train(model_of(FedEM), data, 1)
    torch.testing.assert_close(parameters(one.components), parameters(two.components), rtol=1e-9, atol=1e-12)
    one, two = train(model_of(FedRC), data, 2), train(model_of(FedEM), data, 2)
    assert not torch.allclose(parameters(one.components), parameters(two.components), rtol=1e-6)


def test_a_sequence_counts_every_label() -> None:
    data = make_data(sizes=(6, 4))
    model = train(model_of(FedRC, participation=1.0), perceptron.Clients().data, 1)
    block: Any = data.federation.block(torch.arange(2), "train")
    shares = model.label_shares.numpy()
    labels = np.array([[0, 2, 2], [1, 1, -100]])  # the last one is not known

    class Two:
        owner = torch.tensor([0, 1])

        @staticmethod
        def y() -> torch.Tensor:
            return torch.tensor(labels)

    found = model.e_step_losses(torch.zeros(2, M, dtype=torch.float64), Two())
    logs = np.log(shares)
    expected = np.stack([logs[:, 0] + 2 * logs[:, 2], 2 * logs[:, 1]])
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-9)
    assert model.e_step_losses(model.losses(block), block).shape == (len(block.index), M)


def test_it_sends_the_means_of_q_by_label() -> None:
    """Whatever the aggregation's weights are, a sum over labels is the mean of q."""
    data = perceptron.Clients().data
    model = train(model_of(FedRC, shared="body"), data, ROUNDS)
    np.testing.assert_allclose(model.label_shares.sum(dim=1).numpy(), 1.0, rtol=1e-9)
    block = data.federation.block(torch.arange(4), "train")
    q = torch.rand(len(block.index), M, dtype=torch.float64)
    found = model.extras(q, block)["labels"].view(4, M, Y).sum(dim=2)
    expected = torch.stack([q[block.owner == t].mean(dim=0) for t in range(4)])
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)
    assert set(BODY + HEAD) <= {name for name, _ in model.components[0].named_parameters()}
