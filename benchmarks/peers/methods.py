"""What fluke (fluke-fl on PyPI) computes, method by method, beside ours.

    python benchmarks/peers/methods.py [--rounds 3] [--methods ditto fedper ...]

Both libraries must be installed in one environment. Same data, same network (one hidden layer) and first parameters,
four clients of unequal sizes, everybody in every round, full batches, plain SGD, float64. The number is the distance
between the clients' models, divided by how far they moved. The exit code is 1 if it is above 1e-5. Per-FedAvg is
compared with two formulas in a plain loop.
"""

import argparse
import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytorch_lightning as pl
import torch
from fluke import DDict, FlukeENV
from fluke.algorithms.ditto import Ditto as FlukeDitto
from fluke.algorithms.fedala import FedALA as FlukeFedALA
from fluke.algorithms.fedavg import FedAVG
from fluke.algorithms.fedbabu import FedBABU as FlukeFedBABU
from fluke.algorithms.fedbn import FedBN as FlukeFedBN
from fluke.algorithms.fedper import FedPer as FlukeFedPer
from fluke.algorithms.fedproto import FedProto as FlukeFedProto
from fluke.algorithms.fedrep import FedRep as FlukeFedRep
from fluke.algorithms.fedrod import FedROD
from fluke.algorithms.lg_fedavg import LGFedAVG
from fluke.algorithms.per_fedavg import PerFedAVG
from fluke.algorithms.scaffold import SCAFFOLD
from fluke.data import FastDataLoader
from fluke.nets import EncoderGlobalHeadLocalNet, EncoderHeadNet
from torch import Tensor, nn

import fedem_lightning as fl

SIZES, LR, EPOCHS = (7, 12, 5, 9), 0.2, 2
State = dict[str, Tensor]


class Network(EncoderHeadNet):
    """One hidden layer with a normalisation layer or without, as body and head."""

    def __init__(self, norm: bool) -> None:
        layers = [nn.Linear(4, 5), *([nn.BatchNorm1d(5)] if norm else []), nn.ReLU()]
        super().__init__(nn.Sequential(*layers), nn.Linear(5, 3))

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        return self.head(self.encoder(x))


@dataclass(frozen=True)
class Pair:
    """A method in both libraries.

    Args:
        ours, theirs: classes.
        options: of ours.
        client, server: parameters of fluke's clients and server.
        models: fluke's model of each client, from its client object and the server's model.
        part: what fluke's server averages, "encoder" or "head" of the network; None: all of it.
        finalize: whether fluke's clients then receive the last average.
        own_start: whether fluke's clients are made with a model.
        prepare: what fluke needs so that all clients begin with the network.
        more: names of further tensors that are compared.
        rounds: if only so many are compared.
        norm: whether the network has a normalisation layer.

    """

    ours: Callable[..., Any]
    theirs: type
    options: dict[str, Any] = field(default_factory=dict)
    client: dict[str, Any] = field(default_factory=dict)
    server: dict[str, Any] = field(default_factory=lambda: {"weighted": True})
    models: Callable[[Any, nn.Module], nn.Module] = lambda client, server: client.model
    part: str | None = None
    finalize: bool = True
    own_start: bool = False
    prepare: Callable[[Any, nn.Module], None] = lambda algorithm, network: None
    more: tuple[str, ...] = ()
    rounds: int | None = None
    norm: bool = False


def of_server(client: Any, server: nn.Module) -> nn.Module:
    """Everybody has the server's model."""
    return server


def with_the_servers_body(client: Any, server: nn.Module) -> nn.Module:
    """The newest average of the bodies, and the client's head."""
    network = copy.deepcopy(client.model)
    network.encoder.load_state_dict(server.state_dict())
    return network


def with_networks_of_their_own(algorithm: Any, network: nn.Module) -> None:
    """Clients that are given one module would share it."""
    for client in algorithm.clients:
        client._modopt.model = EncoderGlobalHeadLocalNet(copy.deepcopy(network))
        client._save_to_cache()


def with_networks_of_their_own_for_prototypes(algorithm: Any, network: nn.Module) -> None:
    """Clients that are given one module would share it."""
    for client in algorithm.clients:
        client.model = copy.deepcopy(network)
        client._save_to_cache()


def with_heads_of_zeros(algorithm: Any, network: nn.Module) -> None:
    """Clients begin with a copy of the generic head as their own otherwise."""
    for client in algorithm.clients:
        client.inner_model = nn.Linear(5, 3)
        for parameter in client.inner_model.parameters():
            nn.init.zeros_(parameter)


