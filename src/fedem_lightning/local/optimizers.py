"""The clients' optimisers. No optimiser of torch's: the clients' models are stacked, and take their steps together.

A step changes the parameters and the optimiser's state in place, element by element or along trailing axes, so that it
is the same for one learner and for a stack of learners.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Annotated, ClassVar, Literal

import torch
from annotated_types import MaxLen, MinLen
from torch import Tensor

from fedem_lightning.aggregate import Models
from fedem_lightning.models.tensors import along
from fedem_lightning.settings.check import Checked
from fedem_lightning.settings.ranges import BelowOne, NotNegative, Positive

Schedule = Literal["constant", "multistep", "cosine"]
SCHEDULES: dict[Schedule, Callable[[float], float]] = {
    "constant": lambda done: 1.0,
    "multistep": lambda done: 0.1 ** ((done >= 0.5) + (done >= 0.75)),
    "cosine": lambda done: 0.5 * (1.0 + math.cos(math.pi * done)),
}
"""Factors of the learning rate by the finished share of the rounds, in [0, 1), so that a resumed run agrees."""

Betas = Annotated[Sequence[BelowOne], MinLen(2), MaxLen(2), "two numbers of at least 0 and below 1 such as [0.9,0.999]"]

NORM = "norm of the gradient"
"""In a state: each learner's newest gradient norm, before it is clipped. No parameter has such a name."""


@dataclass(frozen=True)
class ClientOptimizer(Checked, ABC):
    """What all optimisers of clients share.

    Args:
        lr: learning rate.
        weight_decay: 0 or more.
        state: of the optimiser: "restart": it begins anew every round; "keep": it stays with the client.
        schedule: of the learning rate over rounds: "constant", "multistep" (a tenth at 1/2 and at 3/4), "cosine".
        max_grad_norm: a learner's gradient that is longer is shortened to this length, as by
            `torch.nn.utils.clip_grad_norm_`: all of the learner's parameters together. None: never.

    """

    lr: Positive = 0.1
    _: KW_ONLY
    weight_decay: NotNegative = 0.0
    state: Literal["restart", "keep"] = "restart"
    schedule: Schedule = "constant"
    max_grad_norm: Positive | None = None

    adaptive: ClassVar[bool] = False
    """Whether the step is another one if all gradients are multiplied by a number: it is not linear in them."""
    size: ClassVar[float] = 1.0
    """Memory of a learner in training, in that of SGD."""

    def lr_at(self, round_: int, n_rounds: int) -> float:
        """Learning rate of round `round_` (from 0) of `n_rounds`; after the last round it is `lr` again."""
        return self.lr * SCHEDULES[self.schedule](round_ / n_rounds if round_ < n_rounds else 0.0)

    @property
    def remembers(self) -> bool:
        """Whether a step depends on earlier ones."""
        return True

    def init(self, params: Models, axes: int = 0) -> Models:
        """The state before the first step, by name; `axes`: of the params, 0 for one learner, 2 for [C, M, ...]."""
        state = self.moments(params, axes)
        if self.max_grad_norm is not None and params:
            state[NORM] = _numbers(next(iter(params.values())), axes)
        return state

    @abstractmethod
    def moments(self, params: Models, axes: int) -> Models:
        """What the steps remember, before the first one; see `init`."""

    def descend(self, learner: dict[str, Models], grads: list[Tensor], lr: float) -> None:
        """Takes a step in place, for one learner or a stack, whose "params" and "momentum", the state, change.

        `grads` are the gradients of the params, in their order; two may be the same tensor.
        """
        params, state = learner["params"], learner["momentum"]
        if self.max_grad_norm is not None:
            grads = clipped(grads, state[NORM], self.max_grad_norm)
        self.step_(params, grads, state, lr)

    @abstractmethod
    def step_(self, params: Models, grads: list[Tensor], state: Models, lr: float) -> None:
        """Changes `params` and `state` in place; the gradients stay as they are."""


@dataclass(frozen=True)
class ClientSGD(ClientOptimizer):
    """SGD, equal to torch.optim.SGD (momentum without dampening, weight decay in the gradient).

    Args:
        momentum: in [0, 1); kept, it takes T x M x D numbers of memory.
        lr, weight_decay, state, schedule, max_grad_norm: see `ClientOptimizer`.

    """

    momentum: BelowOne = 0.0

    @property
    def remembers(self) -> bool:
        """Whether there is momentum."""
        return self.momentum > 0

    def moments(self, params: Models, axes: int) -> Models:
        """The momentum, under the names of the parameters."""
        return {name: torch.zeros_like(p) for name, p in params.items()} if self.momentum else {}

    def step_(self, params: Models, grads: list[Tensor], state: Models, lr: float) -> None:
        """b <- momentum b + g, theta <- theta - lr b."""
        thetas = list(params.values())
        if self.weight_decay:
            grads = list(torch._foreach_add(grads, thetas, alpha=self.weight_decay))
        if self.momentum:
            momentum = [state[name] for name in params]
            torch._foreach_mul_(momentum, self.momentum)
            torch._foreach_add_(momentum, grads)
            grads = momentum
        torch._foreach_add_(thetas, grads, alpha=-lr)


