"""The weighted local solver of clients; `optimizers` take its steps.

A local step is written for ONE learner (one model on one client's data); the engine runs it for many learners.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fedem_lightning.aggregate import Models
from fedem_lightning.data.samples import Inputs
from fedem_lightning.data.tasks import Loss, Task
from fedem_lightning.local.optimizers import ClientOptimizer
from fedem_lightning.models.backbones.layers import padded_norms
from fedem_lightning.models.components import dropout_keys
from fedem_lightning.models.tensors import call_with

Learner = dict[str, Models]
"""A learner's state: "params", "buffers" and "momentum", each name -> tensor (with leading axes where stacked).

"momentum" is what the client optimiser remembers of its steps (`ClientOptimizer.init`).

An algorithm's own step may have more entries, e.g. "anchor" for a proximal term."""

Gradient = Callable[..., list[Tensor]]
"""`gradient(learner)`: the gradient of the step's loss at the learner's params, in their order; it updates the buffers.
`gradient(learner, 1, 3)`: the same on the second of three disjoint parts of the batch, which are every third
sample; zeros if that part is empty."""


@dataclass(frozen=True)
class LocalStep:
    """theta <- theta - lr grad (1 / |I|) sum_{i in I} q_i l(h_theta(x_i), y_i)   (Alg. 2, LocalSolver).

    The sum over the batch I is divided by its number of samples, not by the sum of the weights q, so that learning
    rates are comparable with FedAvg's and the objective is Eq. 10. A sequence's loss is divided by its number of
    targets, a constant that does not change the minimiser.
    """

    backbone: nn.Module
    task: Loss
    optimizer: ClientOptimizer
    lr: float

    @property
    def gradients(self) -> float:
        """The gradients of each sample that a step takes; they are counted as work."""
        return 1

    @functools.cached_property
    def key_names(self) -> list[str]:
        """Names of the buffers that hold dropout keys; empty without dropout."""
        return dropout_keys(self.backbone)

    @functools.cached_property
    def size_names(self) -> list[str]:
        """Names of the buffers that hold the number of real samples; empty without BatchNorm."""
        return [f"{name}.size" if name else "size" for name in padded_norms(self.backbone)]

    def outputs(self, params: Models, buffers: Models, x: Inputs, size: Tensor, key: Tensor) -> tuple[Tensor, Models]:
        """The outputs [B, ...] of ONE learner for a batch x [B, ...], and its buffers afterwards; see `objective`."""
        buffers = {name: buffer.clone() for name, buffer in buffers.items()}  # a forward may change them
        keys = dict.fromkeys(self.key_names, key) | dict.fromkeys(self.size_names, size)
        return call_with(self.backbone, {**params, **buffers, **keys}, x), buffers

    def objective(
        self, params: Models, buffers: Models, x: Inputs, y: Tensor, weight: Tensor, size: Tensor, key: Tensor
    ) -> tuple[Tensor, Models]:
        """The weighted loss of ONE learner on a batch: x [B, ...], y [B], weight [B]; and its buffers afterwards.

        `size` [] is the number of real samples (padding has weight 0); `key` [] sets the dropout masks. A step may
        override it for a network with a layer of its own: networks of linear layers alone are stacked without it.
        """
        outputs, buffers = self.outputs(params, buffers, x, size, key)
        return self.mean_loss(self.task.losses(outputs, y), weight, size), buffers

    def mean_loss(self, losses: Tensor, weight: Tensor, size: Tensor) -> Tensor:
        """The mean loss (1 / |I|) sum_{i in I} q_i l_i: losses and weight [..., B], size [...] -> [...]."""
        return (weight * losses).sum(dim=-1) / (size * self.task.n_targets)

    def advance(self, learner: Learner, gradient: Gradient) -> None:
        """Takes the step in place; an algorithm with another step overrides it.

        It is written for one learner and must also work for a stack: element by element, or along trailing axes.
        """
        self.optimizer.descend(learner, gradient(learner), self.lr)


@dataclass(frozen=True)
class ProximalStep(LocalStep):
    """A local step on F(theta) + (mu / 2) |theta - anchor|^2 over the tensors in the learner's "anchor"."""

    mu: float

    def advance(self, learner: Learner, gradient: Gradient) -> None:
        """The gradient is g + mu (theta - anchor)."""
        params, anchor = learner["params"], learner["anchor"]
        held = [name for name in params if name in anchor]
        if not held:  # what is held does not train here
            return super().advance(learner, gradient)
        grads = dict(zip(params, gradient(learner), strict=True))
        away = torch._foreach_sub([params[name] for name in held], [anchor[name] for name in held])
        pulled = torch._foreach_add([grads[name] for name in held], away, alpha=self.mu)
        self.optimizer.descend(learner, list((grads | dict(zip(held, pulled, strict=True))).values()), self.lr)


class Step:
    """A local step of a method's own, for `local_sgd`: its class, and what that needs beside the model.

    Args:
        kind: the class, whose further fields are `numbers`.
        tensors: what a learner carries beside "params", "buffers" and "momentum", each {name: [C, M, ...]}. After the
            training `after` has them as the steps have changed them.
        loss: makes the loss of the step from the task's; None: it is the task's.

    """

    def __init__(
        self,
        kind: type[LocalStep],
        tensors: Learner | None = None,
        loss: Callable[[Any], Loss] | None = None,
        **numbers: Any,
    ) -> None:
        self.kind, self.tensors, self.loss, self.numbers = kind, tensors or {}, loss, numbers
        self.after: Learner = {}

    def made(self, network: nn.Module, task: Task, optimizer: ClientOptimizer, lr: float) -> LocalStep:
        """The step for a network, at a learning rate."""
        return self.kind(network, task if self.loss is None else self.loss(task), optimizer, lr, **self.numbers)


def near(w: Models, mu: float) -> Step:
    """A step on F(theta) + (mu / 2) |theta - w|^2; w are models [C, M, ...], or some of their tensors (FedProx)."""
    return Step(ProximalStep, {"anchor": w}, mu=mu)


class GradientStep(LocalStep):
    """Adds the gradient of a batch's summed loss to the learner's "total"; the params do not change."""

    def mean_loss(self, losses: Tensor, weight: Tensor, size: Tensor) -> Tensor:
        """The sum of the losses, not their mean: losses and weight [..., B] -> [...]."""
        return (weight * losses).sum(dim=-1) / self.task.n_targets

    def advance(self, learner: Learner, gradient: Gradient) -> None:
        """Adds the gradient and takes no step."""
        torch._foreach_add_(list(learner["total"].values()), gradient(learner))


@dataclass(frozen=True)
class Batches:
    """The batches of a block's C clients: E passes over each client's samples, in a new order, in batches of B.

    Batch j of pass e has the first `min(B, counts[c] - j B)` positions of `order[e, starts[c] + j B:]`. It belongs to
    the client's step e ceil(counts[c] / B) + j. In the last pass `last` stands for `counts`.
    """

    order: Tensor  # int64 [E, n]: positions in the block's flat samples, client after client
    counts: Tensor  # int64 [C], number of samples of each client, on the CPU
    last: Tensor  # int64 [C], of how many of them the last pass consists, on the CPU
    size: int  # B
    keys: Tensor  # int64 [C], functions of (seed, round, client), for dropout
    limit: int = 2**62  # largest number of steps of each client


def visits(counts: Tensor, epochs: float) -> Tensor:
    """Visits of samples in `epochs` passes over `counts` [C] samples, int64 [C]; a part of a sample counts as one."""
    return (epochs * counts.double() - 1e-6).ceil().long()  # 0.1 x 30 is a little more than 3
