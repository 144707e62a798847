"""The server's weighted average of the clients' models, accumulated block by block."""

import torch
from torch import Tensor

from fedem_lightning.processes import Processes

Models = dict[str, Tensor]
"""Stacked models: parameter or buffer name -> tensor with leading axes, [C, M, ...] for a block of learners."""


class WeightedMean:
    """sum_t w_t theta_t / sum_t w_t over the clients t that were added (Alg. 1, line 10; w_t = n_t).

    A client whose model is not finite is left out, and counted in `rejected`. Integer buffers (counters) take the
    maximum instead: summing or averaging them means nothing.
    """

    def __init__(self) -> None:
        self.total = 0.0
        self.rejected = 0
        self._sums: Models = {}
        self._dtypes: dict[str, torch.dtype] = {}
        self._largest: Models = {}

    def add(self, models: Models, weights: Tensor) -> None:
        """Adds the models of C clients, each tensor [C, ...], with weights [C]."""
        finite = all_finite(models)  # [C]
        everyone = bool(finite.all())
        self.rejected += int((~finite).sum())
        self.total += float(weights[finite].sum())
        for name, stack in models.items():
            if stack.dtype.is_floating_point:
                if name not in self._sums:
                    at_least_single = torch.promote_types(stack.dtype, torch.float32)
                    self._sums[name] = stack.new_zeros(stack.shape[1:], dtype=at_least_single)
                    self._dtypes[name] = stack.dtype
                kept, stack = (weights, stack) if everyone else (weights[finite], stack[finite])
                total = self._sums[name]
                total.view(-1).addmv_(stack.to(total.dtype).flatten(1).T, kept.to(total))  # in place
            else:
                largest = stack.amax(dim=0)
                self._largest[name] = torch.maximum(self._largest.get(name, largest), largest)

    def reduce(self, processes: Processes) -> None:
        """Adds what the other processes have added; each has added something, or none has."""
        if not self._sums:
            return
        device = next(iter(self._sums.values())).device
        counts = torch.tensor([self.total, self.rejected], dtype=torch.float64, device=device)
        processes.sum([counts, *self._sums.values()])
        processes.maximum(self._largest.values())
        self.total, self.rejected = float(counts[0]), int(counts[1])

    def compute(self) -> Models | None:
        """The mean, each tensor without the client axis; None if no client was kept."""
        if self.total == 0.0:
            return None
        means = {name: (summed / self.total).to(self._dtypes[name]) for name, summed in self._sums.items()}
        return means | self._largest


def all_finite(models: Models) -> Tensor:
    """Which of the C stacked models have no NaN and no infinity: bool [C]."""
    sums = [stack.flatten(1).sum(dim=1) for stack in models.values() if stack.dtype.is_floating_point]
    return torch.stack(sums).isfinite().all(dim=0)  # a sum is finite only if every term is
