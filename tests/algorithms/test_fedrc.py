"""FedRC: rounds in NumPy, FedEM as its first round, sequences, clients that join later."""

from typing import Any

import numpy as np
import pytest
import torch

from fedem_lightning import ClientSGD, FedEM, FedRC
from helpers import by_hand, perceptron
from helpers.federations import make_data, make_model, parameters, train

M, Y, ROUNDS = 3, 3, 3


def model_of(kind: Any, **options: Any) -> Any:
    given = {"participation": 2, "client_optimizer": ClientSGD(lr=0.2), "hidden": True, "initialization": "random"}
    return make_model(kind, perceptron.Clients().data, n_components=M, **{**given, **options})


class Numpy(perceptron.Mixture):
    shares = np.full((M, Y), 1 / Y)  # p(y; m)

    def q(self, t: int, pi: np.ndarray) -> np.ndarray:
        x, y = self.clients.samples[t]
        losses = np.stack([perceptron.losses(model, x, y) for model in self.components], axis=1)
        return by_hand.e_step(pi, losses + np.log(self.shares[:, y].T))

    def round(self, number: int) -> list[tuple[np.ndarray, np.ndarray]]:
        sent = super().round(number)
        sums = sum(q.T @ np.eye(Y)[y] for q, y in sent)
        self.shares = sums / sums.sum(axis=1, keepdims=True)
        return sent


@pytest.mark.parametrize("engine", ["loop", "vmap"])
def test_rounds_agree_with_numpy(engine: str) -> None:
    """Unequal clients, a cohort of two, minibatches; then the pi of a client that joins."""
    model, data = model_of(FedRC, engine=engine), perceptron.Clients().data
    expected = Numpy(model, M)
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

    found = model._e_step_losses(torch.zeros(2, M, dtype=torch.float64), Two())
    logs = np.log(shares)
    expected = np.stack([logs[:, 0] + 2 * logs[:, 2], 2 * logs[:, 1]])
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-9)
    assert model._e_step_losses(model.losses(block), block).shape == (len(block.index), M)
