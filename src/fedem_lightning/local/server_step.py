"""The server's step: averages, pseudo-gradients and server optimisers.

Reddi, Charles, Zaheer, Garrett, Rush, Konecny, Kumar, McMahan: "Adaptive Federated Optimization", ICLR 2021, arXiv
2003.00295. Algorithm 2. FedAdagrad is torch.optim.Adagrad.
"""

from collections.abc import Callable, Iterable
from typing import Annotated, Any

import pytorch_lightning as pl
import torch
from torch import Tensor, nn

from fedem_lightning.aggregate import Means, Models
from fedem_lightning.local.optimizers import Betas
from fedem_lightning.models.tensors import trained_parameters
from fedem_lightning.settings.check import Checked
from fedem_lightning.settings.errors import UserError, given, require
from fedem_lightning.settings.ranges import Positive

ServerOptimizer = Annotated[
    Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer],
    "a function that makes an optimiser, such as functools.partial(SGD, lr=1.0)",
]


class Server:
    """The server of a run, which holds the components; `optimizer` gives the one that steps."""

    def __init__(
        self, components: nn.ModuleList, make_optimizer: ServerOptimizer, optimizer: Callable[[], Any]
    ) -> None:
        self.components, self.make_optimizer, self.optimizer = components, make_optimizer, optimizer
        self.new_optimizer()  # says early what is wrong with it
        self._stepped = self._used = False  # in this round

    def begin(self) -> None:
        """Begins the server's part of a round."""
        self._stepped = self._used = False

    def end(self, method: str, came: bool) -> None:
        """Ends it: Lightning counts rounds by the steps of the server optimiser, of which there is one.

        UserError: updates came, and the method has no use for the optimiser, which is not the plain average.
        """
        if not self._stepped:
            self.step()
        expected = (
            f"algorithm.server_optimizer: {method} takes plain averages or none, expected SGD with lr 1, no momentum"
        )
        way = "(momentum that reaches every method is algorithm.client_optimizer.momentum)"
        require(self._used or not came or takes_plain_averages(self.optimizer().optimizer), f"{expected} {way}")

    def new_optimizer(self) -> torch.optim.Optimizer:
        """The server optimiser of the components, without a state.

        UserError: the function makes none, refuses its options, or makes one that cannot take pseudo-gradients.
        """
        wanted = "server_optimizer: expected a function that makes an optimiser, such as functools.partial(SGD, lr=1.0)"
        maker = self.make_optimizer
        require(not isinstance(maker, type), f"{wanted}, got {given(maker)}, whose rate nobody chose")
        try:
            made = maker(list(self.components.parameters()))
        except (TypeError, ValueError) as error:  # torch's refusal of an option
            raise UserError(f"{wanted} ({' '.join(str(error).split())})") from error
        require(isinstance(made, torch.optim.Optimizer), f"{wanted}, which returned {given(made)}")
        _check_takes(made, self.components)
        return made

    def take_means(self, means: Means) -> None:
        """theta <- server optimiser(theta, theta - mean); with SGD of rate 1 it is the mean, without rounding."""
        if not takes_plain_averages(self.optimizer().optimizer):
            self.take_buffers(means)
            return self.step(self.pseudo_gradient(means))
        for m, component in enumerate(self.components):
            if means.nonempty[m]:
                component.load_state_dict({name: rows[m] for name, rows in means.models.items()}, strict=False)
        return self.step(None)

    def pseudo_gradient(self, means: Means) -> list[Models | None]:
        """theta - mean for each component, of the parameters that clients send; None: no client sent the component."""
        gradients: list[Models | None] = [None] * len(self.components)
        for m, component in enumerate(self.components):
            if means.nonempty[m]:
                sent = {name: p for name, p in trained_parameters(component).items() if name in means.models}
                gradients[m] = {name: p.detach() - means.models[name][m] for name, p in sent.items()}
        return gradients

    def take_buffers(self, means: Means) -> None:
        """The components' buffers (BatchNorm's statistics) become their mean."""
        for m, component in enumerate(self.components):
            for name, buffer in component.named_buffers() if means.nonempty[m] else ():
                if name in means.models:
                    buffer.copy_(means.models[name][m])

    def step(self, gradients: list[Models | None] | None = None) -> None:
        """One step of the server optimiser; None leaves a component (or all) as it is."""
        self._stepped, self._used = True, gradients is not None
        for m, component in enumerate(self.components):
            gradient = None if gradients is None else gradients[m]
            for name, parameter in trained_parameters(component).items():
                parameter.grad = None if gradient is None else gradient.get(name)
        self.optimizer().step()


