"""A network with one hidden layer in plain NumPy: losses, gradients, local steps; written from the equations.

A model is a dictionary with the names of the package's tensors. Which samples a batch has is the package's choice
(`by_hand.batches`).
"""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch

from fedem_lightning import FederatedDataModule
from fedem_lightning.data.randomness import sample_cohort
from helpers import by_hand
from helpers.federations import make_data

Model = dict[str, np.ndarray]
BODY, HEAD = ("layers.0.weight", "layers.0.bias"), ("layers.2.weight", "layers.2.bias")
PHI, OUTER = (tuple(f"network.{name}" for name in names) for names in (BODY, HEAD))
"""The names of body and head inside of a network of the package."""
SIZES = (7, 12, 5, 9)


def hidden(model: Model, x: np.ndarray) -> np.ndarray:
    """The features: ReLU of the first layer, [n, 5]."""
    return np.maximum(x @ model[BODY[0]].T + model[BODY[1]], 0.0)


def logits(model: Model, x: np.ndarray) -> np.ndarray:
    """[n, 3]."""
    return hidden(model, x) @ model[HEAD[0]].T + model[HEAD[1]]


def losses(model: Model, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Cross-entropy of each sample, [n]."""
    z = logits(model, x)
    return np.log(np.exp(z).sum(axis=1)) - z[np.arange(len(y)), y]


def gradient(model: Model, x: np.ndarray, y: np.ndarray, q: np.ndarray | None = None) -> Model:
    """Of the mean of q times the cross-entropy, by the chain rule."""
    features, z = hidden(model, x), logits(model, x)
    error = (np.exp(z) / np.exp(z).sum(axis=1, keepdims=True) - np.eye(z.shape[1])[y]) / len(y)
    error *= 1.0 if q is None else q[:, None]
    below = (error @ model[HEAD[0]]) * (features > 0)
    parts = (below.T @ x, below.sum(axis=0), error.T @ features, error.sum(axis=0))
    return dict(zip((*BODY, *HEAD), parts, strict=True))


def by_complex_step(loss: Callable[[Model], Any], model: Model, names: Iterable[str]) -> Model:
    """The gradient of a loss that takes complex numbers, Im loss(v + i h) / h of each number v: exact to rounding."""
    result = {name: np.zeros_like(model[name]) for name in names}
    for name, g in result.items():
        for place in np.ndindex(g.shape):
            moved = model[name].astype(complex)
            moved[place] += 1e-30j
            g[place] = loss(model | {name: moved}).imag / 1e-30
    return result


def relu(z: np.ndarray) -> np.ndarray:
    """ReLU, of complex numbers by their real parts."""
    return z * (z.real > 0)


def cross_entropy(logits: np.ndarray, y: np.ndarray) -> Any:
    """The mean over samples, of logits [n, Y] that may be complex."""
    z = logits - logits.real.max(axis=1, keepdims=True)
    return (np.log(np.exp(z).sum(axis=1)) - z[np.arange(len(y)), y]).mean()


def wrapped(model: Model) -> Model:
    """The model under the names that it has inside of a network of the package."""
    return {f"network.{name}": v for name, v in model.items()}


def unwrapped(model: Model) -> Model:
    """The inverse of `wrapped`."""
    return {name.removeprefix("network."): v for name, v in model.items()}


def features(model: Model, x: np.ndarray) -> np.ndarray:
    """`hidden` of a wrapped model, which may be complex."""
    return relu(x @ model[PHI[0]].T + model[PHI[1]])


def plus(model: Model, direction: Model, by: float = 1.0) -> Model:
    """model + by * direction; tensors without a direction stay."""
    return {name: v + by * direction[name] if name in direction else v for name, v in model.items()}


def mean(models: Iterable[Model], weights: Iterable[float]) -> Model:
    """The weighted mean, name by name."""
    models, weights = list(models), np.array(list(weights), dtype=float)
    return {name: np.average([m[name] for m in models], axis=0, weights=weights) for name in models[0]}


def part(model: Model, names: Iterable[str]) -> Model:
    """Some of the tensors."""
    return {name: model[name] for name in names}


class Clients:
    """Four clients of unequal sizes, of which two are drawn in each round; batches of 4, rate 0.2, plain SGD."""

    batch_size, lr, participation = 4, 0.2, 2

    def __init__(self, data: FederatedDataModule | None = None) -> None:
        self.data: FederatedDataModule = data or make_data(sizes=SIZES, fractions=by_hand.ALL_TRAIN)
        self.samples = [by_hand.samples(self.data, t) for t in range(self.data.n_clients)]

    def cohort(self, round_: int) -> list[int]:
        """The clients of a round."""
        return list(map(int, sample_cohort(torch.arange(len(SIZES)), self.participation, 0, round_)))

    def batches(self, t: int, round_: int, epochs: int = 1) -> list[tuple[np.ndarray, np.ndarray]]:
        """The batches of a client's local steps."""
        x, y = self.samples[t]
        return [(x[rows], y[rows]) for rows in by_hand.batches(self.data, t, self.batch_size, epochs, round_)]

    def descend(
        self,
        model: Model,
        t: int,
        round_: int,
        epochs: int = 1,
        only: Iterable[str] = (*BODY, *HEAD),
        pull: Callable[[Model], Model] = lambda model: {},
    ) -> Model:
        """Local SGD on the tensors `only`; `pull` adds to the gradient."""
        for x, y in self.batches(t, round_, epochs):
            step = plus(part(gradient(model, x, y), only), pull(model))
            model = plus(model, step, -self.lr)
        return model


class Mixture:
    """Rounds of FedEM whose components have the tensors `own` of their own, and share the others.

    Args:
        model: where the components start.
        n_components: M.
        own: names of tensors.

    """

    def __init__(self, model: Any, n_components: int, own: tuple[str, ...] = (*BODY, *HEAD)) -> None:
        self.clients, self.own = Clients(), own
        first = start_of(model)
        self.components = [first | part(start_of(model, m), own) for m in range(n_components)]
        self.pi = np.full((len(SIZES), n_components), 1 / n_components)

    def q(self, t: int, pi: np.ndarray) -> np.ndarray:
        """Eq. 8 for client t with weights pi [M], [n, M]."""
        x, y = self.clients.samples[t]
        return by_hand.e_step(pi, np.stack([losses(model, x, y) for model in self.components], axis=1))

    def round(self, number: int) -> list[tuple[np.ndarray, np.ndarray]]:
        """Eq. 9, local steps, means; returns q and labels of the cohort's clients."""
        sent, said = [], []
        for t in self.clients.cohort(number):
            q = self.q(t, self.pi[t])
            self.pi[t] = q.mean(axis=0)
            sent.append(self.local(t, number, q))
            said.append((q, self.clients.samples[t][1]))
        sizes = [len(y) for _, y in said]
        self.components = [mean([models[m] for models in sent], sizes) for m in range(len(self.components))]
        return said

    def local(self, t: int, number: int, q: np.ndarray) -> list[Model]:
        """Shared and own tensors take each step together; the gradient of what is shared is the sum over m."""
        models, (x, y) = self.components, self.clients.samples[t]
        for rows in by_hand.batches(self.clients.data, t, self.clients.batch_size, 1, number):
            each = [gradient(model, x[rows], y[rows], q[rows, m]) for m, model in enumerate(models)]
            shared = {name: np.sum([g[name] for g in each], axis=0) for name in each[0] if name not in self.own}
            moves = zip(models, each, strict=True)
            models = [plus(model, part(g, self.own) | shared, -self.clients.lr) for model, g in moves]
        return models


def start_of(model: Any, m: int = 0) -> Model:
    """The initial values of component m."""
    return {name: p.detach().double().numpy().copy() for name, p in model.components[m].named_parameters()}


def served(model: Any, t: int) -> Model:
    """The single model with which client t predicts."""
    return {name: rows[0, 0].numpy() for name, rows in model.personal_models(torch.tensor([t])).models.items()}


def assert_models_agree(found: Model, expected: Model, rtol: float = 1e-12) -> None:
    """Equal up to rounding, tensor by tensor."""
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=rtol, atol=1e-12, err_msg=name)
