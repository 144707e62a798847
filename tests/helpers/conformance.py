"""The conformance table: a row for each algorithm, which says what differs in the properties that all have."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

import fedem_lightning as fl
from fedem_lightning.models.client_store import ClientStore
from helpers.federations import make_data, make_model


def with_groups(data: fl.FederatedDataModule) -> fl.FederatedDataModule:
    """Even clients are one true group, odd ones the other: Oracle has to know them."""
    data.federation.truth["group"] = np.arange(data.n_clients) % 2
    return data


@dataclass(frozen=True)
class Row:
    """What differs between algorithms in the common properties."""

    kind: type[fl.FederatedAlgorithm]
    private: tuple[str, ...] = ()  # what a client keeps of its own and a round changes: a buffer [T, ...] or a store
    messages: float = 1  # models sent up by a client in a round; with 4 clients
    down: float | None = None  # and down, if another number
    once: float = 0  # sent up before training
    once_down: float | None = None  # and down, if another number
    samples: bool = True  # is defined for cohorts
    server: bool = True  # has a use for a server optimiser
    sgd: bool = True  # clients train networks by SGD; if not, one linear layer for two classes, by steps of their own
    draws: bool = False  # draws among a client's samples, by the client's number
    hidden: bool = False  # needs a body: one hidden layer of 5 units in place of a linear layer
    options: dict[str, Any] = field(default_factory=dict)
    as_fedavg: dict[str, Any] | str = field(default_factory=dict)
    """Options with which it is FedAvg on clients that are all the same, or why it moves otherwise; of the first row."""

    def data(self, **options: Any) -> fl.FederatedDataModule:
        """`make_data` with labels that the method takes, and with true groups."""
        labels: dict[str, Any] = {} if self.sgd else {"n_classes": 2, "task": "binary"}
        return with_groups(make_data(**labels, **options))

    def network(self, data: fl.FederatedDataModule) -> torch.nn.Module:
        """One linear layer, or one hidden layer."""
        return fl.MLP(data.in_shape, data.n_outputs, [5]) if self.hidden else fl.Linear(data.in_shape, data.n_outputs)

    def model(self, data: fl.FederatedDataModule, **options: Any) -> Any:
        return make_model(self.kind, data, hidden=self.hidden, **{**self.options, **options})


COMPLETE = fl.Topology(graph="complete")
ROWS = [
    Row(fl.FedEM, ("pi",), messages=3, options={"initialization": "random"}, as_fedavg={"n_components": 1}),
    Row(
        fl.FedEM,
        ("pi",),
        messages=1 + 2 * 18 / 43,  # the body once, and three heads
        hidden=True,
        options={"shared": "body", "initialization": "random"},
        as_fedavg={"n_components": 1},
    ),
    Row(  # in two rounds there is no warm-up; the four candidates receive a model to train, and those of all four
        fl.FedEM,
        ("pi",),
        messages=3,
        once=1,
        once_down=5,
        options={"initialization": "clusters"},
        as_fedavg={"n_components": 1},
    ),
    Row(
        fl.FedRC, ("pi",), messages=3 + 3 * 3 / 15, options={"initialization": "random"}, as_fedavg={"n_components": 1}
    ),
    Row(
        fl.DensityFedEM,
        ("pi",),
        messages=3 + 3 * (1 + 4 + 4) / 15,
        down=3 + 3 * 4 / 15,
        options={"initialization": "random"},
        as_fedavg={"n_components": 1},
    ),
    Row(
        fl.FedGMM,
        ("joint",),
        messages=3 + 2 * (1 + 4 + 4) / 15,
        down=3 + 2 * (4 + 4) / 15,
        options={"n_gaussians": 2},
        as_fedavg={"n_components": 1},
    ),
    Row(fl.FedAvg),
    Row(fl.FedAvgEnsemble, messages=2, options={"n_components": 2}, as_fedavg={"n_components": 1}),
    Row(fl.Local, ("models",), server=False, messages=0),
    Row(fl.FedProx, options={"mu": 0.3}, as_fedavg={"mu": 0.0}),
    Row(fl.FedDyn, ("gradients",), options={"alpha": 0.3}, as_fedavg="the first mean counts twice"),
    Row(  # tau_t beside a model
        fl.FedNova,
        messages=1 + 1 / 15,
        down=1,
        as_fedavg="momentum begins anew in each round",
    ),
    Row(fl.FedLC, options={"keep_own": True}, as_fedavg={"tau": 0.0, "keep_own": True}),  # clients of one class
    Row(fl.FedAMP, ("models",), server=False, as_fedavg={"penalty": 0.0}),
    Row(fl.MOON, ("previous",), hidden=True, as_fedavg={"mu": 0.0}),
    Row(fl.Clustered, server=False, samples=False, options={"eps1": 1e9, "eps2": 0.0, "min_rounds": 1}),
    Row(
        fl.PFedMe,
        ("models",),
        options={"penalty": 2.0, "outer_lr": 0.2, "inner_steps": 3},
        as_fedavg="a proximal point without momentum, and eta lambda of the way to it",
    ),
    Row(fl.Ditto, ("own",), as_fedavg={"penalty": 0.0}),
    Row(fl.FedPer, ("own",), messages=25 / 43, hidden=True),
    Row(fl.LGFedAvg, ("own",), messages=18 / 43, hidden=True),
    Row(fl.FedRep, ("own",), messages=25 / 43, hidden=True, as_fedavg="heads and bodies move in turn"),
    Row(fl.FedRoD, ("own",), hidden=True, as_fedavg="a personal head joins the generic one"),
    Row(  # a linear layer of 15 numbers, 2 x 10 of its adapters, and 2 of the router
        fl.FLoRAL,
        ("own", "pi"),
        messages=35 / 15,
        options={"n_components": 2, "rank": 1, "component_weights": "samples"},
        as_fedavg="adapters move beside the layers",
    ),
    Row(
        fl.FedProto,
        ("models",),
        server=False,
        messages=18 / 43,  # a prototype of 5 features and a count for each of 3 classes
        down=9 / 43,  # none in the first of two rounds
        hidden=True,
        as_fedavg="models are not averaged",
    ),
    Row(
        fl.FedDBE,
        ("own",),
        once=5 / 43,  # the mean features
        once_down=1 + 5 / 43,
        hidden=True,
        options={"penalty": 0.5},
        as_fedavg="each client's shift moves, too",
    ),
    Row(fl.FedAS, ("own",), messages=25 / 43, hidden=True, as_fedavg={"align_lr": 0.0}),
    Row(  # the body, 3 embeddings of 5 numbers, and two layers with their normalisation
        fl.GPFL,
        ("own",),
        messages=(25 + 15 + 80) / 43,
        hidden=True,
        as_fedavg="embeddings change the features",
    ),
    Row(  # the model, and a policy from 5 to 10 numbers with its normalisation
        fl.FedCP,
        ("own",),
        messages=(43 + 60 + 20) / 43,
        hidden=True,
        as_fedavg="a policy divides the features between two heads",
    ),
    Row(
        fl.FedPAC,
        ("own",),
        messages=(43 + 2 * 15 + 3 + 1) / 43,  # with mu, V, and sums and numbers by class
        down=1 + 15 / 2 / 43,  # no class means in the first of two rounds
        hidden=True,
        as_fedavg="heads and bodies move in turn",
    ),
    Row(  # FedAvg, and a round with profiles: 3 classes and all samples, a mean and a deviation of 3 numbers
        fl.FEROMA,
        ("models",),
        messages=1 + 4 * 2 * 3 / 2 / 43,
        down=1,
        draws=True,
        hidden=True,
        options={"warm_up_rounds": 1},
    ),
    Row(fl.FedBABU, messages=25 / 43, hidden=True, as_fedavg="the head does not move"),
    Row(fl.FedBN),
    Row(fl.FedALA, ("own",), draws=True, hidden=True, options={"tolerance": 9.0}),
    Row(fl.PerFedAvg, draws=True, options={"inner_lr": 0.1}, as_fedavg={"inner_lr": 0.0}),
    Row(fl.Scaffold, ("controls",), messages=2),
    Row(fl.APFL, ("own",), as_fedavg={"alpha": 0.0, "adaptive": False}),
    Row(
        fl.L2SGD,
        ("models",),
        server=False,
        messages=0.5,  # J = 0 in one of two rounds
        options={"probability": 0.2, "pull": 0.4},
        as_fedavg="a random number of steps, without momentum",
    ),
    Row(
        fl.AFL,
        samples=False,
        options={"weights_lr": 0.1},
        as_fedavg="one step on the full batch without momentum; serves the mean of all rounds",
    ),
    Row(fl.QFFL, messages=1 + 2 / 15, down=1, as_fedavg={"q": 0.0}),
    Row(fl.Agnostic, messages=1 + 4 / 15, down=1, options={"domain_lr": 0.5}),
    Row(fl.HypCluster, down=2, options={"initialization": "random"}, as_fedavg={"n_components": 1}),
    Row(
        fl.Mapper,
        options={"adaptation": fl.Interpolate(lambdas=(0.2, 0.7))},
        as_fedavg={"adaptation": fl.Interpolate(lambdas=(0.0,))},
    ),
    # equal samples have no noise, by which eq6 divides
    Row(fl.UserCentric, ("models",), server=False, once=1, draws=True, as_fedavg={"similarity": "cosine"}),
    Row(fl.UserCentric, ("models",), server=False, once=1, options={"similarity": "cosine"}),
    Row(fl.FedFOMO, ("models",), server=False, down=3, options={"exploration": 0.0}),
    Row(fl.Oracle, server=False),
    Row(
        fl.MOCHA,
        ("b",),
        server=False,
        sgd=False,
        options={"penalty": 0.1, "inner_rounds": 2},
        as_fedavg="coordinate steps in the dual",
    ),
    Row(
        fl.DFedEM,
        ("pi", "models"),
        server=False,
        messages=9,
        options={"topology": COMPLETE},
        as_fedavg={"n_components": 1},
    ),
]


def own_rows(model: fl.FederatedAlgorithm, name: str) -> torch.Tensor:
    """Each client's private numbers, float64 [T, ...]."""
    kept = getattr(model, name)
    if isinstance(kept, ClientStore):
        rows = kept[torch.arange(model.n_clients)].values()
        return torch.cat([tensor.flatten(1) for tensor in rows], dim=1).double()
    return kept.clone().double()


class Noisy(torch.nn.Module):
    """BatchNorm with its counters, and dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.norm = torch.nn.Linear(4, 6), torch.nn.BatchNorm1d(6)
        self.dropout, self.out = fl.Dropout(0.3), torch.nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.dropout(self.norm(self.hidden(x)).relu()))
