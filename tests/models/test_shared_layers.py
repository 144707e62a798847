"""Networks that hold a layer under two names, or two layers with the same parameter, train like any other."""

import copy
from typing import Any

import pytest
import torch
from torch import nn

from fedem_lightning import APFL, ClientSGD, Engine, FedAvg, FedEM, FederatedDataModule, FedRoD, LoopEngine, VmapEngine
from fedem_lightning.local.training import shuffled_batches
from fedem_lightning.models.parts import users_network
from fedem_lightning.settings.recipes import Recorded
from helpers.by_hand import by_torch
from helpers.conformance import ROWS, Row
from helpers.federations import make_data, parameters, train


class OneLayerTwice(Recorded, nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.a = nn.Linear(4, 5), self.middle()
        self.b, self.last = self.again(self.a), nn.Linear(5, 3)

    def middle(self) -> nn.Module:
        return nn.Linear(5, 5)

    def again(self, layer: nn.Module) -> nn.Module:
        return layer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.b(self.a(self.first(x).tanh()).tanh()).tanh())


class OneNormTwice(OneLayerTwice):
    """Its layer under two names has statistics, too."""

    def middle(self) -> nn.Module:
        return nn.BatchNorm1d(5)


class OneWeightTwice(OneLayerTwice):
    """Two layers with the same weight, and biases of their own."""

    def again(self, layer: nn.Module) -> nn.Module:
        assert isinstance(layer, nn.Linear)
        second = nn.Linear(5, 5)
        second.weight = layer.weight
        return second


NETWORKS = [OneLayerTwice, OneWeightTwice, OneNormTwice]
SGD = ClientSGD(lr=0.3, momentum=0.9, state="keep")
SIZES = (8, 12, 4, 20)  # no batch of one sample, in which BatchNorm has no variance


def network(kind: type[nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return kind()


def by_hand(start: nn.Module, data: FederatedDataModule, rounds: int) -> dict[str, torch.Tensor]:
    server = copy.deepcopy(start).double()
    for round_ in range(rounds):
        sums = {name: torch.zeros_like(t, dtype=torch.float64) for name, t in server.state_dict().items()}
        for t, n in enumerate(SIZES):
            block = data.federation.block(torch.tensor([t]), "train")
            client, (order,) = copy.deepcopy(server).train(), shuffled_batches(block, 4, 1, 0, round_).order
            by_torch(client, block.x(torch.float64), block.y(), order.split(4), lr=0.3, momentum=0.9)
            for name, tensor in client.state_dict().items():
                sums[name] += n / sum(SIZES) * tensor
        server.load_state_dict(sums)
    return {name: t for name, t in server.state_dict().items() if t.is_floating_point()}


@pytest.mark.parametrize("engine", [LoopEngine(), LoopEngine(block_size=1), VmapEngine(), VmapEngine(block_size=1)])
@pytest.mark.parametrize("kind", NETWORKS)
def test_fedavg_agrees_with_plain_torch(kind: type[nn.Module], engine: Engine) -> None:
    data = make_data(SIZES, fractions=(1.0, 0.0, 0.0))
    data.setup("fit")
    optimizer = ClientSGD(lr=0.3, momentum=0.9)
    model = FedAvg(network(kind), data.n_clients, batch_size=4, engine=engine, client_optimizer=optimizer)
    expected, found = by_hand(network(kind), data, 3), train(model, data, 3).components[0].state_dict()
    assert model.local.engine.name == engine.name
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=0, atol=1e-12, msg=name)


@pytest.mark.parametrize("row", [r for r in ROWS if r.kind in (FedEM, APFL, FedRoD)], ids=lambda row: row.kind.__name__)
def test_engines_agree(row: Row) -> None:
    data, models = row.data(sizes=SIZES), []
    for engine in (LoopEngine(block_size=1), VmapEngine()):
        torch.manual_seed(0)
        options: dict[str, Any] = {"batch_size": 4, "engine": engine, "client_optimizer": SGD, **row.options}
        models.append(train(row.kind(OneLayerTwice, data.n_clients, **options), data, 3))
    torch.testing.assert_close(parameters(models[1]), parameters(models[0]), rtol=1e-10, atol=1e-12)
    for component in map(users_network, models[1].components):
        assert component.a.weight is component.b.weight