def with_personal_head(client: Any, server: nn.Module) -> nn.Module:
    """The newest body and generic head, and the client's head."""
    return nn.ModuleDict({"network": server, "personal": client.inner_model})


PAIRS = {
    "fedavg": Pair(fl.FedAvg, FedAVG, models=of_server),
    "ditto": Pair(
        fl.Ditto,
        FlukeDitto,
        {"penalty": 0.5, "own_epochs": 3},
        {"tau": 3, "lam": 0.5},
        models=lambda client, _: client.personalized_model,
        own_start=True,
    ),
    "fedper": Pair(fl.FedPer, FlukeFedPer, part="encoder", own_start=True),
    "lg_fedavg": Pair(fl.LGFedAvg, LGFedAVG, part="head", own_start=True),
    "fedrep": Pair(
        fl.FedRep,
        FlukeFedRep,
        {"head_epochs": 2, "local_epochs": 3},
        {"tau": 3},
        part="encoder",
        own_start=True,
        prepare=with_networks_of_their_own,
    ),
    "fedbabu": Pair(
        fl.FedBABU,
        FlukeFedBABU,
        client={"mode": "full", "fine_tuning_epochs": 0},
        models=with_the_servers_body,
        part="encoder",
        own_start=True,
    ),
    "fedbn": Pair(fl.FedBN, FlukeFedBN, norm=True),
    "fedala": Pair(  # 100 passes the first time in both, because no loss is steady enough
        fl.FedALA,
        FlukeFedALA,
        {"share": 1.0, "tolerance": 1e-300},
        {"ala_sample_size": 1.0, "conergence_threshold": 0.0},
        finalize=False,
    ),
    "fedrod": Pair(
        fl.FedRoD,
        FedROD,
        models=with_personal_head,
        more=("personal.weight", "personal.bias"),
        prepare=with_heads_of_zeros,
    ),
    "fedproto": Pair(  # models of the first round, in which there are no prototypes yet
        fl.FedProto,
        FlukeFedProto,
        {"penalty": 0.5},
        {"n_protos": 3, "lam": 0.5},
        {"weighted": True, "n_protos": 3},
        own_start=True,
        prepare=with_networks_of_their_own_for_prototypes,
        finalize=False,
        rounds=1,
    ),
    "scaffold": Pair(fl.Scaffold, SCAFFOLD, server={"weighted": False}, models=of_server),
}


def samples() -> list[tuple[Tensor, Tensor]]:
    """Each client's samples."""
    rng = np.random.default_rng(0)
    rule = rng.normal(size=(4, 3))
    found = []
    for t, n in enumerate(SIZES):
        x = rng.normal(size=(n, 4)) + 0.3 * t
        found.append((torch.from_numpy(x), torch.from_numpy((x @ rule + rng.normal(size=(n, 3))).argmax(axis=1))))
    return found


class Given:
    """Gives each client its samples."""

    def __init__(self, clients: list[tuple[Tensor, Tensor]]) -> None:
        self.clients = clients

    def assign(self, n_clients: int, batch_size: int) -> tuple[Any, None]:
        """((training loaders, test loaders), the server's test loader)."""
        made = [FastDataLoader(*s, num_labels=3, batch_size=batch_size, shuffle=True) for s in self.clients]
        return (made, [None] * n_clients), None


def by_fluke(pair: Pair, network: nn.Module, rounds: int) -> list[State]:
    """The clients' models after some rounds."""
    environment = FlukeENV()
    environment.set_seed(0)
    environment.set_device("cpu")
    environment.set_inmemory(True)
    environment.set_eval_cfg(pre_fit=False, post_fit=False, locals=False, server=False)
    client = DDict(
        batch_size=1000,
        local_epochs=EPOCHS,
        loss="CrossEntropyLoss",
        optimizer=DDict(name="SGD", lr=LR),
        scheduler=DDict(name="StepLR", step_size=1, gamma=1),
        **pair.client,
    )
    if pair.own_start:
        client["model"] = copy.deepcopy(network)
    averaged = network if pair.part is None else getattr(network, pair.part)
    parameters = DDict(model=copy.deepcopy(averaged), client=client, server=DDict(**pair.server))
    algorithm = pair.theirs(len(SIZES), Given(samples()), parameters)
    pair.prepare(algorithm, network)
    if not pair.finalize:
        algorithm.finalize = lambda: None  # its argument `finalize` has no effect
    algorithm.run(n_rounds=rounds, eligible_perc=1.0)
    return [dict(pair.models(c, algorithm.server.model).state_dict()) for c in algorithm.clients]