@dataclass(frozen=True)
class ClientAdam(ClientOptimizer):
    """Adam, equal to torch.optim.Adam (weight decay in the gradient); each learner has moments of its own.

    Args:
        betas: of the means of gradients and of their squares; kept, these take 2 T x M x D numbers of memory.
        eps: is added to the root of the mean square.
        lr, weight_decay, state, schedule, max_grad_norm: see `ClientOptimizer`.

    """

    lr: Positive = 0.001
    betas: Betas = field(default=(0.9, 0.999), kw_only=True)
    eps: Positive = field(default=1e-8, kw_only=True)

    adaptive = True
    size = 1.5

    def __post_init__(self) -> None:
        object.__setattr__(self, "betas", tuple(float(beta) for beta in self.betas))  # a configuration has a list

    def moments(self, params: Models, axes: int) -> Models:
        """Both means and the number of steps of each parameter, of which a method may train some alone."""
        first = {f"first.{name}": torch.zeros_like(p) for name, p in params.items()}
        second = {f"second.{name}": torch.zeros_like(p) for name, p in params.items()}
        return first | second | {f"steps.{name}": _numbers(p, axes) for name, p in params.items()}

    def step_(self, params: Models, grads: list[Tensor], state: Models, lr: float) -> None:
        """theta <- theta - lr m' / (sqrt(v') + eps), where m' and v' are m and v without the bias of their zeros."""
        thetas = list(params.values())
        first, second, steps = ([state[f"{kind}.{name}"] for name in params] for kind in ("first", "second", "steps"))
        grads = self._decayed(thetas, grads, lr)
        beta_1, beta_2 = self.betas
        torch._foreach_add_(steps, 1)
        torch._foreach_lerp_(first, grads, 1 - beta_1)
        torch._foreach_mul_(second, beta_2)
        torch._foreach_addcmul_(second, grads, grads, 1 - beta_2)
        counts = torch.stack(steps)  # [P, ...]
        in_first, in_second = ((1 - beta**counts).unbind() for beta in (beta_1, beta_2))  # shares that are no zeros
        scales = torch._foreach_sqrt(second)
        torch._foreach_div_(scales, [along(share.sqrt(), v) for share, v in zip(in_second, scales, strict=True)])
        torch._foreach_add_(scales, self.eps)
        torch._foreach_mul_(scales, [along(share, v) for share, v in zip(in_first, scales, strict=True)])
        torch._foreach_addcdiv_(thetas, first, scales, -lr)

    def _decayed(self, thetas: list[Tensor], grads: list[Tensor], lr: float) -> list[Tensor]:
        return list(torch._foreach_add(grads, thetas, alpha=self.weight_decay)) if self.weight_decay else grads


@dataclass(frozen=True)
class ClientAdamW(ClientAdam):
    """AdamW, equal to torch.optim.AdamW: theta shrinks by lr times `weight_decay` beside Adam's step.

    Args:
        weight_decay: 0.01 as in torch.
        betas, eps: see `ClientAdam`.
        lr, state, schedule, max_grad_norm: see `ClientOptimizer`.

    """

    weight_decay: NotNegative = field(default=0.01, kw_only=True)

    def _decayed(self, thetas: list[Tensor], grads: list[Tensor], lr: float) -> list[Tensor]:
        if self.weight_decay:
            torch._foreach_mul_(thetas, 1 - lr * self.weight_decay)
        return grads


AnyClientOptimizer = Annotated[ClientOptimizer, "a client optimiser such as ClientSGD(lr=0.1, momentum=0.9)"]


def clipped(grads: list[Tensor], norms: Tensor, longest: float) -> list[Tensor]:
    """Each learner's gradient, at most `longest` long over all its parameters; `norms` [...] takes its length."""
    rows = (g.reshape((*norms.shape, -1)) for g in grads)
    lengths = torch.stack([torch.linalg.vector_norm(row, dim=-1) for row in rows])  # [P, ...]
    norms.copy_(torch.linalg.vector_norm(lengths, dim=0))
    factors = (longest / (norms + 1e-6)).clamp(max=1.0)  # torch's
    return list(torch._foreach_mul(grads, [along(factors, g) for g in grads]))


def _numbers(p: Tensor, axes: int) -> Tensor:
    """A zero for each learner of a stack of parameters; not of less than single precision, in which steps are lost."""
    return p.new_zeros(p.shape[:axes], dtype=torch.promote_types(p.dtype, torch.float32))
