"""Generated data with their ground truth: the synthetic mixture of FedEM (Marfoq et al. 2021, Appendix I.1.5) with its
Bayes-optimal accuracy, and a federation of densities with the smallest losses that one or several models can reach.
"""

import itertools
from typing import Annotated, Any

import numpy as np
import torch
from annotated_types import Ge
from scipy.special import entr, expit

from fedem_lightning.data.datamodule import FederatedDataModule
from fedem_lightning.data.federation import Federation
from fedem_lightning.data.randomness import Purpose, generator
from fedem_lightning.data.splits import HoldOut
from fedem_lightning.data.tasks import BinaryClassification, Density
from fedem_lightning.settings.check import grouped
from fedem_lightning.settings.ranges import Count, NotNegative, Positive, PositiveInt

SIZE, SAMPLES, COMPONENTS, WEIGHTS = range(4)
"""Random draws, each with a key of its own. The keys determine what a seed means: never renumber them."""


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
        names = [str(t) for t in range(n_clients)]

        def draws(what: int, *client: int) -> np.random.Generator:
            return generator(held_out.seed, Purpose.SYNTHETIC, what, *client)

        theta = draws(COMPONENTS).uniform(-1.0, 1.0, size=(n_components, dimension))
        weights, eye = [draws(WEIGHTS, t) for t in range(n_clients)], np.eye(n_components)
        concentration = np.full(n_components, alpha)
        pi = np.stack([eye[rng.integers(n_components)] if one_hot else rng.dirichlet(concentration) for rng in weights])
        drawn = np.array([draws(SIZE, t).lognormal(4.0, 2.0) for t in range(n_clients)])
        n_train = np.minimum(50 + np.floor(drawn), 1000).astype(np.int64)
        counts = np.stack([n_train, n_train // 3, np.full(n_clients, test_size)])  # [split, T]

        shape = (int(counts.sum()), dimension)
        x = torch.empty(shape, dtype=torch.float32).numpy()  # NumPy would wait seconds for huge pages
        y, bayes = np.empty(len(x), dtype=np.int64), np.zeros(n_clients)
        starts = counts.cumsum().reshape(counts.shape) - counts  # stored by split, then by client
        room = np.empty((counts.sum(axis=0).max(), dimension), dtype=np.float32)  # new memory costs as much as draws
        for t in range(n_clients):
            xt = room[: counts[:, t].sum()]
            yt, correct = _draw_client(xt, pi[t], theta, noise, draws(SAMPLES, t))
            bounds = counts[:, t].cumsum()
            for code in range(3):
                rows = slice(starts[code, t], starts[code, t] + counts[code, t])
                part = slice(bounds[code] - counts[code, t], bounds[code])
                x[rows], y[rows] = xt[part], yt[part]
            bayes[t] = correct[bounds[1] :].mean() if test_size else np.nan
        super().__init__(
            Federation.from_arrays(
                x,
                y,
                client=np.concatenate([np.repeat(np.arange(n_clients), c) for c in counts]),
                split=np.repeat(np.arange(3, dtype=np.int8), counts.sum(axis=1)),
                task=BinaryClassification(),
                names=names,
                seen=held_out.seen(names),
                truth={"pi": pi, "theta": theta, "bayes_accuracy": bayes}
                | ({"group": pi.argmax(axis=1)} if one_hot else {}),
            )
        )


def _draw_client(
    x: np.ndarray, pi: np.ndarray, theta: np.ndarray, noise: float, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Draws the samples of one client, into x float32 [n, d]: y [n], and whether the Bayes rule is right [n]."""
    n = len(x)
    rng.random(out=x, dtype=np.float32)
    x *= 2
    x -= 1
    z = rng.choice(len(pi), size=n, p=pi)
    scores = x @ theta.T.astype(np.float32)  # [n, M]
    p = expit(scores[np.arange(n), z] + noise * rng.standard_normal(n))
    y = (rng.random(n) < p).astype(np.int64)
    return y, (bayes_probability(scores, pi, noise) > 0.5) == y


def bayes_probability(scores: np.ndarray, pi: np.ndarray, noise: float, nodes: int = 20) -> np.ndarray:
    """p(y = 1 | x, t) = sum_m pi_m E_eps sigmoid(<x, theta_m> + eps), [n], by Gauss-Hermite quadrature.

    scores: <x, theta_m>, [n, M]; pi: [M]; noise: standard deviation of eps.
    """
    points, weights = np.polynomial.hermite_e.hermegauss(nodes)
    weights = weights / weights.sum()
    p = np.zeros(len(scores))
    for point, weight in zip(points, weights, strict=True):
        p += weight * (expit(scores + noise * point) @ pi)
    return p


N_GROUPS = 4
"""Number of true groups of clients; group i has symbol i."""


class DensityDataModule(FederatedDataModule):
    """Symbols 0..d-1 without features, of which models can only learn how often each occurs.

    The federation of Mansour et al. 2020 (Three approaches for personalization, Appendix F.1; arXiv 2002.10619).

        D_k = 0.5 P_{k mod 4} + 0.25 U + 0.25 P_{k mod (d - 4)}

    P_j is the point mass on symbol j and U is uniform: half of client k's symbols are its group's symbol, a quarter its
    own symbol. The feature x is the constant 1. The ground truth of each client: "distribution" D_k [d], "group"
    k mod 4, and "minimum_loss", the entropy of D_k in nats, the least expected loss of any model. A client's
    samples of a split depend on (seed, client, split) only.

    Args:
        n_clients: T.
        n_symbols: d, at least 9, so that clients have more symbols of their own than there are groups.
        n_samples: training samples of each client, which has a third as many for validation.
        test_size: additional test samples of each client.
        options: those of `HoldOut`.

    """

    def __init__(
        self,
        n_clients: PositiveInt = 100,
        n_symbols: Annotated[int, Ge(2 * N_GROUPS + 1)] = 50,
        n_samples: PositiveInt = 100,
        test_size: Count = 1000,
        **options: Annotated[Any, HoldOut],
    ) -> None:
        (held_out,) = grouped(options, HoldOut)
        names = [str(t) for t in range(n_clients)]
        seen = held_out.seen(names)
        distribution, group = densities(n_clients, n_symbols), np.arange(n_clients) % N_GROUPS
        counts, clients = (n_samples, max(1, n_samples // 3), test_size), range(n_clients)
        y = [  # stored by split, then by client
            generator(held_out.seed, Purpose.DENSITY, t, code).choice(n_symbols, size=n, p=distribution[t])
            for code, n in enumerate(counts)
            for t in clients
        ]
        bounds = {str(q): list(minimum_losses(distribution[seen], group[seen], q)) for q in range(1, N_GROUPS + 1)}
        super().__init__(
            Federation.from_arrays(
                np.ones((n_clients * sum(counts), 1), dtype=np.float32),
                np.concatenate(y),
                client=np.concatenate([np.repeat(clients, n) for n in counts]),
                split=np.repeat(np.arange(3, dtype=np.int8), np.multiply(counts, n_clients)),
                task=Density(n_symbols),
                names=names,
                seen=seen,
                truth={"distribution": distribution, "group": group, "minimum_loss": entr(distribution).sum(axis=1)},
                notes={"minimum_loss_by_models": bounds},
            )
        )


def densities(n_clients: int, n_symbols: int) -> np.ndarray:
    """D_k of every client, [T, d]; see `DensityDataModule`."""
    k, point = np.arange(n_clients), np.eye(n_symbols)
    own = k % (n_symbols - N_GROUPS)
    return 0.5 * point[k % N_GROUPS] + 0.25 / n_symbols + 0.25 * point[own]


def minimum_losses(distributions: np.ndarray, group: np.ndarray, n_hypotheses: int) -> tuple[float, float]:
    """The least expected loss of q models without features, if the clients of a true group share a model.

    The best model of several clients is their mean distribution [Y], and its loss is the entropy. All ways to merge the
    groups (of clients, int [T]) into q are tried. Returns the clients' mean expected loss in nats, for the best way and
    for the worst.
    """
    members = group == np.unique(group)[:, None]  # [G, T]
    totals, sizes = members @ distributions, members.sum(axis=1)  # [G, Y], [G]
    q = min(n_hypotheses, len(sizes))
    losses = []
    for model in itertools.product(range(q), repeat=len(sizes)):  # the model of each group
        merged = np.equal.outer(range(q), model)  # [q, G]
        if merged.any(axis=1).all():
            n = merged @ sizes
            losses.append(float(n @ entr(merged @ totals / n[:, None]).sum(axis=1) / len(group)))
    return min(losses), max(losses)