def by_us(pair: Pair, network: nn.Module, rounds: int) -> list[State]:
    """The same by this package."""
    x, y = (torch.cat(parts).numpy() for parts in zip(*samples(), strict=True))
    client = np.repeat(np.arange(len(SIZES)), SIZES)
    data = fl.FederatedDataModule.from_arrays(x, y, client, fractions=(1.0, 0.0, 0.0), n_classes=3)
    options = {"local_epochs": EPOCHS, **pair.options}
    sgd = fl.ClientSGD(lr=LR)
    model = pair.ours(copy.deepcopy(network), len(SIZES), batch_size=1000, client_optimizer=sgd, **options)
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "limit_val_batches": 0}
    pl.Trainer(max_epochs=rounds, accelerator="cpu", precision="64-true", enable_model_summary=False, **quiet).fit(
        model, data
    )
    served = model.personal_models(torch.arange(len(SIZES))).models
    return [{name: rows[t, 0] for name, rows in served.items()} for t in range(len(SIZES))]


def meta_trained(network: nn.Module, rounds: int, restore: bool) -> nn.Module:
    """Per-FedAvg (FO) in a plain loop: w <- w - beta grad f(w~), w~ = w - alpha grad f(w); else w <- w~ - beta ...

    Args:
        network: the start.
        rounds: of EPOCHS local steps of every client on all of its samples, then the plain mean.
        restore: whether the second step starts at w, as in Alg. 1 of the paper; else at w~.

    """
    w = copy.deepcopy(network)
    for _ in range(rounds):
        found = []
        for x, y in samples():
            local = copy.deepcopy(w)
            for _ in range(EPOCHS):
                inner = copy.deepcopy(local)
                descend(inner, inner, x, y)
                local = local if restore else copy.deepcopy(inner)
                descend(local, inner, x, y)
            found.append(local.state_dict())
        w.load_state_dict({name: torch.stack([state[name] for state in found]).mean(dim=0) for name in found[0]})
    return w


def descend(network: nn.Module, at: nn.Module, x: Tensor, y: Tensor) -> None:
    """Moves `network` against the gradient of the loss of `at`."""
    grads = torch.autograd.grad(nn.functional.cross_entropy(at(x), y), list(at.parameters()))
    with torch.no_grad():
        for parameter, g in zip(network.parameters(), grads, strict=True):
            parameter -= LR * g


def per_fedavg(network: nn.Module, names: list[str], rounds: int) -> None:
    """Which of the two steps fluke's Per-FedAvg takes."""
    pair = Pair(fl.PerFedAvg, PerFedAVG, {}, {"mode": "FO", "beta": LR}, {"weighted": False}, of_server)
    theirs = flat(by_fluke(pair, network, rounds)[0], names)
    start = flat(dict(network.state_dict()), names)
    for step, restore in (("w - beta grad f(w~), the paper's", True), ("w~ - beta grad f(w~)", False)):
        plain = flat(dict(meta_trained(network, rounds, restore).state_dict()), names)
        print(f"| per_fedavg: {step} | {float((plain - theirs).norm() / (theirs - start).norm()):.1e} |", flush=True)


def flat(state: State, names: list[str]) -> Tensor:
    """The named tensors as one vector; fluke's wrappers put a prefix before the names."""
    found = {name: next(v for key, v in state.items() if key.endswith(name)) for name in names}
    return torch.cat([found[name].double().flatten() for name in names])


def main() -> None:
    """Compares and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--methods", nargs="+", choices=[*PAIRS, "per_fedavg"], default=[*PAIRS, "per_fedavg"])
    options = parser.parse_args()
    torch.set_default_dtype(torch.float64)
    wrong = []
    print("| method | distance |\n|---|---|")
    for name in options.methods:
        pair = PAIRS.get(name)
        torch.manual_seed(0)
        network = Network(pair is not None and pair.norm)
        names = [key for key, _ in network.named_parameters()]
        more = [*names, *(pair.more if pair is not None else ())]
        if pair is None:
            per_fedavg(network, names, options.rounds)
            continue
        start = flat(dict(network.state_dict()), names)
        rounds = pair.rounds or options.rounds
        ours, theirs = by_us(pair, network, rounds), by_fluke(pair, network, rounds)
        pairs = [(flat(a, more), flat(b, more)) for a, b in zip(ours, theirs, strict=True)]
        distance = max(float((a - b).norm() / (a[: len(start)] - start).norm()) for a, b in pairs)
        print(f"| {name} | {distance:.1e} |", flush=True)
        if distance > 1e-5:
            wrong.append(name)
    if wrong:
        raise SystemExit(f"different: {', '.join(wrong)}")


if __name__ == "__main__":
    main()
