"""A linear classifier in plain NumPy: losses, gradients, local steps.

A model is one vector: the weights [Y, d] of Y classes (3 as a rule) and d features, then Y biases. Which samples a
batch has is the package's choice (`test_local_solver.py` checks its properties); all else is written from the papers.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch

from fedem_lightning import FederatedDataModule
from fedem_lightning.local.training import shuffled_batches
from helpers.federations import train

ALL_TRAIN = (1.0, 0.0, 0.0)


def logits(theta: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Of each sample, [n, Y]."""
    n_weights = len(theta) // (x.shape[1] + 1) * x.shape[1]
    return x @ theta[:n_weights].reshape(-1, x.shape[1]).T + theta[n_weights:]


def losses(theta: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """-log p(y | x) of each sample."""
    z = logits(theta, x)
    return np.log(np.exp(z).sum(axis=1)) - z[np.arange(len(y)), y]


def gradient(theta: np.ndarray, x: np.ndarray, y: np.ndarray, q: np.ndarray | None = None) -> np.ndarray:
    """Of (1 / |I|) sum_i q_i l(theta; s_i)."""
    z = logits(theta, x)
    error = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True) - np.eye(z.shape[1])[y]
    error *= 1.0 if q is None else q[:, None]
    return np.concatenate([(error.T @ x).ravel(), error.sum(axis=0)]) / len(y)


def descend(
    theta: np.ndarray, x: np.ndarray, y: np.ndarray, rows: Iterable[np.ndarray], lr: float, q: np.ndarray | None = None
) -> np.ndarray:
    """Plain SGD, one step for each batch of `rows`."""
    for batch in rows:
        theta = theta - lr * gradient(theta, x[batch], y[batch], None if q is None else q[batch])
    return theta


def by_torch(
    network: torch.nn.Module,
    x: torch.Tensor,
    y: torch.Tensor,
    rows: Iterable[Any],
    q: torch.Tensor | None = None,
    **options: Any,
) -> None:
    """Trains a network by torch's SGD on cross-entropy, one step for each batch of `rows`; q: weights of samples."""
    optimizer = torch.optim.SGD(network.parameters(), **options)
    for batch in rows:
        optimizer.zero_grad()
        each = torch.nn.functional.cross_entropy(network(x[batch]), y[batch], reduction="none")
        (each if q is None else q[batch] * each).mean().backward()
        optimizer.step()


def e_step(pi: np.ndarray, losses: np.ndarray) -> np.ndarray:
    """Eq. 8 of FedEM for one client: pi [M], losses [n, M] -> q [n, M]."""
    joint = pi * np.exp(-losses)
    return joint / joint.sum(axis=1, keepdims=True)


def responsibilities(pi: np.ndarray, thetas: Iterable[np.ndarray], x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The same from M models."""
    return e_step(pi, np.stack([losses(theta, x, y) for theta in thetas], axis=1))


def three_rounds_of_fedem(data: FederatedDataModule, model: Any, lr: float) -> None:
    """Alg. 1 with a full batch of each client and plain SGD, by hand and by the model: pi and models must agree."""
    thetas, clients = [vector(component) for component in model.components], range(data.n_clients)
    pi = np.full((data.n_clients, 2), 0.5)
    sizes = [len(samples(data, t)[1]) for t in clients]
    for _ in range(3):
        sent = []
        for t in clients:
            x, y = samples(data, t)
            q = responsibilities(pi[t], thetas, x, y)  # [n, M]
            pi[t] = q.mean(axis=0)
            sent.append([theta - lr * gradient(theta, x, y, q[:, m]) for m, theta in enumerate(thetas)])
        thetas = list(np.average(sent, axis=0, weights=sizes))
    train(model, data, rounds=3)
    assert_agree(model.pi.numpy(), pi)
    for component, theta in zip(model.components, thetas, strict=True):
        assert_agree(vector(component), theta)


def samples(data: FederatedDataModule, t: int, split: str = "train") -> tuple[np.ndarray, np.ndarray]:
    """The samples of client t."""
    block = data.federation.block(torch.tensor([t]), split)
    return block.x(torch.float64).numpy(), block.y().numpy()


def batches(
    data: FederatedDataModule, t: int, size: int, epochs: int, round_: int, steps: int | None = None
) -> list[np.ndarray]:
    """The numbers of client t's samples in each of its local steps."""
    block = data.federation.block(torch.tensor([t]), "train")
    order = shuffled_batches(block, size, epochs, 0, round_, steps).order
    return [rows.numpy() for one_pass in order for rows in one_pass.split(size)][:steps]


def vector(module: torch.nn.Module) -> np.ndarray:
    """A module's parameters."""
    return np.concatenate([p.detach().numpy().ravel() for p in module.parameters()])


def row(models: dict[str, torch.Tensor], c: int, m: int = 0) -> np.ndarray:
    """Model m of the c-th client, of stacked models [C, M, ...]."""
    return np.concatenate([models[f"linear.{name}"][c, m].numpy().ravel() for name in ("weight", "bias")])


def assert_agree(found: np.ndarray, expected: np.ndarray) -> None:
    """Equal up to rounding."""
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)
