"""A linear classifier in plain NumPy: losses, gradients, local steps.

A model is one vector: the weights of 3 classes and 4 features, then 3 biases. Which samples a batch has is the
package's choice (`test_local_solver.py` checks its properties); all else is written from the papers.
"""

from collections.abc import Iterable

import numpy as np
import torch

from fedem_lightning import FederatedDataModule
from fedem_lightning.local_solver import shuffled_batches

ALL_TRAIN = (1.0, 0.0, 0.0)


def losses(theta: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """-log p(y | x) of each sample."""
    z = x @ theta[:12].reshape(3, 4).T + theta[12:]
    return np.log(np.exp(z).sum(axis=1)) - z[np.arange(len(y)), y]


def gradient(theta: np.ndarray, x: np.ndarray, y: np.ndarray, q: np.ndarray | None = None) -> np.ndarray:
    """Of (1 / |I|) sum_i q_i l(theta; s_i)."""
    z = x @ theta[:12].reshape(3, 4).T + theta[12:]
    error = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True) - np.eye(3)[y]
    error *= 1.0 if q is None else q[:, None]
    return np.concatenate([(error.T @ x).ravel(), error.sum(axis=0)]) / len(y)


def descend(
    theta: np.ndarray, x: np.ndarray, y: np.ndarray, rows: Iterable[np.ndarray], lr: float, q: np.ndarray | None = None
) -> np.ndarray:
    """Plain SGD, one step for each batch of `rows`."""
    for batch in rows:
        theta = theta - lr * gradient(theta, x[batch], y[batch], None if q is None else q[batch])
    return theta


def responsibilities(pi: np.ndarray, thetas: Iterable[np.ndarray], x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Eq. 8 of FedEM for one client: pi [M] -> q [n, M]."""
    joint = pi * np.exp(-np.stack([losses(theta, x, y) for theta in thetas], axis=1))
    return joint / joint.sum(axis=1, keepdims=True)


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
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)
