"""The density federation of Mansour et al. 2020 (Three approaches for personalization, Appendix F.1; arXiv 2002.10619),
with the smallest losses that one model for each client, or a few shared models, can reach.
"""

import itertools
from typing import Annotated, Any

import numpy as np
from annotated_types import Ge
from scipy.special import entr

from fedem_lightning.data.datamodule import FederatedDataModule
from fedem_lightning.data.federation import Federation
from fedem_lightning.data.splits import HoldOut
from fedem_lightning.randomness import Purpose, generator
from fedem_lightning.settings.check import grouped
from fedem_lightning.settings.ranges import Count, PositiveInt
from fedem_lightning.tasks import Density

N_GROUPS = 4
"""Number of true groups of clients; group i has symbol i."""


class DensityDataModule(FederatedDataModule):
    """Symbols 0..d-1 without features: models can only learn how often each symbol occurs.

        D_k = 0.5 P_{k mod 4} + 0.25 U + 0.25 P_{k mod (d - 4)}

    P_j is the point mass on symbol j and U is uniform: half of client k's symbols are its group's symbol, a quarter its
    own symbol. The feature x is the constant 1. The ground truth of each client: "distribution" D_k [d], "group"
    k mod 4, and "minimum_loss", the entropy of D_k in nats, the least expected loss of any model. A client's
    samples of a split depend on (seed, client, split) only.

    Args:
        n_clients: T.
        n_symbols: d, at least 9, so that clients have more symbols of their own than there are groups.
        n_samples: training samples of each client.
        n_val: additional validation samples of each client; default n_samples // 3, at least 1.
        test_size: additional test samples of each client.
        shifted: whether a client's own symbol is 4 + (k mod (d - 4)), never a group's; in the paper it may be one.
        options: those of `HoldOut`.

    Raises:
        UserError: an option is out of its range.

    """

    def __init__(
        self,
        n_clients: PositiveInt = 100,
        n_symbols: Annotated[int, Ge(2 * N_GROUPS + 1)] = 50,
        n_samples: PositiveInt = 100,
        n_val: Count | None = None,
        test_size: Count = 1000,
        shifted: bool = False,
        **options: Annotated[Any, HoldOut],
    ) -> None:
        (held_out,) = grouped(options, HoldOut)
        n_val = max(1, n_samples // 3) if n_val is None else n_val
        self.made_with["n_val"] = n_val
        names = [str(t) for t in range(n_clients)]
        seen = held_out.seen(names)
        distribution, group = densities(n_clients, n_symbols, shifted), np.arange(n_clients) % N_GROUPS
        counts, clients = (n_samples, n_val, test_size), range(n_clients)
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


def densities(n_clients: int, n_symbols: int, shifted: bool = False) -> np.ndarray:
    """D_k of every client, [T, d]; see `DensityDataModule`."""
    k, point = np.arange(n_clients), np.eye(n_symbols)
    own = k % (n_symbols - N_GROUPS) + N_GROUPS * shifted
    return 0.5 * point[k % N_GROUPS] + 0.25 / n_symbols + 0.25 * point[own]


def minimum_losses(distributions: np.ndarray, group: np.ndarray, n_hypotheses: int) -> tuple[float, float]:
    """The least expected loss of q models without features, if the clients of a true group share a model.

    The best model of several clients is their mean distribution, and its loss is the entropy. All ways to merge the
    groups into q are tried, so there should be few groups.

    Args:
        distributions: label distributions of the clients, [T, Y].
        group: true group of each client, int [T].
        n_hypotheses: q; more models than groups do not help.

    Returns:
        The mean expected loss of the clients in nats, for the best and for the worst way to merge groups.

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
