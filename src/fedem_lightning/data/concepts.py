"""How much the meaning of labels differs between clients, estimated from training samples before any training."""

import torch
from torch import Tensor

from fedem_lightning.data.federation import Federation
from fedem_lightning.data.samples import Windows
from fedem_lightning.randomness import Purpose, generator
from fedem_lightning.tasks import Regression

DIMENSION = 64
"""Dimensions of the random projection in which samples are compared."""
MOST_CLIENTS = 300
"""Number of clients that are compared at most; of more, so many are drawn."""


def concept_difference(federation: Federation) -> float | None:
    """The share of pairs of clients that disagree about what samples of a label look like; an estimate.

    Let z be a random projection of a sample, less the mean. For two clients s and t, B_st is by how much the inner
    product of z between their samples of the same label exceeds that between samples of different labels. If a share P
    of the pairs agrees, with the same expectation of B_st, and the others have the expectation 0, then P is
    (mean B)^2 / mean B^2. With groups of clients of the shares p_g, each with its own permutation of the labels, the
    result 1 - P is 1 - sum_g p_g^2. B^2 is estimated without bias, by the product of B from two halves of the samples.

    Returns:
        The estimate in [0, 1], from the training samples of the seen clients; None where samples have no classes or
        where labels tell nothing about z.

    """
    samples = federation.samples
    if isinstance(federation.task, Regression) or isinstance(samples, Windows):
        return None
    clients = federation.clients()
    if len(clients) > MOST_CLIENTS:
        drawn = generator(0, Purpose.SUBSAMPLE).choice(len(clients), MOST_CLIENTS, replace=False)
        clients = clients[torch.from_numpy(drawn).to(clients.device)].sort().values
    block, n_classes = federation.block(clients, "train"), getattr(federation.task, "n_classes", 2)
    in_features = int(torch.tensor(samples.in_shape).prod())
    projection = torch.randn(in_features, DIMENSION, generator=torch.Generator().manual_seed(0)) / in_features**0.5
    z = torch.cat([piece.x(torch.float32).flatten(1) @ projection for piece in block.pieces()]).double()  # [n, d]
    z -= z.mean(dim=0)
    half = block.ranks() % 2
    cell = (half * len(clients) + block.owner) * n_classes + block.y()
    cells = (2, len(clients), n_classes)
    sums = z.new_zeros(cells[0] * cells[1] * cells[2], DIMENSION).index_add_(0, cell, z).view(*cells, DIMENSION)
    counts = torch.bincount(cell, minlength=len(sums.flatten(0, 2))).double().view(cells)
    first, second = (_excess(sums[h], counts[h]) for h in (0, 1))  # B_st of the halves  [T, T]
    both = _excess(sums.sum(dim=0), counts.sum(dim=0))
    known = first.isfinite() & second.isfinite() & both.isfinite() & ~torch.eye(len(clients), dtype=torch.bool)
    square = float((first * second)[known].mean())  # NaN without a pair
    return 1 - min(1.0, float(both[known].mean()) ** 2 / square) if square > 0 else None


def _excess(sums: Tensor, counts: Tensor) -> Tensor:
    """B [T, T] from the sums of z [T, Y, d] and the numbers of samples [T, Y]; not finite without common labels."""
    same, n_same = sums.flatten(1) @ sums.flatten(1).T, counts @ counts.T
    every, n_every = sums.sum(dim=1) @ sums.sum(dim=1).T, torch.outer(counts.sum(dim=1), counts.sum(dim=1))
    return same / n_same - (every - same) / (n_every - n_same)
