"""The synthetic mixture of FedEM (Marfoq et al. 2021, Appendix I.1.5), with ground truth and Bayes-optimal accuracy."""

from typing import Annotated, Any

import numpy as np
from scipy.special import expit

from fedem_lightning.data.datamodule import FederatedDataModule
from fedem_lightning.data.federation import Federation
from fedem_lightning.data.splits import HoldOut
from fedem_lightning.randomness import Purpose, generator
from fedem_lightning.settings.check import grouped, require_memory
from fedem_lightning.settings.ranges import Count, NotNegative, Positive, PositiveInt
from fedem_lightning.tasks import BinaryClassification

SIZE, SAMPLES, COMPONENTS, WEIGHTS = range(4)
"""Random draws, each with a key of its own. The keys determine what a seed means: never renumber them."""

SMALLEST_CLIENT = 50
"""Training samples of the smallest client."""
BYTES_OF_A_SAMPLE = 8 + 8 + 1 + 8
"""Beside its features: label, client, split and position."""
BYTES_OF_A_CLIENT = 100
"""Its name, and its numbers of samples."""


class SyntheticMixture(FederatedDataModule):
    """Binary labels from M linear models, which each client mixes with its own weights.

        pi_t ~ Dirichlet(alpha),  theta_m ~ U([-1, 1]^d)
        n_t = min(50 + floor(LogNormal(4, 2)), 1000)
        x ~ U([-1, 1]^d),  z ~ Categorical(pi_t),  eps ~ N(0, noise^2)
        y ~ Bernoulli(sigmoid(<x, theta_z> + eps))

    The n_t samples are training samples; each client has n_t // 3 validation and `test_size` test samples in addition.
    theta is a function of the seed; a client's pi and n_t are functions of (seed, client), and its samples also depend
    on theta and pi. So additional clients do not change the others.

    Args:
        n_clients: T.
        n_components: M.
        dimension: d.
        alpha: concentration of the mixture weights.
        noise: standard deviation of eps.
        test_size: test samples of each client.
        one_hot: whether each client draws from one component, uniformly chosen (Appendix J.4).
        options: those of `HoldOut`.

    """

    def __init__(
        self,
        n_clients: PositiveInt = 300,
        n_components: PositiveInt = 3,
        dimension: PositiveInt = 150,
        alpha: Positive = 0.4,
        noise: NotNegative = 1.0,
        test_size: Count = 5000,
        one_hot: bool = False,
        **options: Annotated[Any, HoldOut],
    ) -> None:
        (held_out,) = grouped(options, HoldOut)
        seed = held_out.seed
        _check_memory(n_clients, SMALLEST_CLIENT + SMALLEST_CLIENT // 3 + test_size, n_components, dimension)
        names = [str(t) for t in range(n_clients)]
        seen = held_out.seen(names)
        theta = draw_components(n_components, dimension, seed)
        pi = np.stack([_draw_weights(n_components, None if one_hot else alpha, seed, t) for t in range(n_clients)])
        n_train = np.array([_draw_size(seed, t) for t in range(n_clients)])
        counts = np.stack([n_train, n_train // 3, np.full(n_clients, test_size)])  # [split, T]

        n = int(counts.sum())
        _check_memory(n_clients, n / n_clients, n_components, dimension)
        x = np.empty((n, dimension), dtype=np.float32)
        y = np.empty(n, dtype=np.int64)
        bayes = np.zeros(n_clients)
        starts = counts.cumsum().reshape(counts.shape) - counts  # stored by split, then by client
        for t in range(n_clients):
            xt, yt, correct = _draw_client(
                pi[t], theta, noise, counts[:, t].sum(), generator(seed, Purpose.SYNTHETIC, SAMPLES, t)
            )
            bounds = counts[:, t].cumsum()
            for code in range(3):
                rows = slice(starts[code, t], starts[code, t] + counts[code, t])
                part = slice(bounds[code] - counts[code, t], bounds[code])
                x[rows], y[rows] = xt[part], yt[part]
            bayes[t] = correct[bounds[1] :].mean() if test_size else np.nan
        group = {"group": pi.argmax(axis=1)} if one_hot else {}
        super().__init__(
            Federation.from_arrays(
                x,
                y,
                client=np.concatenate([np.repeat(np.arange(n_clients), c) for c in counts]),
                split=np.repeat(np.arange(3, dtype=np.int8), counts.sum(axis=1)),
                task=BinaryClassification(),
                names=names,
                seen=seen,
                truth={"pi": pi, "theta": theta, "bayes_accuracy": bayes, **group},
            )
        )


def _check_memory(n_clients: int, samples: float, n_components: int, dimension: int) -> None:
    """Looks at the arrays of all samples, of names and of mixture weights, given the samples of a client."""
    theta = 8 * n_components * dimension
    require_memory("dimension", theta, f"{n_components} components of {dimension} numbers")
    each = samples * (4 * dimension + BYTES_OF_A_SAMPLE) + 16 * n_components + BYTES_OF_A_CLIENT
    require_memory("n_clients", theta + n_clients * each, f"{n_clients} clients with {samples:.0f} samples each")


def draw_components(m: int, d: int, seed: int) -> np.ndarray:
    """theta [M, d], a function of the seed; neither clients nor additional components change a row."""
    return generator(seed, Purpose.SYNTHETIC, COMPONENTS).uniform(-1.0, 1.0, size=(m, d))


def _draw_weights(m: int, alpha: float | None, seed: int, client: int) -> np.ndarray:
    """A client's true mixture weights pi [M], one-hot if alpha is None."""
    rng = generator(seed, Purpose.SYNTHETIC, WEIGHTS, client)
    return np.eye(m)[rng.integers(m)] if alpha is None else rng.dirichlet(np.full(m, alpha))


def _draw_size(seed: int, client: int) -> int:
    """A client's number of training samples."""
    drawn = generator(seed, Purpose.SYNTHETIC, SIZE, client).lognormal(4.0, 2.0)
    return int(min(SMALLEST_CLIENT + np.floor(drawn), 1000))


def _draw_client(
    pi: np.ndarray, theta: np.ndarray, noise: float, n: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """n samples of one client: x float32 [n, d], y [n], and whether the Bayes rule is right [n]."""
    x = rng.random((n, theta.shape[1]), dtype=np.float32) * 2 - 1
    z = rng.choice(len(pi), size=n, p=pi)
    scores = x @ theta.T.astype(np.float32)  # [n, M]
    p = expit(scores[np.arange(n), z] + noise * rng.standard_normal(n))
    y = (rng.random(n) < p).astype(np.int64)
    return x, y, (bayes_probability(scores, pi, noise) > 0.5) == y


def bayes_probability(scores: np.ndarray, pi: np.ndarray, noise: float, nodes: int = 20) -> np.ndarray:
    """p(y = 1 | x, t) = sum_m pi_m E_eps sigmoid(<x, theta_m> + eps), the expectation by Gauss-Hermite quadrature.

    Args:
        scores: <x, theta_m>, [n, M]; pi: [M].
        noise: standard deviation of eps.
        nodes: number of nodes of the quadrature.

    Returns:
        The probabilities [n].

    """
    points, weights = np.polynomial.hermite_e.hermegauss(nodes)
    weights = weights / weights.sum()
    p = np.zeros(len(scores))
    for point, weight in zip(points, weights, strict=True):
        p += weight * (expit(scores + noise * point) @ pi)
    return p
