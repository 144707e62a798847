"""Client side of collaboration: each client's gradient at a common model, and the variance of that gradient.

Mestoukirdi, Zecchin, Gesbert, Li, Gresset: "User-Centric Federated Learning", 2021, Section III; equation numbers are
the paper's.
"""

import re
import warnings
from collections.abc import Collection
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedem_lightning.aggregation import Models, all_finite
from fedem_lightning.data.block import Block
from fedem_lightning.data.federation import Federation
from fedem_lightning.data.names import shown
from fedem_lightning.errors import UserError, require
from fedem_lightning.local_solver import Gradient, Learner, LocalStep
from fedem_lightning.models.client_store import ClientStore
from fedem_lightning.randomness import Purpose, fold
from fedem_lightning.rejections import NOT_FINITE, Rejection

if TYPE_CHECKING:
    from fedem_lightning.algorithms.base import FederatedAlgorithm


def compared_parameters(params: Models, pattern: str | None) -> Models:
    """The parameters in whose names the regular expression is found; None: all.

    Raises:
        UserError: `compared` is no regular expression, or is found in no name.

    """
    try:
        kept = {name: rows for name, rows in params.items() if pattern is None or re.search(pattern, name)}
    except re.error as error:
        raise UserError(f"compared: {pattern!r} is no regular expression ({error})") from error
    names = ", ".join(params)
    require(len(kept) > 0, f"compared: {pattern!r} is in no parameter's name; they are {names}")
    return kept


class GradientStep(LocalStep):
    """Adds the gradient of a batch's summed loss to the learner's "total"; the params do not change."""

    def mean_loss(self, losses: Tensor, weight: Tensor, size: Tensor) -> Tensor:
        """The sum of the losses, not their mean: losses and weight [..., B] -> [...]."""
        return (weight * losses).sum(dim=-1) / self.task.n_targets

    def advance(self, learner: Learner, gradient: Gradient) -> None:
        """Adds the gradient and takes no step."""
        for total, g in zip(learner["total"].values(), gradient(learner), strict=True):
            total.add_(g)


def summed_gradients(algorithm: "FederatedAlgorithm", block: Block, compared: Collection[str]) -> Models:
    """The sum of grad l over D_i at component 0, [C, 1, ...], in training mode, computed by the algorithm's engine."""
    theta = {name: rows[:, :1] for name, rows in algorithm.broadcast(block.clients).items()}  # [C, 1, ...]
    zeros = {name: torch.zeros_like(rows) for name, rows in algorithm.params_of(theta).items()}
    step = algorithm.local.step(block, 0, GradientStep)
    trained = algorithm.local.train(theta, block, 0, step=step, extra={"total": zeros}, epochs=1, momentum=None)
    return {name: rows for name, rows in trained["total"].items() if name in compared}


def gradients(
    algorithm: "FederatedAlgorithm",
    block: Block,
    n_parts: int,
    compared: Collection[str],
    explained: Models | None = None,
) -> tuple[Models, Tensor]:
    """Each client's gradient at component 0, and its variance over parts of the client's samples (Eq. 7).

        g_i = (1/n_i) sum over D_i of grad l,    sigma_i^2 = (1/K) sum_k |g_i^k - g_i|^2

    Args:
        algorithm: its engine computes the gradients.
        block: the clients and their samples.
        n_parts: K, disjoint parts of a client's samples, drawn at random, of equal size up to one sample.
        compared: names of the parameters whose gradients are compared.
        explained: mean gradient of each class, subtracted from each sample's gradient; see `class_gradients`.

    Returns:
        g [C, 1, ...] and sigma^2 [C]; sigma^2 is NaN for a client of whose parts all but one are empty.

    """
    counts, part = block.counts(), _parts(block, n_parts, algorithm.seed)
    found, sizes = [], []  # K x [C, 1, ...], K x [C]
    for k in range(n_parts):
        piece = _where(block, part == k)
        found.append(summed_gradients(algorithm, piece, compared))
        sizes.append(piece.counts())
        if explained is not None:
            found[k] = _less(found[k], piece, explained)
    mean = {name: _over(sum(total[name] for total in found), counts) for name in found[0]}
    if explained is not None:
        mean = _without_rounding(
            mean, {name: _over(rows, counts) for name, rows in _explained(block, explained).items()}
        )
    variance, filled = mean_square(found, sizes, mean), sum((size > 0).long() for size in sizes)
    return mean, torch.where(torch.as_tensor(filled) > 1, variance / filled, torch.nan)


