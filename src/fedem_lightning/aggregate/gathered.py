"""All updates of a cohort as rows, for rules that look at them together."""

from collections.abc import Collection

import torch
from torch import Tensor

from fedem_lightning.aggregate.base import Aggregation, Collector, Means, RoundContext, Update, all_finite
from fedem_lightning.models.tensors import Models
from fedem_lightning.settings.errors import require
from fedem_lightning.state.processes import Processes


class Robust(Aggregation):
    """A rule that needs all updates of the cohort at once, as rows. Default: the weighted mean."""

    clips = False  # whether updates are shortened (`scales`)
    weighted = True  # whether clients count by their weights; False: alike

    def begin(self, context: RoundContext) -> Collector:
        """Collects the updates as rows."""
        return Gathered(self, context.cohort, context.parameters)

    def scales(self, norms: Tensor) -> Tensor:
        """Factors in (0, 1] by which updates are shortened, [C, M], from their lengths [C, M]; see `clips`."""
        return torch.ones_like(norms)

    def choose(self, parts: list[Tensor], weights: Tensor) -> Tensor:
        """The weights that n clients of a group have in one component, [n]; 0: left out. Default: their own.

        `parts` are the tensors of the component, each [n, F], `weights` float64 [n], above 0.
        """
        return weights

    def combine(self, values: Tensor, weights: Tensor) -> Tensor:
        """One value for each column of `values` [n, F], from weights float64 [n]: [F]. Default: the weighted mean."""
        shares = (weights / weights.sum()).to(values)
        return values.T @ shares


