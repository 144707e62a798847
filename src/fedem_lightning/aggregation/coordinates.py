"""The median and the trimmed mean of each coordinate, with and without weights."""

import numpy as np
import torch
from torch import Tensor


def weighted_median(values: Tensor, weights: Tensor) -> Tensor:
    """The median of each column: values [n, F], weights float64 [n], above 0 -> [F].

    With equal weights it is the usual median, the middle of two for even n.

    Example:
        >>> values = torch.tensor([[1.0], [9.0], [2.0]])
        >>> weighted_median(values, torch.tensor([1.0, 1.0, 1.0], dtype=torch.float64))
        tensor([2.])
        >>> weighted_median(values, torch.tensor([1.0, 5.0, 1.0], dtype=torch.float64))
        tensor([9.])

    """
    n = len(values)
    if _are_equal(weights):
        ordered = _sorted(values)
        return ordered[:, (n - 1) // 2].lerp(ordered[:, n // 2], 0.5)
    ordered, each = _sorted_with(values, weights)
    below, half = each.cumsum(dim=1), weights.sum() / 2  # the weight up to and with each value  [F, n]
    lower = (below < half * (1 - 1e-12)).sum(dim=1, keepdim=True)
    upper = (below <= half * (1 + 1e-12)).sum(dim=1, keepdim=True).clamp(max=n - 1)
    return ordered.gather(1, lower).lerp(ordered.gather(1, upper), 0.5).squeeze(1)


def trimmed_mean(values: Tensor, weights: Tensor, trim: float) -> Tensor:
    """The mean of each column without a share `trim` at each end: values [n, F], weights float64 [n] -> [F].

    With equal weights whole values are left out: floor(trim n) at each end.

    Example:
        >>> values = torch.tensor([[1.0], [9.0], [2.0], [4.0]])
        >>> trimmed_mean(values, torch.ones(4, dtype=torch.float64), 0.25)
        tensor([3.])

    """
    n = len(values)
    if _are_equal(weights):
        cut = int(trim * n + 1e-9)
        return _sorted(values)[:, cut : n - cut].mean(dim=1)
    ordered, each = _sorted_with(values, weights)
    end, total = each.cumsum(dim=1), weights.sum()
    kept = (end.clamp(max=(1 - trim) * total) - (end - each).clamp(min=trim * total)).clamp(min=0.0)  # of each weight
    return ((kept / kept.sum(dim=1, keepdim=True)) * ordered).sum(dim=1).to(values)


def _are_equal(weights: Tensor) -> bool:
    return bool((weights == weights[0]).all())


def _sorted(values: Tensor) -> Tensor:
    """The values [n, F] of each column in ascending order, [F, n]."""
    rows = values.T.contiguous()
    if rows.device.type == "cpu" and rows.dtype in (torch.float32, torch.float64):
        return torch.from_numpy(np.sort(rows.numpy(), axis=1))  # four times as fast as torch, which sorts indices too
    return rows.sort(dim=1).values


def _sorted_with(values: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """The values [n, F] of each column in ascending order, and their weights: [F, n] each."""
    ordered, order = values.T.contiguous().sort(dim=1)
    return ordered, weights[order]
