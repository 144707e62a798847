"""The weighted local solver: what a client does to a model it was given.

A step is written for ONE learner (one model on one client's data); the engine runs it over many.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad

from fedem_lightning.aggregation import Models
from fedem_lightning.components import dropout_keys
from fedem_lightning.data.federation import Block
from fedem_lightning.errors import require, require_number
from fedem_lightning.randomness import Purpose, fold
from fedem_lightning.schedules import SCHEDULES
from fedem_lightning.tasks import Task

Learner = dict[str, Models]
"""A learner's state: "params", "buffers" and "momentum", each name -> tensor (with leading axes where stacked)."""

LocalStep = Callable[[Learner, Tensor, Tensor, Tensor, Tensor, Tensor], Learner]
"""(learner, x [B, ...], y [B], weight [B], size [], key []) -> learner after one step; `size` counts real samples."""


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
        """Learning rate of round `round_` (from 0) of `n_rounds`."""
        return self.lr * SCHEDULES[self.schedule](round_ / max(1, n_rounds))

    def update(self, params: Models, grads: Models, momentum: Models, lr: float) -> tuple[Models, Models]:
        """One step: new params and new momentum (empty without momentum)."""
        if self.weight_decay:
            grads = {name: g + self.weight_decay * params[name] for name, g in grads.items()}
        if self.momentum:
            grads = momentum = {name: self.momentum * momentum[name] + g for name, g in grads.items()}
        return {name: p - lr * grads[name] for name, p in params.items()}, momentum


def local_step(backbone: nn.Module, task: Task, optimizer: ClientSGD, lr: float) -> LocalStep:
    """Theta <- theta - lr grad (1 / |I|) sum_{i in I} q_i l(h_theta(x_i), y_i)   (Alg. 2, LocalSolver).

    The sum over the batch I is divided by its number of samples, never by the sum of the weights q: so learning rates
    compare with FedAvg's, and the objective stays Eq. 10. A sequence's loss is divided by its number of targets: a
    constant, which leaves the minimiser as it is.
    """
    key_names = dropout_keys(backbone)

    def step(learner: Learner, x: Tensor, y: Tensor, weight: Tensor, size: Tensor, key: Tensor) -> Learner:
        def objective(params: Models) -> tuple[Tensor, Models]:
            buffers = {name: buffer.clone() for name, buffer in learner["buffers"].items()}  # a forward may change them
            outputs = functional_call(backbone, {**params, **buffers, **dict.fromkeys(key_names, key)}, (x,))
            return (weight * task.losses(outputs, y)).sum() / (size * task.n_targets), buffers

        grads, buffers = grad(objective, has_aux=True)(learner["params"])
        params, momentum = optimizer.update(learner["params"], grads, learner["momentum"], lr)
        return {"params": params, "buffers": buffers, "momentum": momentum}

    return step


@dataclass(frozen=True)
class Batches:
    """The local steps of a block's C clients. J_t, a client's number of steps, differs between clients."""

    positions: Tensor  # int64 [C, max J, B]: positions in the block's flat samples, real ones first; -1 pads
    n_steps: Tensor  # int64 [C], on the CPU
    keys: Tensor  # int64 [C], functions of (seed, round, client), for dropout


def shuffled_batches(block: Block, batch_size: int, epochs: int, seed: int, round_: int) -> Batches:
    """`epochs` passes over each client's samples in shuffled batches; the last, short batch of a pass is kept.

    A client's order is a function of (seed, round, client) alone: its samples are sorted by hashed numbers.

    Args:
        block: the clients and their samples.
        batch_size: B at most; epochs: passes; seed, round_: of the order.

    """
    owner, counts = block.owner, block.counts()  # [n], [C]
    width = max(1, min(batch_size, int(counts.max())))
    steps = -(-counts // batch_size)  # of one pass, [C]
    rank = torch.arange(len(owner), device=owner.device) - (counts.cumsum(0) - counts)[owner]  # within its client [n]
    keys = fold(seed, Purpose.SHUFFLE, round_, block.clients)  # [C]
    positions = owner.new_full((len(counts), epochs * int(steps.max()) * width), -1)  # [C, J * B]
    for epoch in range(epochs):
        draw = fold(keys[owner], epoch, rank)  # [n], in [0, 2^32)
        shuffled = torch.argsort((owner << 32) | draw, stable=True)  # client after client, each one's samples shuffled
        positions[owner, epoch * (steps * width)[owner] + rank] = shuffled
    dropout = fold(seed, Purpose.DROPOUT, round_, block.clients)
    return Batches(positions.unflatten(1, (-1, width)), (epochs * steps).cpu(), dropout)
