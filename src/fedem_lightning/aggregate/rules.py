"""The aggregations: the weighted mean, and rules that a minority of faulty clients cannot move far."""

import numpy as np
import torch
from torch import Tensor

from fedem_lightning.aggregate.base import Aggregation, Collector, RoundContext
from fedem_lightning.aggregate.gathered import Robust
from fedem_lightning.aggregate.private import PrivateMean
from fedem_lightning.aggregate.weighted_mean import WeightedMean
from fedem_lightning.settings.errors import require
from fedem_lightning.settings.ranges import BelowHalf, FaultyClients, PositiveOrInfinite
from fedem_lightning.settings.recipes import anew

CHUNK = 2**16
"""Columns that are sorted at a time."""


class Mean(Aggregation):
    """The weighted mean of the updates: sum_t w_t theta_t / sum_t w_t, usually w_t = n_t (McMahan et al. 2017)."""

    is_plain = True

    def begin(self, context: RoundContext) -> Collector:
        """A running sum: updates are added block by block, and none is kept."""
        return WeightedMean()


class NormClipping(Robust):
    """The weighted mean of theta + min(1, c / |d_t|) d_t: updates d_t = theta_t - theta are at most c long.

    Sun, Kairouz, Suresh, McMahan: "Can You Really Backdoor Federated Learning?", 2019, arXiv 1911.07963, Section 5.
    Each component's update is shortened by itself; its length is taken over the trained parameters.

    Args:
        max_norm: c, above 0; None: in every round the median length of the cohort's updates that are not 0.

    """

    clips = True

    def __init__(self, max_norm: PositiveOrInfinite | None = None) -> None:
        self.max_norm = max_norm

    def scales(self, norms: Tensor) -> Tensor:
        """min(1, c / |theta_t - theta|), [C, M]."""
        median = norms.where(norms > 0, torch.nan).nanquantile(0.5, dim=0).nan_to_num(torch.inf)  # [M]
        limit = median if self.max_norm is None else self.max_norm
        return (limit / norms).nan_to_num(1.0, 1.0).clamp(max=1.0)


class Median(Robust):
    """The median of each coordinate (Yin, Chen, Ramchandran, Bartlett: ICML 2018, arXiv 1803.01498, Algorithm 1).

    As in the paper all clients of an average count alike, so that clients with many samples cannot decide alone.
    """

    weighted = False

    def combine(self, values: Tensor, weights: Tensor) -> Tensor:
        """The middle value of each column, or the mean of the two middle ones."""
        n, ordered = len(values), [_sorted(part) for part in values.split(CHUNK, dim=1)]  # [F, n] each
        return torch.cat([rows[:, (n - 1) // 2].lerp(rows[:, n // 2], 0.5) for rows in ordered])


class TrimmedMean(Robust):
    """The mean of each coordinate without its largest and smallest values (Yin et al. 2018, Definition 2).

    Clients count as in `Median`.

    Args:
        trim: beta, the share that is left out at each end, in [0, 0.5): floor(beta n) of n values.

    """

    weighted = False

    def __init__(self, trim: BelowHalf = 0.2) -> None:
        self.trim = trim

    def combine(self, values: Tensor, weights: Tensor) -> Tensor:
        """The mean of what is left."""
        n, cut = len(values), int(self.trim * len(values) + 1e-9)
        return torch.cat([_sorted(part)[:, cut : n - cut].mean(dim=1) for part in values.split(CHUNK, dim=1)])


class MultiKrum(Robust):
    """The weighted mean of the n - f updates with the lowest scores (Blanchard et al.: NeurIPS 2017, arXiv 1703.02757).

    A client's score is the sum of its squared distances to the n - f - 2 nearest of the other n - 1 updates. Every
    component has its own scores, so that a client may be trusted with one and not with another. In a group of n clients
    f is at most (n - 3) / 2; one or two clients are averaged.

    Args:
        faulty: f, the number of faulty clients in a cohort; below 1: their share.

    """

    def __init__(self, faulty: FaultyClients = 0.2) -> None:
        self.faulty = faulty

    def n_faulty(self, n_clients: int) -> int:
        """f for this number of clients."""
        return int(self.faulty * n_clients + 1e-9) if self.faulty < 1 else int(self.faulty)

    def check(self, n_clients: int) -> None:
        """Checks n > 2 f + 2."""
        f = self.n_faulty(n_clients)
        needs = f"Multi-Krum with f = {f} faulty clients needs more than 2 f + 2 = {2 * f + 2} clients in a round"
        require(n_clients > 2 * f + 2, f"aggregation.faulty: {needs}, there are {n_clients}")

    def choose(self, parts: list[Tensor], weights: Tensor) -> Tensor:
        """The weights of the clients with the lowest scores; 0 for the others."""
        n = len(weights)
        if n < 3:
            return weights
        f = min(self.n_faulty(n), (n - 3) // 2)
        distances = squared_distances(parts).fill_diagonal_(torch.inf)
        scores = distances.sort(dim=1).values[:, : n - f - 2].sum(dim=1)  # [n]
        best = scores.argsort(stable=True)[: n - f]
        return torch.zeros_like(weights).index_copy_(0, best, weights[best])


RULES: dict[str, type[Aggregation]] = {
    "mean": Mean,
    "norm_clipping": NormClipping,
    "median": Median,
    "trimmed_mean": TrimmedMean,
    "multi_krum": MultiKrum,
    "private": PrivateMean,
}


def make_aggregation(aggregation: Aggregation | str | None) -> Aggregation:
    """Makes an aggregation from its name; None: the mean. An aggregation is made anew: each model has its own state."""
    if aggregation is None or isinstance(aggregation, Aggregation):
        return Mean() if aggregation is None else anew(aggregation)
    require(aggregation in RULES, f"aggregation: expected one of {', '.join(RULES)}, got {aggregation}")
    return RULES[aggregation]()


def squared_distances(parts: list[Tensor]) -> Tensor:
    """Squared distances between n clients' tensors, each [n, F]: float64 [n, n]."""
    total = torch.zeros(len(parts[0]), len(parts[0]), dtype=torch.float64, device=parts[0].device)
    for rows in parts:
        for part in rows.split(CHUNK, dim=1):
            near = part.double() - part[:1].double()  # without what all have in common
            squares = near.square().sum(dim=1)
            total += squares.unsqueeze(1) + squares - 2 * near @ near.T
    return total.clamp(min=0.0)


def _sorted(values: Tensor) -> Tensor:
    """The values [n, F] of each column in ascending order, [F, n]."""
    rows = values.T.contiguous()
    if rows.device.type == "cpu" and rows.dtype in (torch.float32, torch.float64):
        return torch.from_numpy(np.sort(rows.numpy(), axis=1))  # four times as fast as torch, which sorts indices too
    return rows.sort(dim=1).values
