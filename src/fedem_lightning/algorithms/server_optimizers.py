"""FedAdam, FedYogi and FedAdagrad: adaptive steps of the server on theta - mean, the pseudo-gradient.

Reddi, Charles, Zaheer, Garrett, Rush, Konecny, Kumar, McMahan: "Adaptive Federated Optimization", ICLR 2021, arXiv
2003.00295. Algorithm 2; Adagrad has no beta_1 in its experiments.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from fedem_lightning.client_optimizers import Betas
from fedem_lightning.settings.check import Checked
from fedem_lightning.settings.ranges import BelowOne, Positive


class AdaptiveServer(Checked, torch.optim.Optimizer):
    """m <- beta_1 m + (1 - beta_1) g, theta <- theta - lr m / (sqrt(v) + tau); v, which starts at tau^2, by `grow_`.

    Unlike torch.optim.Adam it does not correct m and v for where they start.

    Args:
        params: the components' parameters.
        lr: the server's learning rate.
        betas: beta_1 and beta_2.
        tau: adaptivity: a large tau makes it like SGD with momentum.

    """

    def __init__(
        self, params: Iterable[Any], lr: Positive = 0.01, betas: Betas = (0.9, 0.99), tau: Positive = 1e-3
    ) -> None:
        super().__init__(params, {"lr": lr, "beta_1": betas[0], "beta_2": betas[1], "tau": tau})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Takes a step; a parameter without a gradient stays as it is."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["m"], state["v"] = torch.zeros_like(p), torch.full_like(p, group["tau"] ** 2)
                state["m"].lerp_(p.grad, 1 - group["beta_1"])
                self.grow_(state["v"], p.grad.square(), group["beta_2"])
                p.addcdiv_(state["m"], state["v"].sqrt().add_(group["tau"]), value=-group["lr"])
        return loss

    @staticmethod
    def grow_(v: Tensor, square: Tensor, beta_2: float) -> None:
        """Changes v by the gradient's square, in place."""
        raise NotImplementedError


class FedAdam(AdaptiveServer):
    """v <- beta_2 v + (1 - beta_2) g^2; its arguments are those of `AdaptiveServer`."""

    @staticmethod
    def grow_(v: Tensor, square: Tensor, beta_2: float) -> None:
        """The running mean of squares."""
        v.lerp_(square, 1 - beta_2)


class FedYogi(AdaptiveServer):
    """v <- v - (1 - beta_2) g^2 sign(v - g^2), which shrinks more slowly than FedAdam's; arguments as there."""

    @staticmethod
    def grow_(v: Tensor, square: Tensor, beta_2: float) -> None:
        """Towards g^2, by a share of g^2."""
        v.addcmul_(square, torch.sign(v - square), value=beta_2 - 1)


class FedAdagrad(AdaptiveServer):
    """v <- v + g^2.

    Args:
        params, lr, tau: see `AdaptiveServer`.
        beta_1: of m.

    """

    def __init__(
        self, params: Iterable[Any], lr: Positive = 0.01, beta_1: BelowOne = 0.0, tau: Positive = 1e-3
    ) -> None:
        super().__init__(params, lr, (beta_1, 0.0), tau)

    @staticmethod
    def grow_(v: Tensor, square: Tensor, beta_2: float) -> None:
        """The sum of squares."""
        v.add_(square)
