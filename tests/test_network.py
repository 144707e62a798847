"""Simulated time: equations by hand, determinism, the deadline, and what every method puts on the air."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch

from fedem_lightning import (
    AFL,
    APFL,
    MOCHA,
    Clustered,
    DFedEM,
    FedAvg,
    FedEM,
    FederatedAlgorithm,
    HypCluster,
    Local,
    Network,
    ShiftedExponentialNetwork,
    Topology,
    UserError,
)
from fedem_lightning.models.parts import model_bytes
from fedem_lightning.module.round import draw_cohort
from fedem_lightning.state.network import Traffic, in_time, times_of_round
from helpers.conformance import own_rows
from helpers.federations import make_data, make_model, train

FIGURE_3 = {
    "wireless": ShiftedExponentialNetwork(rho=4, t_min=1, mu=1),
    "reliable": ShiftedExponentialNetwork(rho=2, t_min=1, mu=None),
    "balanced": ShiftedExponentialNetwork(rho=1, t_min=1, mu=float("inf")),
}


def traffic(uploads: float = 1, streams: float = 1) -> Traffic:
    """What a round sends; the totals take no part in its time."""
    return Traffic(0, 0, uploads, streams, 0, 1)


def times_of(network: Network, n_clients: int, round_: int, seed: int = 0) -> torch.Tensor:
    """Of computing, [T]; one sample each."""
    return network.compute_times(torch.arange(n_clients), torch.ones(n_clients), seed, round_)


ROUND: Any = (torch.arange(20), torch.ones(20), 0, 0)  # clients, work, seed, number


def times(networks: Mapping[str, Network], sent: Traffic) -> dict[str, float]:
    """Of the round, in which those train who meet the deadline."""
    clients, work, *which = ROUND
    return times_of_round(networks, clients, work, in_time(networks, *ROUND), sent, *which)


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
    assert in_time(FIGURE_3, *ROUND).all()
    slowest = float(times_of(FIGURE_3["wireless"], 20, 0).max())
    fedavg, fedem, unicast = traffic(), traffic(3, 3), traffic(1, 20)
    assert times(FIGURE_3, fedavg) == pytest.approx({"wireless": slowest + 4 + 1, "reliable": 4, "balanced": 3})
    assert times(FIGURE_3, fedem) == pytest.approx({"wireless": slowest + 12 + 3, "reliable": 10, "balanced": 7})
    assert times(FIGURE_3, unicast) == pytest.approx({"wireless": slowest + 4 + 20, "reliable": 23, "balanced": 22})
    shared = ShiftedExponentialNetwork(rho=2, t_min=1, mu=None, shared_uplink=True)
    assert times({"shared": shared}, fedem) == {"shared": 1 + 120 + 3}


def test_the_deadline_of_a_round() -> None:
    limited = ShiftedExponentialNetwork(rho=4, t_min=1, mu=1, deadline=2.0)
    networks = {**FIGURE_3, "limited": limited}
    computing, met = limited.compute_times(*ROUND), in_time(networks, *ROUND)
    assert 0 < met.sum() < 20
    assert torch.equal(met, computing <= 2)
    took = times(networks, traffic())
    assert took["limited"] == 2 + 4 + 1  # everybody who is in time is waited for until then
    assert took["wireless"] == pytest.approx(float(computing[computing <= 2].max()) + 4 + 1)  # the same clients
    all_late = ShiftedExponentialNetwork(rho=4, t_min=1, mu=1, deadline=1.0)
    assert in_time({"late": all_late}, *ROUND).nonzero().flatten().tolist() == [int(computing.argmin())]
    assert times({"late": all_late}, traffic()) == pytest.approx({"late": float(computing.min()) + 4 + 1})
    nobody_late = ShiftedExponentialNetwork(rho=4, t_min=1, mu=1, deadline=1e3)
    assert times({"n": nobody_late}, traffic())["n"] == float(computing.max()) + 4 + 1


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
    model = train(make_model(kind, data, networks=FIGURE_3, **options), data, 2)
    n_clients = options.get("participation", 4)
    assert model.statistics.air_bytes == 2 * (uploads * n_clients + streams) * model_bytes(model.components[0])
    assert model.statistics.times["reliable"] == 2 * (1 + 2 * uploads + streams)
    assert model.statistics.times["balanced"] == 2 * (1 + uploads + streams)


LIMITED = {**FIGURE_3, "limited": ShiftedExponentialNetwork(rho=4, t_min=1, mu=1, deadline=2.0)}


@pytest.mark.parametrize(
    ("kind", "private", "models"),  # `models`: what each client sends, and hears from the server, if there is one
    [(FedEM, ["pi"], 3), (APFL, ["own"], 1), (Local, ["models"], 0), (DFedEM, ["private", "models"], 3)],
)
def test_who_misses_the_deadline_keeps_its_state(
    kind: type[FederatedAlgorithm], private: list[str], models: int
) -> None:
    data = make_data(sizes=(9,) * 8)
    options = {"topology": COMPLETE} if kind is DFedEM else {}
    model = make_model(kind, data, networks=LIMITED, participation=6, **options)
    before = [own_rows(model, name) for name in private]
    train(model, data, 1)
    drawn = draw_cohort(model, data.federation, 0)
    on_time = drawn[times_of(LIMITED["limited"], 8, 0)[drawn] <= 2]
    assert 0 < len(on_time) < 6
    late = [t for t in range(8) if t not in on_time]
    for name, old in zip(private, before, strict=True):
        new = own_rows(model, name)
        assert torch.equal(new[late], old[late])
        assert (new[on_time] != old[on_time]).view(len(on_time), -1).any(dim=1).all()
    statistics = model.statistics
    assert statistics.stragglers == 6 - len(on_time)
    n, size, streams = len(on_time), 8 * (4 * 3 + 3), models
    up, down = models * n, models * 6  # the server is heard by those who will be late
    if kind is DFedEM:  # each to all others who are in time; there is no server
        up = down = models * n * (n - 1)
        streams = 0
    assert (statistics.up_bytes, statistics.down_bytes) == (up * size, down * size)
    assert statistics.times["limited"] == 2 + 4 * models + streams


# --- mistakes ---------------------------------------------------------------------------------------------------------


def test_methods_and_networks_that_do_not_fit_are_named() -> None:
    data, limited = make_data(), LIMITED["limited"]
    with pytest.raises(UserError, match=r"one deadline at most, got those of a, b"):
        make_model(FedAvg, data, networks={"a": limited, "b": limited, "c": FIGURE_3["wireless"]})
    with pytest.raises(UserError, match=r"networks: expected "):
        make_model(FedAvg, data, networks={"a": 1.0})
    for kind in (AFL, Clustered):
        with pytest.raises(UserError, match=rf"network.deadline: {kind.__name__} needs every client"):
            train(make_model(kind, data, networks=LIMITED), data, 1)
