"""The weighted local solver: what a client does to a model it was given.

A step is written for ONE learner (one model on one client's data); the engine runs it over many.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedem_lightning.aggregation import Models
from fedem_lightning.data.federation import Block
from fedem_lightning.errors import require, require_number
from fedem_lightning.models.components import dropout_keys
from fedem_lightning.randomness import Purpose, fold
from fedem_lightning.schedules import SCHEDULES
from fedem_lightning.tasks import Task

Learner = dict[str, Models]
"""A learner's state: "params", "buffers" and "momentum", each name -> tensor (with leading axes where stacked).

A method's own step may carry more, e.g. "anchor" of a proximal term."""

Gradient = Callable[[Learner], list[Tensor]]
"""The gradient of the step's loss at a learner's params, in their order; the learner's buffers move on in place."""


@dataclass(frozen=True)
class ClientSGD:
    """SGD of the clients, as torch.optim.SGD computes it (momentum without dampening, weight decay in the gradient).

    Args:
        lr: learning rate.
        momentum: in [0, 1).
        weight_decay: L2 penalty, 0 or more.
        state: "restart": momentum starts at zero every round; "keep": it stays with the client (memory T x M x D).
        schedule: of the learning rate over rounds: "constant", "multistep" (a tenth at 1/2 and at 3/4), "cosine".

    """

    lr: float = 0.1
    momentum: float = 0.0
    weight_decay: float = 0.0
    state: str = "restart"
    schedule: str = "constant"

    def __post_init__(self) -> None:
        where = "algorithm.client_optimizer"
        require_number(f"{where}.lr", self.lr, above=0)
        require_number(f"{where}.momentum", self.momentum, at_least=0, below=1)
        require_number(f"{where}.weight_decay", self.weight_decay, at_least=0)
        require(self.state in ("restart", "keep"), f"{where}.state: expected restart or keep, got {self.state}")
        require(
            self.schedule in SCHEDULES, f"{where}.schedule: expected one of {', '.join(SCHEDULES)}, got {self.schedule}"
        )

    def lr_at(self, round_: int, n_rounds: int) -> float:
        """Learning rate of round `round_` (from 0) of `n_rounds`; after them, where unseen clients train, the first."""
        done = round_ / n_rounds if round_ < n_rounds else 0.0
        return self.lr * SCHEDULES[self.schedule](done)

    def descend(self, learner: Learner, grads: list[Tensor], lr: float) -> None:
        """One step in place, element by element: alike for one learner and for a stack of them.

        Args:
            learner: its "params" and "momentum" are changed.
            grads: of the params, in their order.
            lr: learning rate.

        """
        params, momentum = list(learner["params"].values()), list(learner["momentum"].values())
        if self.weight_decay:
            grads = list(torch._foreach_add(grads, params, alpha=self.weight_decay))  # two may be one tensor
        if self.momentum:
            torch._foreach_mul_(momentum, self.momentum)
            torch._foreach_add_(momentum, grads)
            grads = momentum
        torch._foreach_add_(params, grads, alpha=-lr)


@dataclass(frozen=True)
class LocalStep:
    """Theta <- theta - lr grad (1 / |I|) sum_{i in I} q_i l(h_theta(x_i), y_i)   (Alg. 2, LocalSolver).

    The sum over the batch I is divided by its number of samples, never by the sum of the weights q: so learning rates
    compare with FedAvg's, and the objective stays Eq. 10. A sequence's loss is divided by its number of targets: a
    constant, which leaves the minimiser as it is.
    """

    backbone: nn.Module
    task: Task
    optimizer: ClientSGD
    lr: float

    @functools.cached_property
    def key_names(self) -> list[str]:
        """Of the buffers that set dropout; empty if there is none."""
        return dropout_keys(self.backbone)

    def objective(
        self, params: Models, buffers: Models, x: Tensor, y: Tensor, weight: Tensor, size: Tensor, key: Tensor
    ) -> tuple[Tensor, Models]:
        """The weighted loss of ONE learner on a batch: x [B, ...], y [B], weight [B]; and its buffers afterwards.

        `size` [] counts the real samples (padding has weight 0); `key` [] sets dropout.
        """
        buffers = {name: buffer.clone() for name, buffer in buffers.items()}  # a forward may change them
        keys = dict.fromkeys(self.key_names, key)
        outputs = functional_call(self.backbone, {**params, **buffers, **keys}, (x,))
        return self.mean_loss(self.task.losses(outputs, y), weight, size), buffers

    def mean_loss(self, losses: Tensor, weight: Tensor, size: Tensor) -> Tensor:
        """(1 / |I|) sum_{i in I} q_i l_i: losses and weight [..., B], size [...] -> [...]."""
        return (weight * losses).sum(dim=-1) / (size * self.task.n_targets)

    def advance(self, learner: Learner, gradient: Gradient) -> None:
        """Takes the step, in place; a method with another step overrides this.

        Written for one learner, it must hold for a stack of them too: element by element, or along trailing axes.
        """
        self.optimizer.descend(learner, gradient(learner), self.lr)


def along(scale: Tensor, tensor: Tensor) -> Tensor:
    """A number of each learner, [...], with axes of length 1 behind, so that it scales a tensor [..., *] of each."""
    return scale.reshape(*scale.shape, *[1] * (tensor.ndim - scale.ndim))


@dataclass(frozen=True)
class Batches:
    """The local steps of a block's C clients: E passes over each one's samples, shuffled anew, in batches of B.

    Batch j of pass e are `order[e, starts[c] + j B:]`'s next `min(B, counts[c] - j B)` positions. It is the client's
    step number e ceil(counts[c] / B) + j.
    """

    order: Tensor  # int64 [E, n]: positions in the block's flat samples, client after client
    counts: Tensor  # int64 [C], samples of each client, on the CPU
    size: int  # B
    keys: Tensor  # int64 [C], functions of (seed, round, client), for dropout and augmentation
    limit: int = 2**62  # of the steps of each client


def shuffled_batches(
    block: Block, batch_size: int, epochs: int, seed: int, round_: int, steps: int | None = None
) -> Batches:
    """`epochs` passes over each client's samples in shuffled batches; the last, short batch of a pass is kept.

    A client's order is a function of (seed, round, client) alone: its samples are sorted by hashed numbers.

    Args:
        block: the clients and their samples.
        batch_size: B at most; epochs: passes; seed, round_: of the order.
        steps: J, the same for every client that has a sample, in as many passes as that takes; None: `epochs` passes.

    """
    owner, counts = block.owner, block.counts()  # [n], [C]
    if steps is not None:
        some = counts[counts > 0]
        epochs = -(-steps // -(-int(some.min()) // batch_size)) if len(some) else 0
    rank = block.ranks()  # [n]
    keys = fold(seed, Purpose.SHUFFLE, round_, block.clients)  # [C]
    draws = (fold(fold(keys, epoch)[owner], rank) for epoch in range(epochs))  # E x [n], in [0, 2^32)
    passes = [torch.argsort((owner << 32) | draw, stable=True) for draw in draws]
    order = torch.stack(passes) if passes else owner.new_empty(0, len(owner))  # [E, n]
    limit = Batches.limit if steps is None else steps
    return Batches(order, counts.cpu(), batch_size, fold(seed, Purpose.DROPOUT, round_, block.clients), limit)
