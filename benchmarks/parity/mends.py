"""Where PFLlib (commit d832e76) computes something else than the papers, and the mends, which change it in memory.

A mend says the file and line (in system/flcore/servers, clients and optimizers, or system/utils), and the equation in
its docstring.
`longer_mends.py` has those that are more than a few lines.
"""

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from work import PAIRS


@dataclass
class Shared:
    """What a run of PFLlib and its mends share."""

    server: Any = None
    client: Any = None  # whose loader is made
    served: dict[int, Tensor] = field(default_factory=dict)  # by client, the parameters with which it was scored
    keeps_short: bool = False  # whether loaders keep the last, short batch of a pass

    @property
    def round(self) -> int:
        """The round, from 0."""
        return len(getattr(self.server, "Budget", ()))


Apply = Callable[[Shared], None]


@dataclass(frozen=True)
class Mend:
    """A difference, and the function that takes it away."""

    methods: tuple[str, ...]
    where: str
    equation: str
    apply: Apply


MENDS: dict[str, Mend] = {}


def mend(methods: str, where: str) -> Callable[[Apply], Apply]:
    """Adds the mend of some methods (names with spaces between): the function's name, and its equation as docstring."""

    def add(apply: Apply) -> Apply:
        MENDS[apply.__name__] = Mend(tuple(methods.split()), where, apply.__doc__ or "", apply)
        return apply

    return add


def there(module: str, name: str) -> Any:
    """A class or function of PFLlib."""
    return getattr(importlib.import_module(module), name)


def client(name: str) -> Any:
    """A client's class, such as Rep."""
    return there(f"flcore.clients.client{name.lower() if name != 'pFedMe' else name}", f"client{name}")


@contextmanager
def restored(model: nn.Module) -> Iterator[None]:
    """The model has its parameters again afterwards."""
    before = [p.data.clone() for p in model.parameters()]
    yield
    for p, old in zip(model.parameters(), before, strict=True):
        p.data = old


@mend(" ".join(PAIRS), "clientbase.py 59")
def short_batches(shared: Shared) -> None:
    """A pass visits all n_t samples: the last, short batch is kept."""
    shared.keeps_short = True


@mend("pfedme", "clientpFedMe.py 74-81, fedoptimizer.py 47")
def pfedme_scores(shared: Shared) -> None:
    """Theta_t = argmin f_t + lambda/2 |theta - w|^2 predicts."""
    optimizer, kind = there("flcore.optimizers.fedoptimizer", "pFedMeOptimizer"), client("pFedMe")
    step, test = optimizer.step, kind.test_metrics_personalized

    def scored(self: Any) -> Any:
        with restored(self.model):  # in which theta is scored
            return test(self)

    optimizer.step = lambda *given: [p.data.clone() for p in step(*given)]  # theta, not the network's own parameters
    kind.test_metrics_personalized = scored


@mend("pfedme", "fedoptimizer.py 34, 45")
def pfedme_decay(shared: Shared) -> None:
    """Theta <- theta - eta_p (grad f + lambda (theta - w)), without 0.001 theta."""
    there("flcore.optimizers.fedoptimizer", "pFedMeOptimizer").__init__.__defaults__ = (0.01, 0.1, 0.0)


@mend("per_fedavg", "serverperavg.py 35-36")
def perfedavg_once(shared: Shared) -> None:
    """A client of the cohort trains once a round."""
    kind, done = client("PerAvg"), dict[int, int]()
    train = kind.train

    def once(self: Any) -> None:
        if done.get(self.id) != shared.round:
            done[self.id] = shared.round
            train(self)

    kind.train = once


@mend("per_fedavg", "serverbase.py 131-136")
def perfedavg_weights(shared: Shared) -> None:
    """W <- (1/r) sum of the cohort's w_t: clients count alike."""
    kind = there("flcore.servers.serverperavg", "PerAvg")
    receive = kind.receive_models

    def received(self: Any) -> None:
        receive(self)
        self.uploaded_weights = [1 / len(self.uploaded_weights)] * len(self.uploaded_weights)

    kind.receive_models = received