def class_gradients(
    algorithm: "FederatedAlgorithm", federation: Federation, clients: Tensor, compared: Collection[str], n_classes: int
) -> Models:
    """The mean gradient of each class's samples at component 0, over all clients; with `n_classes=1` of all samples.

    If all clients had the same x given y, client i's gradient would be sum_y p_i(y) mean_y, p_i its label frequencies.

    Args:
        algorithm, compared: see `gradients`.
        federation, clients: the clients whose training samples are used.
        n_classes: Y, or 1.

    Returns:
        [Y, 1, ...]; 0 for a class without samples. Clients whose gradient is not finite do not count.

    """
    counts, total = torch.zeros(n_classes, dtype=torch.int64, device=clients.device), dict[str, Tensor]()
    for k in range(n_classes):
        for block in algorithm.local.blocks(federation, clients):
            part = _where(block, _kinds(block, n_classes) == k)
            sums = summed_gradients(algorithm, part, compared)
            finite = all_finite(sums)  # [C]
            counts[k] += part.counts()[finite].sum()
            for name, rows in sums.items():
                if name not in total:
                    total[name] = rows.new_zeros(n_classes, *rows.shape[1:])  # [Y, 1, ...]
                total[name][k] += (rows if finite.all() else rows[finite]).sum(dim=0)
    return {name: _over(rows, counts) for name, rows in total.items()}


def known_clients(algorithm: "FederatedAlgorithm", gradients: ClientStore, federation: Federation) -> Tensor:
    """Whether the gradient of each client that trains is known; the others are counted, and named in a warning.

    Args:
        algorithm: it counts the gradients that were rejected.
        gradients: of the newest special round; the row of a client whose gradient is not finite is not written.
        federation: its clients.

    Returns:
        bool [T'].

    Raises:
        UserError: no gradient was finite.

    """
    clients = federation.clients()
    known = gradients.written[clients]
    silent = [shown(federation.names[t]) for t in clients[~known].tolist()]
    require(len(silent) < len(clients), "training stopped: in a special round no client sent a finite gradient")
    rejected = [Rejection(t, NOT_FINITE, "gradient") for t in clients[~known].tolist()]
    algorithm.statistics.rejections.add(algorithm.statistics.rounds + 1, rejected)
    if silent:
        listed = ", ".join(silent[:5]) + ", ..." * (len(silent) > 5)
        said = f"algorithm: gradients of {len(silent)} of {len(clients)} clients are not finite ({listed})"
        warnings.warn(
            f"{said}; these clients' models are excluded from averaging until the next special round", stacklevel=2
        )
    return known


def _explained(piece: Block, means: Models) -> Models:
    """The sum of the mean gradients of the samples' classes, over each client's samples, [C, 1, ...]."""
    n_classes, n_clients = len(next(iter(means.values()))), len(piece.clients)
    pairs = piece.owner * n_classes + _kinds(piece, n_classes)
    each = torch.bincount(pairs, minlength=n_clients * n_classes).view(n_clients, n_classes)  # sample counts, [C, Y]
    return {name: torch.tensordot(each.to(rows), rows, 1) for name, rows in means.items()}


def _less(total: Models, piece: Block, means: Models) -> Models:
    explained = _explained(piece, means)
    return {name: rows - explained[name] for name, rows in total.items()}


def _without_rounding(left: Models, taken: Models) -> Models:
    """`left`, set to 0 for clients where it is only the rounding error of subtracting `taken`; both [C, 1, ...]."""
    eps = torch.finfo(next(iter(left.values())).dtype).eps
    squares, limit = (sum(rows.flatten(1).double().square().sum(dim=1) for rows in m.values()) for m in (left, taken))
    kept = torch.as_tensor(squares > (100 * eps) ** 2 * limit)  # [C]
    return {name: rows * kept.view(-1, *[1] * (rows.ndim - 1)) for name, rows in left.items()}


def _kinds(block: Block, n_classes: int) -> Tensor:
    """The class of each sample, int64 [n]; 0 for all if there is one class."""
    return block.y().long() if n_classes > 1 else torch.zeros_like(block.owner)


def _where(block: Block, mine: Tensor) -> Block:
    return Block(block.federation, block.clients, block.index[mine], block.owner[mine])


def mean_square(found: list[Models], sizes: list[Tensor], mean: Models) -> Tensor:
    """sum_k |g^k - g|^2 over the parts that are not empty, float64 [C]."""
    total = torch.zeros(len(sizes[0]), dtype=torch.float64, device=sizes[0].device)
    for sums, size in zip(found, sizes, strict=True):
        for name, rows in sums.items():
            squares = (_over(rows, size) - mean[name]).flatten(1).double().square().sum(dim=1)
            total += torch.where(size > 0, squares, 0.0)
    return total


def _over(total: Tensor | int, counts: Tensor) -> Tensor:
    """A sum [C, ...] divided by the numbers of samples [C]; 0 for a client without samples."""
    assert isinstance(total, Tensor)
    return total / counts.clamp(min=1).view(-1, *[1] * (total.ndim - 1))


def _parts(block: Block, n_parts: int, seed: int) -> Tensor:
    """The part of each sample, int64 [n]: its client's samples are shuffled and cut into `n_parts`."""
    owner = block.owner
    ranks = block.ranks()
    order = torch.argsort((owner << 32) | fold(seed, Purpose.COLLABORATION, block.keys[owner], ranks), stable=True)
    part = torch.empty_like(owner)
    part[order] = ranks * n_parts // block.counts()[owner]
    return part