def check_optimizers(trainer: pl.Trainer, components: nn.ModuleList) -> None:
    """Raises UserError unless `configure_optimizers`, a subclass's too, has made one optimiser of the components."""
    made = trainer.optimizers
    require(len(made) == 1, f"configure_optimizers: expected one optimiser, got {len(made)}")
    scheduled = bool(trainer.lr_scheduler_configs)
    require(not scheduled, "configure_optimizers: expected an optimiser alone; nothing steps a schedule of the server")
    _check_takes(made[0], components)


def _check_takes(optimizer: torch.optim.Optimizer, components: nn.ModuleList) -> None:
    kind, dense = type(optimizer).__name__, not isinstance(optimizer, torch.optim.LBFGS | torch.optim.SparseAdam)
    require(dense, f"server_optimizer: {kind} cannot take one dense gradient a round; expected SGD, Adam or the like")
    taken = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    all_taken = all(id(p) in taken for component in components for p in trained_parameters(component).values())
    require(all_taken, f"server_optimizer: its {kind} leaves parameters out; it must take all of the components")


def takes_plain_averages(optimizer: torch.optim.Optimizer) -> bool:
    """Whether a step on theta - mean ends at the mean: SGD of rate 1 without momentum."""

    def replaces(group: dict[str, Any]) -> bool:
        return group["lr"] == 1 and group["momentum"] == 0 and group["weight_decay"] == 0 and not group["maximize"]

    return type(optimizer) is torch.optim.SGD and all(map(replaces, optimizer.param_groups))


class FedAdam(Checked, torch.optim.Optimizer):
    """m <- beta_1 m + (1 - beta_1) g, v <- beta_2 v + (1 - beta_2) g^2, theta <- theta - lr m / (sqrt(v) + tau).

    Unlike torch.optim.Adam it does not correct m and v, which starts at tau^2, for where they start.

    Args:
        params: the components' parameters, which the model hands over.
        lr: the server's learning rate.
        betas: beta_1 and beta_2.
        tau: adaptivity: a large tau makes it like SGD with momentum.

    """

    def __init__(
        self, params: Iterable[Any] = (), lr: Positive = 0.01, betas: Betas = (0.9, 0.99), tau: Positive = 1e-3
    ) -> None:
        made = f"{type(self).__name__}(lr={lr})"
        partial = f"functools.partial({made.replace('(', ', ')}"
        require(params != (), f"server_optimizer={made}: expected {partial}, a function of parameters")
        super().__init__(params, {"lr": lr, "beta_1": betas[0], "beta_2": betas[1], "tau": tau})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Takes a step; a parameter without a gradient stays as it is."""
        loss = None if closure is None else closure()
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
        """Changes v, the running mean of squares, in place."""
        v.lerp_(square, 1 - beta_2)


class FedYogi(FedAdam):
    """v <- v - (1 - beta_2) g^2 sign(v - g^2), which shrinks more slowly than FedAdam's; arguments as there."""

    @staticmethod
    def grow_(v: Tensor, square: Tensor, beta_2: float) -> None:
        """Towards g^2, by a share of g^2."""
        v.addcmul_(square, torch.sign(v - square), value=beta_2 - 1)
