"""Methods by fluke (fluke-fl on PyPI): `python fluke_.py WORK ...`. Its interpreter needs fluke alone.

Its loaders of training samples follow the order of batches that ours has written; nothing else is replaced but
FedRoD's first heads. Clients are scored with the newest average, as fluke does when a federation ends.
"""

import copy
import importlib
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any

import torch
from fluke import DDict, FlukeENV
from fluke.data import FastDataLoader
from fluke.nets import EncoderGlobalHeadLocalNet, EncoderHeadNet
from fluke.utils import FederationObserver
from torch import Tensor, nn
from work import BATCH, EPOCHS, FLUKE, LR, Network, Result, Work, flat, run_each

Served = Callable[[Any, nn.Module], tuple[nn.Module, list[nn.Module]]]
"""With which model a client predicts, and its parts in the order of the network's, from the client and the server's."""


class Split(EncoderHeadNet):
    """The network of both, cut before its head."""

    def __init__(self, network: Network) -> None:
        super().__init__(nn.Sequential(network.dense, network.bn, nn.ReLU()), network.fc)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        return self.head(self.encoder(x))


class InOrder(FastDataLoader):
    """A client's training samples, whose k-th pass is the k-th of the round."""

    def __init__(self, orders: list[Tensor], *tensors: Tensor) -> None:
        super().__init__(*tensors, num_labels=10, batch_size=BATCH, skip_singleton=False)
        self.orders, self.begin = orders, (0, 0)

    def start(self, round_: int) -> None:
        """A round begins."""
        self.begin = (round_, 0)

    def __iter__(self) -> Iterator[tuple[Tensor, ...]]:
        """Batch after batch."""
        round_, passes = self.begin
        self.begin = (round_, passes + 1)
        order = self.orders[round_]
        for rows in order[passes % len(order)].split(BATCH):
            yield tuple(tensor[rows] for tensor in self.tensors)


def of_server(client: Any, server: nn.Module) -> tuple[nn.Module, list[nn.Module]]:
    """Everybody has the server's model."""
    return server, [server]


def of_client(client: Any, server: nn.Module) -> tuple[nn.Module, list[nn.Module]]:
    """The client's own model."""
    return client.personalized_model, [client.personalized_model]


def in_parts(client: Any, server: nn.Module) -> tuple[nn.Module, list[nn.Module]]:
    """The newest average of a part, and the client's other part."""
    model = copy.deepcopy(client.model)
    model.get_global().load_state_dict(server.state_dict())
    shared, own = model.get_global(), model.get_local()
    return model, [shared, own] if isinstance(shared, nn.Sequential) else [own, shared]


def with_two_heads(client: Any, server: nn.Module) -> tuple[nn.Module, list[nn.Module]]:
    """The newest body and generic head, and the client's head."""
    rod = importlib.import_module("fluke.algorithms.fedrod").RODModel
    return rod(server, client.inner_model), [server, client.inner_model]


@dataclass(frozen=True)
class Theirs:
    """A method: its class, parameters of clients and server, what predicts, and the part that the server averages."""

    kind: str
    served: Served = of_server
    client: dict[str, Any] = field(default_factory=dict)
    weighted: bool = True
    part: str | None = None
    own_start: bool = False  # whether clients are made with a model


THEIRS = {
    "fedavg": Theirs("fedavg.FedAVG"),
    "fedprox": Theirs("fedprox.FedProx", client={"mu": 0.5}),
    "scaffold": Theirs("scaffold.SCAFFOLD", weighted=False),
    "ditto": Theirs("ditto.Ditto", of_client, {"tau": EPOCHS, "lam": 0.5}, own_start=True),
    "fedper": Theirs("fedper.FedPer", in_parts, part="encoder", own_start=True),
    "lg_fedavg": Theirs("lg_fedavg.LGFedAVG", in_parts, part="head", own_start=True),
    "fedrep": Theirs("fedrep.FedRep", in_parts, {"tau": EPOCHS}, part="encoder", own_start=True),
    "fedrod": Theirs("fedrod.FedROD", with_two_heads),
    "moon": Theirs("moon.MOON", client={"mu": 1.0, "tau": 0.5}),
}
assert tuple(THEIRS) == FLUKE


class Notes(FederationObserver):
    """Times the rounds, and notes what clients predict with after each."""

    def __init__(self, work: Work, result: Result) -> None:
        self.result, self.served = result, THEIRS[work.method].served
        self.tests = [work.samples("test", t) for t in range(work.clients)]
        self.algorithm: Any = None

    def start_round(self, round: int, global_model: nn.Module) -> None:
        """A round begins."""
        for client in self.algorithm.clients:
            client.train_set.start(round - 1)
        self.start = time.process_time()

    @torch.no_grad()
    def end_round(self, round: int) -> None:
        """It ends."""
        self.result.seconds.append(time.process_time() - self.start)
        right, models = [], []
        for client, (x, y) in zip(self.algorithm.clients, self.tests, strict=True):
            model, parts = self.served(client, self.algorithm.server.model)
            right.append(int((model.eval()(x).argmax(dim=1) == y).sum()))
            models.append(flat(p for part in parts for p in part.parameters()))
        self.result.right.append(right)
        self.result.models.append(torch.stack(models))


class Given:
    """Gives each client its samples; fluke's own splitter deals one data set at random."""

    def __init__(self, work: Work) -> None:
        orders = torch.load(work.folder / "orders.pt")
        self.loaders = [
            InOrder([round_[t] for round_ in orders], *work.samples("train", t)) for t in range(work.clients)
        ]

    def assign(self, n_clients: int, batch_size: int) -> tuple[Any, None]:
        """((training loaders, test loaders), the server's test loader)."""
        return (self.loaders, [None] * n_clients), None


def run(work: Work) -> Result:
    """Runs a method."""
    theirs, network, result = THEIRS[work.method], Split(work.start()), Result(version=version("fluke-fl"))
    environment = FlukeENV()
    environment.set_seed(0)
    environment.set_device("cpu")
    environment.set_inmemory(True)
    environment.set_eval_cfg(pre_fit=False, post_fit=False, locals=False, server=False)
    plain = {"optimizer": DDict(name="SGD", lr=LR), "scheduler": DDict(name="StepLR", step_size=1, gamma=1)}
    options = DDict(batch_size=BATCH, local_epochs=EPOCHS, loss="CrossEntropyLoss", **plain, **theirs.client)
    if theirs.own_start:
        options["model"] = copy.deepcopy(network)
    averaged = network if theirs.part is None else getattr(network, theirs.part)
    parameters = DDict(model=copy.deepcopy(averaged), client=options, server=DDict(weighted=theirs.weighted))
    module, _, name = theirs.kind.partition(".")
    kind, notes = getattr(importlib.import_module(f"fluke.algorithms.{module}"), name), Notes(work, result)
    notes.algorithm = algorithm = kind(work.clients, Given(work), parameters)
    if work.method == "fedrep":  # clients that are given one module would share it
        for client in algorithm.clients:
            client._modopt.model = EncoderGlobalHeadLocalNet(copy.deepcopy(network))
            client._save_to_cache()
    if work.method == "fedrod":  # the one mend: a personal head starts at zero, not as a copy of the first generic head
        for client in algorithm.clients:
            client.inner_model = copy.deepcopy(network.head)
            for p in client.inner_model.parameters():
                p.data.zero_()
    algorithm.set_callbacks([notes])
    algorithm.run(n_rounds=work.rounds, eligible_perc=1.0)
    return result


if __name__ == "__main__":
    run_each("fluke", sys.argv[1:], run)