@mend("per_fedavg", "clientperavg.py 83-99")
def perfedavg_scores(shared: Shared) -> None:
    """W - alpha grad F_t(w) predicts, with F_t over all training samples."""
    kind = client("PerAvg")
    step = kind.train_one_step

    def on_all(self: Any) -> None:
        size, self.batch_size = self.batch_size, self.train_samples
        step(self)
        self.batch_size = size

    kind.train_one_step = on_all


@mend("fedbabu", "serverbabu.py 60-63")
def fedbabu_scores(shared: Shared) -> None:
    """The newest body is tuned, together with the head, before every scoring."""
    kind = client("BABU")
    test = kind.test_metrics

    def scored(self: Any) -> Any:
        with restored(self.model):
            self.fine_tune()
            self.model.head.requires_grad_(False)
            return test(self)

    kind.test_metrics = scored


@mend("fedrod", "clientrod.py 15")
def fedrod_heads(shared: Shared) -> None:
    """A personal head starts at zero, so that h_G + h_t starts as h_G."""
    kind = client("ROD")
    made = kind.__init__

    def make(self: Any, *options: Any, **named: Any) -> None:
        made(self, *options, **named)
        for p in self.head.parameters():
            p.data.zero_()

    kind.__init__ = make


@mend("fedproto", "clientproto.py 54-56, 68")
def fedproto_means(shared: Shared) -> None:
    """Eq. 6: C_t,y is the trained model's mean over all samples of class y."""
    kind = client("Proto")
    train = kind.train

    def trained(self: Any) -> None:
        train(self)
        self.collect_protos()

    kind.train = trained


@mend("fedproto", "serverproto.py 107-120")
def fedproto_weights(shared: Shared) -> None:
    """Eq. 7: C_y = sum_t n_t,y C_t,y / N_y."""
    server: Any = importlib.import_module("flcore.servers.serverproto")

    def weighted(own: list[dict[int, Tensor]]) -> dict[int, Any]:
        labels = [[int(y) for _, y in c.load_train_data().dataset] for c in shared.server.selected_clients]
        n, found = [np.bincount(of, minlength=10) for of in labels], server.defaultdict(list)
        for y in sorted({label for prototypes in own for label in prototypes}):
            having = [(int(n[t][y]), prototypes[y]) for t, prototypes in enumerate(own) if y in prototypes]
            found[y] = torch.stack([count * z for count, z in having]).sum(dim=0) / sum(count for count, _ in having)
        return found

    server.proto_aggregation = weighted


@mend("feddyn", "clientdyn.py 45")
def feddyn_square(shared: Shared) -> None:
    """The penalty is (alpha / 2) |theta - w|^2, with the square."""
    module: Any = importlib.import_module("flcore.clients.clientdyn")
    module.torch = SimpleNamespace(**vars(torch) | {"norm": lambda away, p: away.square().sum()})


@mend("fedamp", "clientamp.py 37-39")
def fedamp_pull(shared: Shared) -> None:
    """The penalty lambda / (2 alpha) |w - u_i|^2 has a gradient; there it is made of numbers."""
    kind = client("AMP")
    made = kind.__init__

    def make(self: Any, *options: Any, **named: Any) -> None:
        made(self, *options, **named)

        def pull(*_: object) -> None:
            for p, u in zip(self.model.parameters(), self.client_u.parameters(), strict=True):
                p.grad += self.lamda / self.alphaK * (p.data - u.data)

        self.optimizer.register_step_pre_hook(pull)

    kind.__init__ = make


@mend("fedlc", "serverlc.py 18-24")
def fedlc_margins(shared: Shared) -> None:
    """The margin of class i is tau n_t,i^(-1/4), by the client's own labels, not by those of all clients."""
    kind = there("flcore.servers.serverlc", "FedLC")
    made = kind.__init__

    def make(self: Any, *options: Any) -> None:
        made(self, *options)
        for one in self.clients:
            one.calibration = self.args.tau * one.sample_per_class ** (-1 / 4)

    kind.__init__ = make
