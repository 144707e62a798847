"""How much the meaning of labels differs between clients, estimated from training samples before any training."""

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedem_lightning.data.federation import Federation
from fedem_lightning.data.fields import Fields
from fedem_lightning.data.labels import has_several
from fedem_lightning.data.samples import Windows, n_values
from fedem_lightning.data.splits import ranks
from fedem_lightning.randomness import Purpose, generator
from fedem_lightning.tasks import Regression

DIMENSION = 64
"""Dimensions of the random projection in which samples are compared."""
MOST_COMPARED = 100
"""Number of clients that are compared at most; of more, so many are drawn."""
PERMUTATIONS = 99
LEVEL = 0.05


class ConceptDifference(NamedTuple):
    """An estimate of the concept difference, and a test of whether there is any.

    Args:
        share: share of the pairs of clients whose samples of a label differ, in [0, 1]; NaN if labels say nothing on x.
        p: p-value if all clients were alike; NaN if no two clients have enough samples.
        noise: share that clients who are alike stay below in 95 % of cases, at most 1.

    """

    share: float
    p: float
    noise: float

    def __str__(self) -> str:
        """The share if the test finds a difference, else why not."""
        if np.isnan(self.p):
            return "cannot tell: no two clients have two samples each of the same two labels"
        chance = f"p = {self.p:.2f} if all clients were alike; by chance up to {self.noise:.2f}"
        if self.p > LEVEL or np.isnan(self.share):
            return f"cannot tell ({chance})"
        return f"{self.share:.2f} (estimated share of pairs of clients whose samples of a label differ; {chance})"


def concept_difference(federation: Federation) -> ConceptDifference | None:
    """The share of pairs of clients that disagree about what samples of a label look like, and a test of it.

    Let m_ty be the mean of client t's samples of label y in a random projection. For clients s and t, let B_st be half
    the mean of (m_sy - m_sy') . (m_ty - m_ty') over the pairs y < y' of labels of which both have two samples, and let
    b_st be the same with s in place of t, without bias. If all clients are alike, B_st, b_st and b_ts have one
    expectation. The share comes from the mean of B_st and the mean of B_st^2, each divided by that of b (`_share`).
    B_st^2 is estimated without bias from two halves of the samples.

    The test permutes the samples of a label among the clients, which leaves each client its numbers of labels, and
    counts how often the sum of b_st - B_st is as large as without. It is exact if all clients are alike.

    Returns:
        The estimate from the training samples of the seen clients; None where samples have no classes, or for one
        client.

    """
    samples = federation.samples
    several = has_several(federation.task) or isinstance(samples, Windows | Fields)
    if isinstance(federation.task, Regression) or several:
        return None
    clients = federation.clients()
    random = generator(0, Purpose.SUBSAMPLE)
    if len(clients) > MOST_COMPARED:
        drawn = random.choice(len(clients), MOST_COMPARED, replace=False)
        clients = clients[torch.from_numpy(drawn).to(clients.device)].sort().values
    if len(clients) < 2:
        return None
    block, n_classes = federation.block(clients, "train"), getattr(federation.task, "n_classes", 2)
    in_features = n_values(samples.in_shape)
    projection = torch.randn(in_features, DIMENSION, generator=torch.Generator().manual_seed(0)) / in_features**0.5
    z = torch.cat([piece.vectors(torch.float32) @ projection for piece in block.pieces()]).double()  # [n, d]
    z -= z.mean(dim=0)
    y, cell = block.y(), block.owner * n_classes + block.y()
    shape = (len(clients), n_classes)  # [T, Y]
    counts = torch.bincount(cell, minlength=len(clients) * n_classes)
    known = (counts >= 2).double().view(shape)
    agreement, own = _agreement(z, cell, known)
    if not own.any():
        return ConceptDifference(np.nan, np.nan, 1.0)
    found, by_label, alike = float(own.sum() - agreement.sum()), y.argsort(stable=True), []
    for _ in range(PERMUTATIONS):
        moved = torch.empty_like(z)
        moved[by_label] = z[torch.from_numpy(np.lexsort((random.random(len(y)), y.numpy())))]
        agreement_, own_ = _agreement(moved, cell, known)
        alike.append(float(own_.sum() - agreement_.sum()))
    p = (1 + sum(value >= found for value in alike)) / (1 + PERMUTATIONS)
    by_cell = cell.argsort(stable=True)
    half = torch.empty_like(cell)
    half[by_cell] = ranks(cell[by_cell], counts) % 2
    (first, _), (second, _) = (_agreement(z[half == h], cell[half == h], known) for h in (0, 1))
    square = float((first * second).sum() / (own * own.T).sum())
    if own.sum() <= 0 or square <= 0:
        return ConceptDifference(np.nan, p, 1.0)
    share = _share(float(agreement.sum() / own.sum()) / square**0.5, int(known.any(dim=0).sum()))
    return ConceptDifference(share, p, min(1.0, max(0.0, float(np.quantile(alike, 1 - LEVEL) / own.sum()))))


def _share(ratio: float, n_labels: int) -> float:
    """The share of pairs that differ, from the mean of B_st over the root of its mean square, in units of b_st.

    For pairs that agree B_st is 1. Those that differ are taken to have their labels permuted, alike for all of the
    Y! - 1 permutations. Then the mean of B_st is -1 / (Y! - 1), because that over all Y! is 0, and the mean square is
    (Y! / (Y - 1)^2 - 1) / (Y! - 1). So of many labels it is about 0, and of two labels it is -1.
    """
    n = math.factorial(min(n_labels, 20))
    share = np.linspace(0, 1, 1001)
    mean = 1 - share * (1 + 1 / (n - 1))
    square = 1 - share + share * (n / (n_labels - 1) ** 2 - 1) / (n - 1)
    return float(np.interp(-ratio, -mean / np.sqrt(square), share))


def _agreement(z: Tensor, cell: Tensor, known: Tensor) -> tuple[Tensor, Tensor]:
    """B_st and b_st of the samples z [n, d] in the cells client x label, by the labels that are known; 0 for s = t.

    Returns:
        Two tensors [T, T]; the second one is meaningful where a known cell has two samples.

    """
    counts = torch.bincount(cell, minlength=known.numel()).double().view(known.shape)  # [T, Y]
    sums = z.new_zeros(known.numel(), z.shape[1]).index_add_(0, cell, z).view(*known.shape, -1)
    squares = z.new_zeros(known.numel()).index_add_(0, cell, z.square().sum(dim=1)).view(known.shape)
    means = sums / counts.clamp(min=1)[..., None] * known[..., None]  # [T, Y, d]
    length = means.square().sum(dim=-1)  # [T, Y]
    unbiased = (length * counts**2 - squares) / (counts * (counts - 1)).clamp(min=1) * known  # of |m_ty|^2  [T, Y]
    k = known @ known.T  # [T, T]
    total = torch.matmul(known, means)  # of s, over the labels of both  [T, T, d]
    scale = torch.where(k >= 2, 1 / (k * (k - 1)).clamp(min=1), 0.0).fill_diagonal_(0)
    agreement = k * (means.flatten(1) @ means.flatten(1).T) - (total * total.transpose(0, 1)).sum(dim=-1)
    own = k * (unbiased @ known.T) - total.square().sum(dim=-1) - (unbiased - length) @ known.T
    return agreement * scale, own * scale
