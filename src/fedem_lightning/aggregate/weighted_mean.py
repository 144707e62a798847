"""The weighted mean of the clients' updates, accumulated block by block."""

import torch
from torch import Tensor

from fedem_lightning.aggregate.base import Collector, Means, Update, all_finite
from fedem_lightning.models.tensors import Models
from fedem_lightning.state.processes import Processes


class WeightedMean(Collector):
    """sum_t w_t theta_t / sum_t w_t over the clients t that were added (Alg. 1, line 10; w_t = n_t), for each group.

    A client update with a NaN or an infinity is left out. Integer buffers (counters) take the maximum instead: their
    sum or average means nothing.
    """

    def __init__(self) -> None:
        self._weight = torch.zeros(0, dtype=torch.float64)  # [G] once the first block is added
        self._n_models = 1  # M
        self._sums: Models = {}  # [G, M, ...]; of extras [G, ...]
        self._dtypes: dict[str, torch.dtype] = {}
        self._largest: Models = {}  # [G, M, ...]

    def add(self, update: Update, clients: Tensor | None = None) -> Tensor:
        """Adds them; which are finite, bool [C], on the CPU."""
        if self.like is None:
            self._take(update.form())
        update = update._replace(models=update.models | update.extras)
        finite, group, weights = _on_cpu(update)
        if update.weights.ndim == 2:
            self._add_to_all(update, finite, weights)
            return finite
        for g in group.unique().tolist():
            members = finite & (group == g)  # [C]
            everyone = bool(members.all())
            self._weight[g] += float(weights[members].sum())
            rows = members.nonzero().squeeze(1).to(update.weights.device)
            chosen = update.weights if everyone else update.weights[rows]
            for name, stack in update.models.items():
                self._add(g, name, stack if everyone else stack[rows], chosen)
        return finite

    def _add_to_all(self, update: Update, finite: Tensor, on_cpu: Tensor) -> None:
        everyone, rows = bool(finite.all()), finite.nonzero().squeeze(1).to(update.weights.device)
        models = update.models if everyone else {name: stack[rows] for name, stack in update.models.items()}
        weights = update.weights if everyone else update.weights[rows]  # [C, G]
        self._weight += on_cpu[finite].double().sum(dim=0)
        for name, stack in models.items():
            if stack.dtype.is_floating_point and weights.shape[1] > 1:
                totals = self._totals(name, stack)  # [G, M, ...]
                totals.flatten(1).addmm_(weights.T.to(totals), stack.to(totals.dtype).flatten(1))  # in place
                continue
            for g, column in enumerate(weights.T):
                self._add(g, name, stack, column)

    def _totals(self, name: str, stack: Tensor) -> Tensor:
        """The running sums of a tensor, [G, M, ...]."""
        if name not in self._sums:
            at_least_single = torch.promote_types(stack.dtype, torch.float32)
            shape = (len(self._weight), *stack.shape[1:])
            self._sums[name] = stack.new_zeros(shape, dtype=at_least_single)
            self._dtypes[name] = stack.dtype
        return self._sums[name]

    def _add(self, g: int, name: str, stack: Tensor, weights: Tensor) -> None:
        if stack.dtype.is_floating_point:
            total = self._totals(name, stack)[g].view(-1)
            total.addmv_(stack.to(total.dtype).flatten(1).T, weights.to(total))  # in place
            return
        largest = self._largest.setdefault(name, stack.new_zeros(len(self._weight), *stack.shape[1:]))
        if len(stack):
            largest[g] = torch.maximum(largest[g], stack.amax(dim=0))

    def _take(self, like: Update) -> None:
        self.like = like
        self._weight = torch.zeros(like.n_averages, dtype=torch.float64)
        self._n_models = next(iter(like.models.values())).shape[1]

    def adopt(self, like: Update, device: torch.device) -> None:
        """Takes the form of another process's updates."""
        self._take(like)
        for name, stack in (like.models | like.extras).items():
            if stack.dtype.is_floating_point:
                self._totals(name, stack.to(device))
            else:
                self._largest[name] = stack.new_zeros(len(self._weight), *stack.shape[1:], device=device)

    def reduce(self, processes: Processes) -> None:
        """Adds the sums of the other processes."""
        if self.like is None or not self._sums or processes.size == 1:
            return
        device = next(iter(self._sums.values())).device
        weight = self._weight.to(device)
        processes.sum([weight, *self._sums.values()])
        processes.maximum(self._largest.values())
        self._weight = weight.cpu()

    def compute(self) -> Means | None:
        """The averages; None if no update is left."""
        if self.like is None or not self._sums or not self._weight.any():
            return None
        models: Models = {}
        for name, sums in self._sums.items():
            weight = self._weight.to(sums).view(-1, *[1] * (sums.ndim - 1))  # [G, 1, ...]
            mean = torch.where(weight > 0, sums / weight, 0.0) if (self._weight == 0).any() else sums / weight
            models[name] = mean.to(self._dtypes[name])
        extras = {name: models.pop(name) for name in self.like.extras}
        nonempty = (self._weight > 0).repeat_interleave(self._n_models)
        models = {name: t.flatten(0, 1) for name, t in (models | self._largest).items()}
        return Means(models, nonempty, self._weight, extras)


def _on_cpu(update: Update) -> tuple[Tensor, Tensor, Tensor]:
    """Which clients' updates are finite, their groups, and their weights, each [C, ...]: in one copy from a GPU."""
    finite = all_finite(update.models)  # [C]
    group = torch.zeros_like(finite, dtype=torch.int64) if update.group is None else update.group
    columns = [finite.double().unsqueeze(1), group.double().unsqueeze(1), update.weights.double().view(len(finite), -1)]
    result = torch.cat(columns, dim=1).cpu()  # [C, 2 + G]
    weights = result[:, 2:].to(update.weights.dtype).view(update.weights.shape)
    return result[:, 0].bool(), result[:, 1].long(), weights
