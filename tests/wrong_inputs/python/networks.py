"""Networks and server optimisers that cannot be trained, and odd ones that can."""

import functools
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from torch import nn
from torch.nn.utils import parametrizations

from fedem_lightning import Ditto, FedAvg, FedEM, FederatedAlgorithm, LoopEngine, VmapEngine
from wrong_inputs.python.call import Call
from wrong_inputs.python.parts import T, fit, network, vector


class Answers(nn.Module):
    """A network that hands its outputs through a function."""

    def __init__(self, answer: Callable[[torch.Tensor], Any], **parts: Any) -> None:
        super().__init__()
        self.layer, self.answer = network(), answer
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, x: torch.Tensor) -> Any:
        return self.answer(self.layer(x))


class TwoInputs(nn.Linear):
    """A network of two inputs."""

    def forward(self, x: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + z


class Tied(nn.Module):
    """A layer under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 3)
        self.b = self.a

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.a(x) + self.b(x)


def _with(change: Callable[[nn.Module], Any]) -> nn.Module:
    made = network()
    change(made)
    return made


def _requires_grad(made: nn.Module) -> None:
    made.requires_grad_(False)


WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "None": (lambda: None, "backbone: expected"),
    "a class with arguments": (lambda: nn.Linear, "backbone"),
    "a text": (lambda: "cnn", "backbone: expected"),
    "a number": (lambda: 3, "backbone: expected"),
    "a list of layers": (lambda: [nn.Linear(4, 3)], "backbone: expected"),
    "a state_dict": (lambda: network().state_dict(), "backbone: expected"),
    "its parameters": (lambda: network().parameters(), "backbone: expected"),
    "a function that returns None": (lambda: lambda: None, "backbone: the function returned None"),
    "a function that returns a class": (lambda: lambda: nn.Linear, "backbone: the function returned"),
    "a function with an argument": (lambda: lambda n_outputs: network(), "backbone"),
    "lazy": (lambda: nn.Sequential(nn.LazyLinear(5), nn.Linear(5, 3)), "backbone: LazyLinear has no shape yet"),
    "lazy, in a function": (lambda: lambda: nn.LazyLinear(3), "backbone: LazyLinear has no shape yet"),
    "lazy buffers": (lambda: nn.Sequential(nn.LazyBatchNorm1d(), nn.Linear(4, 3)), "backbone: LazyBatchNorm1d"),
    "script": (lambda: torch.jit.script(network()), "backbone: expected a network in Python"),
    "script within": (lambda: nn.Sequential(torch.jit.script(network())), "backbone: expected a network in Python"),
    "trace": (lambda: torch.jit.trace(network(), torch.zeros(2, 4)), "backbone: expected a network in Python"),
    "lock": (lambda: Answers(nn.Identity(), lock=threading.Lock()), "backbone: Answers cannot be copied"),
    "no parameters": (lambda: nn.Identity(), "backbone: no parameter"),
    "empty": (lambda: nn.Sequential(), "backbone: no parameter"),
    "all frozen": (lambda: _with(_requires_grad), "backbone: no parameter"),
    "of other features": (lambda: network(3, 5), "backbone: it does not take samples of shape (4,)"),
    "of fewer outputs": (lambda: network(2), "backbone: Classification needs 3 outputs"),
    "of more outputs": (lambda: network(4), "backbone: Classification needs 3 outputs"),
    "convolutions": (lambda: nn.Sequential(nn.Conv2d(1, 3, 3), nn.Flatten()), "backbone: it does not take samples"),
    "two inputs": (lambda: TwoInputs(4, 3), "backbone: it does not take samples"),
    "softmax": (lambda: nn.Sequential(network(), nn.Softmax(-1)), "outputs are probabilities"),
    "meta": (lambda: network().to("meta"), "backbone"),
    "complex": (lambda: nn.Linear(4, 3, dtype=torch.complex64), "backbone"),
    "embedding": (lambda: nn.Embedding(4, 3), "backbone"),
    "wrapped for several devices": (lambda: nn.DataParallel(network()), "backbone: expected the network alone"),
    "without forward": (lambda: nn.Module(), "backbone"),
    "a list of networks": (lambda: nn.ModuleList([network()]), "backbone"),
    "quantised": (lambda: torch.ao.quantization.quantize_dynamic(network(), dtype=torch.qint8), "backbone"),
}
for _name, _answer in {
    "None": lambda y: None,
    "tuple": lambda y: (y, y),
    "list": lambda y: [y],
    "dict": lambda y: {"logits": y},
    "array": lambda y: y.detach().numpy(),
    "number": lambda y: 0.5,
    "scalar": lambda y: y.sum(),
    "one row": lambda y: y[0],
    "one row more": lambda y: torch.cat([y, y[:1]]),
    "flat": lambda y: y.flatten(),
    "classes first": lambda y: y.T,
    "another axis": lambda y: y.unsqueeze(0),
    "whole numbers": lambda y: y.long(),
    "argmax": lambda y: y.argmax(-1),
    "complex": lambda y: y.to(torch.complex64),
    "sparse": lambda y: y.to_sparse(),
    "bool": lambda y: y > 0,
    "detached": lambda y: y.detach(),
    "constant": lambda y: torch.zeros_like(y),
    "empty": lambda y: y[:0],
    "nan": lambda y: y * float("nan"),
}.items():
    WRONG[f"that gives {_name}"] = (functools.partial(Answers, _answer), "backbone")
WRONG["that gives nan"] = (WRONG["that gives nan"][0], "")  # said after the round: the models are not finite

RIGHT: dict[str, Callable[[], Any]] = {
    "a class without arguments": lambda: Tied,
    "a function": lambda: network,
    "a partial": lambda: functools.partial(network, n_outputs=3),
    "a LightningModule": lambda: _lightning(),
    "a tied layer": Tied,
    "double": lambda: network().double(),
    "bfloat16": lambda: network().bfloat16(),
    "in eval mode": lambda: network().eval(),
    "partly frozen": lambda: _with(lambda made: made.get_submodule("0").requires_grad_(False)),
    "weight norm": lambda: nn.Sequential(parametrizations.weight_norm(nn.Linear(4, 5)), nn.Linear(5, 3)),
    "spectral norm": lambda: nn.Sequential(parametrizations.spectral_norm(nn.Linear(4, 5)), nn.Linear(5, 3)),
    "batch norm": lambda: nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 3)),
    "layer norm": lambda: nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 3)),
    "dropout": lambda: nn.Sequential(nn.Dropout(0.5), nn.Linear(4, 3)),
    "in-place": lambda: nn.Sequential(nn.ReLU(inplace=True), nn.Linear(4, 3)),
    "an unused layer": lambda: Answers(nn.Identity(), other=nn.Linear(2, 2)),
    "layers in a list": lambda: Answers(nn.Identity(), more=nn.ModuleList([nn.Linear(1, 1)])),
    "log-probabilities": lambda: nn.Sequential(network(), nn.LogSoftmax(-1)),
    "after a backward pass": lambda: _with(lambda made: made(torch.zeros(2, 4)).sum().backward()),
    "with a buffer of whole numbers": lambda: _with(lambda made: made.register_buffer("n", torch.tensor(3))),
    "with a hook": lambda: _with(lambda made: made.register_forward_hook(lambda *_: None)),
}
EITHER: dict[str, Callable[[], Any]] = {
    "old weight norm": lambda: nn.Sequential(nn.utils.weight_norm(nn.Linear(4, 5)), nn.Linear(5, 3)),
    "old spectral norm": lambda: nn.Sequential(nn.utils.spectral_norm(nn.Linear(4, 5)), nn.Linear(5, 3)),
    "half": lambda: network().half(),
    "compiled": lambda: torch.compile(network(), backend="eager"),
}
SGD, Adam = torch.optim.SGD, torch.optim.Adam
OPTIMIZERS: dict[str, tuple[Any, str]] = {
    "a class": (SGD, "server_optimizer: expected a function"),
    "another class": (Adam, "server_optimizer: expected a function"),
    "an optimiser": (SGD(network().parameters(), lr=1.0), "server_optimizer: expected a function"),
    "a text": ("sgd", "server_optimizer: expected a function"),
    "a number": (0.5, "server_optimizer: expected a function"),
    "a dict": ({"lr": 1.0}, "server_optimizer: expected a function"),
    "None returned": (lambda p: None, "server_optimizer: expected a function"),
    "a list returned": (lambda p: [SGD(p, lr=1.0)], "server_optimizer: expected a function"),
    "a dict returned": (lambda p: {"optimizer": SGD(p, lr=1.0)}, "server_optimizer: expected a function"),
    "a class returned": (lambda p: SGD, "server_optimizer: expected a function"),
    "without an argument": (lambda: SGD([], lr=1.0), "server_optimizer: expected a function"),
    "an unknown option": (functools.partial(SGD, lrr=1.0), "server_optimizer: expected a function"),
    "a negative rate": (functools.partial(SGD, lr=-1.0), "Invalid learning rate"),
    "a rate of text": (functools.partial(SGD, lr="1"), "server_optimizer"),
    "wrong momenta": (functools.partial(Adam, betas=(0.9, 1.5)), "Invalid beta"),
    "no parameters": (lambda p: SGD([], lr=1.0), "server_optimizer"),
    "other parameters": (lambda p: SGD(network().parameters(), lr=1.0), "leaves parameters out"),
    "some parameters": (lambda p: Adam(list(p)[:1], lr=1.0), "leaves parameters out"),
    "LBFGS": (torch.optim.LBFGS, "server_optimizer"),
    "LBFGS with a rate": (functools.partial(torch.optim.LBFGS, lr=1.0), "LBFGS cannot take"),
    "SparseAdam": (functools.partial(torch.optim.SparseAdam, lr=1.0), "SparseAdam cannot take"),
}


def _scheduled(model: Any) -> Any:
    optimizer = SGD(model.components.parameters(), lr=1.0)
    return {"optimizer": optimizer, "lr_scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1)}


CONFIGURED: dict[str, tuple[Callable[[Any], Any], str | None]] = {
    "None": (lambda model: None, "leaves parameters out"),
    "two": (lambda model: [SGD(model.components.parameters(), lr=1.0) for _ in range(2)], "expected one optimiser"),
    "a schedule": (_scheduled, "nothing steps a schedule"),
    "of other parameters": (lambda model: SGD(network().parameters(), lr=1.0), "leaves parameters out"),
    "LBFGS": (lambda model: torch.optim.LBFGS(model.components.parameters()), "LBFGS cannot take"),
    "one": (lambda model: SGD(model.components.parameters(), lr=0.5), None),
    "one in a list": (lambda model: [SGD(model.components.parameters(), lr=0.5)], None),
}
"""What `configure_optimizers` of a subclass may return, and what is said of it."""
RIGHT_OPTIMIZERS: dict[str, Any] = {
    "None": None,
    "momentum": functools.partial(SGD, lr=0.5, momentum=0.9),
    "a function": lambda p: Adam(p, lr=0.1),
    **{kind.__name__: functools.partial(kind, lr=0.1) for kind in (Adam, torch.optim.AdamW, torch.optim.Adagrad)},
    **{kind.__name__: functools.partial(kind, lr=0.1) for kind in (torch.optim.RMSprop, torch.optim.Rprop)},
    **{kind.__name__: functools.partial(kind, lr=0.1) for kind in (torch.optim.ASGD, torch.optim.NAdam)},
    "groups": lambda p: SGD([{"params": list(p), "lr": 0.5}], lr=1.0),
}


def _lightning() -> pl.LightningModule:
    class Net(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = network()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x)

    return Net()


def _trains(kind: type[FederatedAlgorithm], make: Callable[[], Any], options: dict[str, Any], _: Path) -> Any:
    torch.manual_seed(0)
    model: Any = kind(make(), T, **options)
    before = vector(model)
    fit(model)
    return bool((vector(model) != before).any())


def calls() -> Iterator[Call]:
    """Every network and server optimiser with several methods and engines."""
    kinds: dict[str, tuple[type[FederatedAlgorithm], dict[str, Any]]] = {
        "FedAvg loop": (FedAvg, {"engine": LoopEngine()}),
        "FedEM vmap": (FedEM, {"n_components": 2, "engine": VmapEngine()}),
        "Ditto": (Ditto, {}),
    }
    for of, (kind, options) in kinds.items():
        for name, (make, says) in WRONG.items():
            yield Call(f"networks/{of}/{name}", functools.partial(_trains, kind, make, options), says=says)
        for name, make in RIGHT.items():
            act = functools.partial(_trains, kind, make, options)
            yield Call(f"networks/{of}/{name}", act, right=lambda trained: trained)
        one = network()
        act = functools.partial(_trains, kind, lambda one=one: lambda: one, options)
        shared = "share parameters" if options.get("n_components", 1) > 1 else None
        yield Call(f"networks/{of}/one network in each call", act, says=shared, right=lambda trained: trained)
        for name, make in EITHER.items():
            act = functools.partial(_trains, kind, make, options)
            yield Call(f"networks/{of}/{name}", act, right=lambda trained: trained, or_says="backbone")
    for name, (configured, told) in CONFIGURED.items():
        mine = type("Mine", (FedAvg,), {"configure_optimizers": configured})
        yield Call(
            f"server_optimizer/configured/{name}",
            functools.partial(_trains, mine, network, {}),
            says=told,
            right=lambda trained: trained,
        )
    for of, (kind, options) in kinds.items():
        for name, (given, says) in OPTIMIZERS.items():
            act = functools.partial(_trains, kind, network, options | {"server_optimizer": given})
            yield Call(f"server_optimizer/{of}/{name}", act, says=says)
        for name, given in RIGHT_OPTIMIZERS.items():
            act = functools.partial(_trains, kind, network, options | {"server_optimizer": given})
            yield Call(f"server_optimizer/{of}/{name}", act, right=lambda trained: trained)