class Gathered(Collector):
    """Collects the updates of a cohort, and combines them by a rule: N rows for a cohort of N clients.

    The memory is that of N updates; with several processes each of them holds the rows of all. An update with a NaN or
    an infinity is left out. Integer buffers (counters) take the maximum. `cohort` and `parameters`: see `RoundContext`.
    """

    def __init__(self, rule: Robust, cohort: Tensor, parameters: Collection[str]) -> None:
        self.rule, self.cohort, self.parameters = rule, cohort, set(parameters)
        self._parts: list[tuple[Tensor, Update]] = []  # positions in the cohort, int64 [C], and finite updates
        self._models: Models = {}  # [N, M, ...]
        self._extras: Models = {}  # [N, K]
        self._weights = torch.zeros(0, 0, dtype=torch.float64)  # [N, G]; 0: the client is not in this average

    def add(self, update: Update, clients: Tensor | None = None) -> Tensor:
        """Keeps the finite updates of a batch's clients."""
        assert clients is not None
        alike = (
            f"aggregation: {type(self.rule).__name__} counts clients alike, the method has weights for each receiver"
        )
        require(self.rule.weighted or update.weights.ndim == 1, f"{alike}; use norm_clipping or multi_krum")
        self.like = self.like or update.form()
        finite = all_finite(update.models | update.extras)  # [C]
        kept = update.of(finite)
        kept = kept if self.rule.clips else kept._replace(start={})  # which takes memory
        self._parts.append((torch.searchsorted(self.cohort, clients[finite]), kept))
        return finite

    def reduce(self, processes: Processes) -> None:
        """Gives every process the rows of all."""
        if self.like is None:
            return
        self._weights = self._weights_of_all(self.like.n_averages, processes)
        if self.rule.clips:
            norms = torch.zeros(len(self.cohort), _n_models(self.like.models), dtype=torch.float64)
            norms = norms.to(self.cohort.device)  # the lengths of all updates by component [N, M]
            for rows, update in self._parts:
                norms[rows] = update_norms(update, self.parameters)
            processes.sum([norms])
            came, scales = self._weights.sum(dim=1) > 0, torch.ones_like(norms)  # [N], [N, M]
            scales[came] = self.rule.scales(norms[came])
            self._parts = [(rows, _shortened(update, scales[rows])) for rows, update in self._parts]
        self._models = self._rows(self.like.models, [update.models for _, update in self._parts], processes)
        self._extras = self._rows(self.like.extras, [update.extras for _, update in self._parts], processes)
        self._parts = []

    def _weights_of_all(self, n_averages: int, processes: Processes) -> Tensor:
        """Each client's weight in each average, float64 [N, G]."""
        weights = torch.zeros(len(self.cohort), n_averages, dtype=torch.float64, device=self.cohort.device)
        for rows, update in self._parts:
            if update.weights.ndim == 2:
                weights[rows] = update.weights.to(weights)
            else:
                group = torch.zeros_like(rows) if update.group is None else update.group
                weights[rows, group] = update.weights.to(weights)
        processes.sum([weights])
        return weights

    def _rows(self, like: Models, blocks: list[Models], processes: Processes) -> Models:
        """One row for each client of the cohort, [N, ...]; zeros where none is left."""
        n, device = len(self.cohort), self.cohort.device
        result = {name: stack.new_zeros(n, *stack.shape[1:], device=device) for name, stack in like.items()}
        for (rows, _), block in zip(self._parts, blocks, strict=True):
            for name, stack in block.items():
                result[name][rows] = stack
        processes.sum(result.values())
        return result

    def compute(self) -> Means | None:
        """The rule's averages; None if no update is left."""
        if self.like is None or not (self._weights > 0).any():
            return None
        n_models, n_groups = _n_models(self._models), self._weights.shape[1]
        models = {name: rows.new_zeros(n_groups, *rows.shape[1:]) for name, rows in self._models.items()}
        extras = {name: rows.new_zeros(n_groups, *rows.shape[1:]) for name, rows in self._extras.items()}
        with torch.autocast(self.cohort.device.type, enabled=False):  # it would round the averages
            for g, column in enumerate(self._weights.T):
                members = column.nonzero().squeeze(1)
                if not len(members):
                    continue
                weights = column[members] if self.rule.weighted else torch.ones_like(column[members])
                for m in range(n_models):
                    parts = {name: rows[members, m].reshape(len(members), -1) for name, rows in self._models.items()}
                    for name, row in self._combined(parts, parts, weights).items():
                        models[name][g, m] = row.view(models[name].shape[2:])
                whole = {name: rows[members].flatten(1) for name, rows in self._models.items()} if extras else {}
                sides = {name: rows[members] for name, rows in self._extras.items()}
                for name, row in self._combined(sides, whole, weights).items():
                    extras[name][g] = row
        weight = self._weights.sum(dim=0).cpu()
        nonempty = (weight > 0).repeat_interleave(n_models)
        return Means({name: t.flatten(0, 1) for name, t in models.items()}, nonempty, weight, extras)

    def _combined(self, values: Models, judged: Models, weights: Tensor) -> Models:
        """The rule's value for each column of `values` [n, F], by the weights that the rule gives for `judged`."""
        if not values:
            return {}
        chosen = self.rule.choose([rows for rows in judged.values() if rows.is_floating_point()], weights)
        kept = chosen > 0
        return {
            name: self.rule.combine(rows[kept], chosen[kept]) if rows.is_floating_point() else rows[kept].amax(dim=0)
            for name, rows in values.items()
        }


def update_norms(update: Update, parameters: Collection[str]) -> Tensor:
    """|theta_t - theta| over the trained parameters by component: float64 [C, M]."""
    models, start = update.models, update.start
    differences = [models[name].double() - start[name].double() for name in models if name in parameters]
    return torch.stack([d.reshape(*d.shape[:2], -1).square().sum(dim=2) for d in differences]).sum(dim=0).sqrt()


def _n_models(models: Models) -> int:
    return next(iter(models.values())).shape[1]


def _shortened(update: Update, scales: Tensor) -> Update:
    """The updates times `scales` [C, M]: theta + s (theta_t - theta), of parameters and float buffers."""
    models = dict(update.models)
    for name, rows in update.models.items():
        if rows.is_floating_point():
            scale = scales.to(rows).view(*scales.shape, *[1] * (rows.ndim - 2))
            models[name] = torch.where(scale < 1, update.start[name].lerp(rows, scale), rows)
    return update._replace(models=models)
