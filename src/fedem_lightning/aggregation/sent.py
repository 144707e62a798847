"""What clients send to the server, and what the server makes of it."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedem_lightning.errors import require

Models = dict[str, Tensor]
"""Stacked models: parameter or buffer name -> tensor with leading axes, [C, M, ...] for a block of learners."""


class Sent(NamedTuple):
    """The updates that the C clients of a block send to the server."""

    models: Models  # [C, M, ...]
    weights: Tensor  # [C], a client's weight in its average, usually its number of samples; or [C, G], in each average
    group: Tensor | None = None  # int64 [C]: the average that a client enters; None: there is one, or it enters all
    n_groups: int = 1  # G, the number of averages where `group` is given
    extras: Models = {}  # further tensors that it sends, by name, each [C, K]: averaged with the same weights
    included: Tensor | None = None  # bool [C, M]: the models that a client sends; the others are those it received

    def of(self, clients: Tensor) -> "Sent":
        """The updates of some of the clients, bool [C]; without a copy if these are all."""
        if bool(clients.all()):
            return self
        models, extras = ({name: rows[clients] for name, rows in part.items()} for part in (self.models, self.extras))
        group = None if self.group is None else self.group[clients]
        included = None if self.included is None else self.included[clients]
        return Sent(models, self.weights[clients], group, self.n_groups, extras, included)


def check_sent(sender: object, sent: Any) -> None:
    """Raises UserError unless `sent`, returned by the `client_update` of `sender`, is Sent or None."""
    kind = type(sender).__name__
    fits = sent is None or isinstance(sent, Sent)
    require(fits, f"{kind}.client_update returned {type(sent).__name__}, expected Sent(models, weights) or None")


class Means(NamedTuple):
    """The averages of G groups."""

    models: Models  # [G M, ...]: group after group, its M models
    heard: Tensor  # bool [G M]: whether any client was in this average; if none was, the model is zero
    weight: Tensor  # float64 [G], the sum of the weights
    extras: Models = {}  # the averages of the clients' extras, [G, ...]


def all_finite(models: Models) -> Tensor:
    """Whether each of the C stacked models is free of NaN and infinity: bool [C].

    Example:
        >>> all_finite({"weight": torch.tensor([[[2.0]], [[float("inf")]]])})
        tensor([ True, False])

    """
    sums = [stack.flatten(1).sum(dim=1) for stack in models.values() if stack.dtype.is_floating_point]
    return torch.stack(sums).isfinite().all(dim=0)  # a sum is finite only if every term is
