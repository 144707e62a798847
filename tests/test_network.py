"""Simulated time: equations by hand, determinism, and what every method puts on the air."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch

from fedem_lightning import (
    APFL,
    MOCHA,
    Clustered,
    DFedEM,
    FedAvg,
    FedEM,
    FederatedAlgorithm,
    HypCluster,
    Local,
    ShiftedExponentialNetwork,
    Topology,
)
from fedem_lightning.models.parts import model_bytes
from fedem_lightning.state.network import Traffic, times_of_round
from helpers.federations import make_data, make_model, train

FIGURE_3 = {
    "wireless": ShiftedExponentialNetwork(rho=4, t_min=1, mu=1),
    "reliable": ShiftedExponentialNetwork(rho=2, t_min=1, mu=None),
    "balanced": ShiftedExponentialNetwork(rho=1, t_min=1, mu=float("inf")),
}


def traffic(uploads: float = 1, streams: float = 1) -> Traffic:
    """What a round sends; the totals take no part in its time."""
    return Traffic(0, 0, uploads, streams, 0, 1)


def times_of(network: ShiftedExponentialNetwork, n_clients: int, round_: int, seed: int = 0) -> torch.Tensor:
    """Of computing, [T]; one sample each."""
    return network.compute_times(torch.arange(n_clients), torch.ones(n_clients), seed, round_)


ROUND: Any = (torch.arange(20), torch.ones(20), 0, 0)  # clients, work, seed, number


def times(networks: Mapping[str, ShiftedExponentialNetwork], sent: Traffic) -> dict[str, float]:
    clients, work, *which = ROUND
    return times_of_round(networks, clients, work, sent, *which)


# --- equations --------------------------------------------------------------------------------------------------------


def test_computing_times_are_shifted_exponential() -> None:
    network = ShiftedExponentialNetwork(4, t_min=1.5, mu=2)
    times = times_of(network, 40_000, round_=3).numpy()
    assert times.min() > 1.5
    for t in (1.6, 2.0, 3.0):
        assert (times > t).mean() == pytest.approx(np.exp(-2 * (t - 1.5)), abs=0.01)
    for mu in (None, float("inf")):
        assert times_of(ShiftedExponentialNetwork(4, 1.5, mu), 5, 0).tolist() == [1.5] * 5


def test_times_are_functions_of_seed_round_and_client() -> None:
    network, clients, work = ShiftedExponentialNetwork(4, 1, 1), torch.arange(9), torch.ones(9)
    times = network.compute_times(clients, work, 0, 5)
    order = torch.tensor([7, 2, 4])
    assert torch.equal(network.compute_times(order, work[:3], 0, 5), times[order])
    for other in ((0, 6), (1, 5)):
        assert not (network.compute_times(clients, work, *other) == times).any()


def test_a_round_of_the_paper() -> None:
    slowest = float(times_of(FIGURE_3["wireless"], 20, 0).max())
    fedavg, fedem, unicast = traffic(), traffic(3, 3), traffic(1, 20)
    assert times(FIGURE_3, fedavg) == pytest.approx({"wireless": slowest + 4 + 1, "reliable": 4, "balanced": 3})
    assert times(FIGURE_3, fedem) == pytest.approx({"wireless": slowest + 12 + 3, "reliable": 10, "balanced": 7})
    assert times(FIGURE_3, unicast) == pytest.approx({"wireless": slowest + 4 + 20, "reliable": 23, "balanced": 22})


# --- beside training --------------------------------------------------------------------------------------------------

COMPLETE = Topology(graph="complete")
ON_AIR: list[tuple[type[FederatedAlgorithm], dict[str, Any], float, float]] = [  # uploads a client, streams; 4 clients
    (FedAvg, {}, 1, 1),
    (FedAvg, {"participation": 2}, 1, 1),
    (APFL, {}, 1, 1),
    (FedEM, {}, 3, 3),
    (HypCluster, {"n_components": 3, "initialization": "random"}, 1, 3),
    (Local, {}, 0, 0),
    (Clustered, {}, 1, 1),
    (Clustered, {"eps1": 1e9, "eps2": 0.0, "min_rounds": 0}, 1, 1.5),  # two after the split of the first round
    (DFedEM, {"topology": COMPLETE}, 3, 0),
    (MOCHA, {}, 1, 4),
    (MOCHA, {"participation": 2}, 1, 2),
]


@pytest.mark.parametrize(("kind", "options", "uploads", "streams"), ON_AIR)
def test_what_is_on_the_air(
    kind: type[FederatedAlgorithm], options: dict[str, Any], uploads: float, streams: float
) -> None:
    data = make_data(n_classes=2, task="binary") if kind is MOCHA else make_data()
    model = make_model(kind, data, **options)
    model.networks = FIGURE_3
    train(model, data, 2)
    n_clients = options.get("participation", 4)
    assert model.statistics.air_bytes == 2 * (uploads * n_clients + streams) * model_bytes(model.components[0])
    assert model.statistics.times["reliable"] == 2 * (1 + 2 * uploads + streams)
    assert model.statistics.times["balanced"] == 2 * (1 + uploads + streams)
