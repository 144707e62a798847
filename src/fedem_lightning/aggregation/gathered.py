"""All updates of a cohort as rows, for aggregations that look at them together."""

from collections.abc import Collection
from typing import NamedTuple

import torch
from torch import Tensor

from fedem_lightning.aggregation.base import Aggregation, Collector, Means, Models, Sent, all_finite
from fedem_lightning.aggregation.weighted_mean import form_of, n_averages
from fedem_lightning.processes import Processes


class Part(NamedTuple):
    """The finite updates of a block."""

    rows: Tensor  # int64 [C], positions of the clients in the cohort
    sent: Sent
    received: Models  # [C, M, ...]; empty if nobody needs them


class Gathered(Collector):
    """Collects the updates of a cohort, and combines them by a rule: N rows for a cohort of N clients.

    The memory is that of N updates; with several processes each of them holds the rows of all. An update with a NaN or
    an infinity is left out and counted in `rejected`. Integer buffers (counters) take the maximum.

    Args:
        rule: combines the rows.
        cohort: clients that may send, int64 [N], ascending.
        parameters: names of the trained parameters, over which an update's length is measured.

    """

    def __init__(self, rule: Aggregation, cohort: Tensor, parameters: Collection[str]) -> None:
        self.rule, self.cohort, self.parameters, self.rejected = rule, cohort, set(parameters), 0
        self.needs_received = rule.clips or rule.max_norm_ratio is not None
        self._parts: list[Part] = []
        self._models: Models = {}  # [N, M, ...]
        self._extras: Models = {}  # [N, K]
        self._weights = torch.zeros(0, 0, dtype=torch.float64)  # [N, G]; 0: the client is not in this average

    def add(self, sent: Sent, clients: Tensor | None = None, received: Models | None = None) -> Tensor:
        """Keeps the finite updates of a block's clients."""
        assert clients is not None
        self._like = self._like or form_of(sent)
        finite = all_finite(sent.models | sent.extras)  # [C]
        self.rejected += int((~finite).sum())
        kept = {name: rows[finite] for name, rows in (received or {}).items()}
        self._parts.append(Part(torch.searchsorted(self.cohort, clients[finite]), sent.of(finite), kept))
        return finite

    def reduce(self, processes: Processes) -> Tensor:
        """Gives every process the rows of all; returns the clients whose updates are too long."""
        if self._like is None:
            return self.cohort[:0]
        norms = self._norms(processes)  # [N, M]
        self._weights = self._weights_of_all(processes)
        sent = self._weights.sum(dim=1) > 0  # [N]
        long = torch.zeros_like(sent)
        if self.rule.max_norm_ratio is not None:
            total = norms.square().sum(dim=1).sqrt()
            limit = self.rule.max_norm_ratio * middle(total[sent])
            long = sent & (total > limit)
            self._weights[long] = 0.0
        if self.rule.clips:
            kept = sent & ~long
            scales = torch.ones_like(norms)
            scales[kept] = self.rule.scales(norms[kept])
            self._parts = [_shortened(part, scales[part.rows]) for part in self._parts]
        self._models = self._rows(self._like.models, [part.sent.models for part in self._parts], processes)
        self._extras = self._rows(self._like.extras, [part.sent.extras for part in self._parts], processes)
        self._parts = []
        return self.cohort[long]

    def _norms(self, processes: Processes) -> Tensor:
        """The lengths of all updates by component, float64 [N, M]; zeros if nobody needs them."""
        assert self._like is not None
        n_models = next(iter(self._like.models.values())).shape[1]
        norms = torch.zeros(len(self.cohort), n_models, dtype=torch.float64, device=self.cohort.device)
        if self.needs_received:
            for part in self._parts:
                norms[part.rows] = update_norms(part.sent.models, part.received, self.parameters)
            processes.sum([norms])
        return norms

    def _weights_of_all(self, processes: Processes) -> Tensor:
        """Each client's weight in each average, float64 [N, G]."""
        assert self._like is not None
        shape = len(self.cohort), n_averages(self._like)
        weights = torch.zeros(shape, dtype=torch.float64, device=self.cohort.device)
        for part in self._parts:
            given = part.sent.weights.to(weights)
            if given.ndim == 2:
                weights[part.rows] = given
            else:
                group = torch.zeros_like(part.rows) if part.sent.group is None else part.sent.group
                weights[part.rows, group] = given
        processes.sum([weights])
        return weights

    def _rows(self, like: Models, blocks: list[Models], processes: Processes) -> Models:
        """One row for each client of the cohort, [N, ...]; zeros where none is left."""
        n, device = len(self.cohort), self.cohort.device
        found = {name: stack.new_zeros(n, *stack.shape[1:], device=device) for name, stack in like.items()}
        for part, block in zip(self._parts, blocks, strict=True):
            for name, stack in block.items():
                found[name][part.rows] = stack
        processes.sum(rows for rows in found.values())
        return found

    def compute(self) -> Means | None:
        """The rule's averages; None if no update is left."""
        if not (self._weights > 0).any():
            return None
        n_models, n_groups = next(iter(self._models.values())).shape[1], self._weights.shape[1]
        shapes = {name: rows.shape[2:] for name, rows in self._models.items()}
        models = {name: rows.new_zeros(n_groups, *rows.shape[1:]) for name, rows in self._models.items()}
        extras = {name: rows.new_zeros(n_groups, *rows.shape[1:]) for name, rows in self._extras.items()}
        assert self._like is not None
        weighted = self.rule.weighted or self._like.weights.ndim == 2
        with torch.autocast(self.cohort.device.type, enabled=False):  # it would round the averages
            for g, column in enumerate(self._weights.T):
                members = column.nonzero().squeeze(1)
                if not len(members):
                    continue
                weights = column[members] if weighted else torch.ones_like(column[members])
                for m in range(n_models):
                    parts = {name: rows[members, m].reshape(len(members), -1) for name, rows in self._models.items()}
                    for name, row in self._combined(parts, parts, weights).items():
                        models[name][g, m] = row.view(shapes[name])
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


def update_norms(models: Models, received: Models, parameters: Collection[str]) -> Tensor:
    """|theta_t - theta| over the trained parameters by component: models, received [C, M, ...] -> float64 [C, M]."""
    differences = [models[name].double() - received[name].double() for name in models if name in parameters]
    return torch.stack([d.reshape(*d.shape[:2], -1).square().sum(dim=2) for d in differences]).sum(dim=0).sqrt()


def middle(values: Tensor) -> float:
    """The median of the values that are not 0; infinity if there are none, so that no limit follows from it."""
    values = values[values > 0]
    return float(values.quantile(0.5)) if len(values) else float("inf")


def _shortened(part: Part, scales: Tensor) -> Part:
    """The updates times `scales` [C, M]: theta + s (theta_t - theta), of parameters and float buffers."""
    models = dict(part.sent.models)
    for name, start in part.received.items():
        stack = models[name]
        if stack.is_floating_point():
            scale = scales.to(stack).view(*scales.shape, *[1] * (stack.ndim - 2))
            models[name] = torch.where(scale < 1, start.lerp(stack, scale), stack)
    return part._replace(sent=part.sent._replace(models=models))
