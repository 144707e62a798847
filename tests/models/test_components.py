"""How components start: with a user's own values, or with new ones; and how equal components become different."""

from typing import Any

import pytest
import torch
from torch import nn

from fedem_lightning import (
    ClientSGD,
    DFedEM,
    FedAvgEnsemble,
    FedEM,
    FederatedAlgorithm,
    FedGMM,
    HypCluster,
    LeNet5,
    UserError,
)
from fedem_lightning.models.components import make_components, start_equal
from helpers.federations import make_data, parameters, train

SGD = ClientSGD(lr=1.0)


class Adapter(nn.Module):
    """A frozen layer with a low-rank addition that starts at zero, a scale and a token: values that mean something."""

    def __init__(self, n_inputs: int = 5, n_outputs: int = 3) -> None:
        super().__init__()
        self.base = nn.Linear(n_inputs, n_outputs).requires_grad_(False)
        self.down, self.up = nn.Linear(n_inputs, 2, bias=False), nn.Linear(2, n_outputs, bias=False)
        nn.init.normal_(self.down.weight, std=0.02)
        nn.init.zeros_(self.up.weight)
        self.table = nn.Embedding(4, n_outputs)
        nn.init.normal_(self.table.weight, std=0.02)
        self.scale, self.token = nn.Parameter(torch.ones(n_inputs)), nn.Parameter(0.02 * torch.randn(1, n_inputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = (x + self.token) * self.scale
        return self.base(x) + self.up(self.down(x)) + self.table.weight[0]


def test_all_components_have_the_users_own_values() -> None:
    network = Adapter()
    components = make_components(network, 3, seed=0)
    assert start_equal(components)
    for component in components:
        assert torch.equal(parameters(component), parameters(network))


def test_a_function_draws_new_values_as_the_user_draws_them() -> None:
    components: Any = make_components(Adapter, 3, seed=0)
    first, second, third = (component.down.weight for component in components)
    assert not torch.equal(first, second)
    assert not torch.equal(second, third)
    for component in components:
        assert not component.up.weight.any()
        assert 0 < component.table.weight.detach().std() < 0.05
        assert component.scale.eq(1).all()


def test_networks_of_this_package_are_drawn_anew_until_one_changes_their_values() -> None:
    torch.manual_seed(0)
    network: Any = LeNet5(10, width=0.2).double()
    network.head[1] = nn.Tanh()  # what holds no values is kept
    network.features.requires_grad_(False)
    components: Any = make_components(network, 3, seed=0)
    for component in components[1:]:
        assert isinstance(component.head[1], nn.Tanh)
        assert component.features[1].weight is components[0].features[1].weight
        assert component.head[0].weight.dtype == torch.float64
        assert not torch.equal(component.head[0].weight, network.head[0].weight)
    with torch.no_grad():
        network.head[-1].bias[0] += 1e-3
    assert start_equal(make_components(network, 3, seed=0))


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (FedEM, {"initialization": "random"}),
        (FedAvgEnsemble, {}),
        (FedGMM, {}),
        (DFedEM, {}),
        (HypCluster, {"initialization": "random"}),
    ],
    ids=["fedem", "ensemble", "fedgmm", "d_fedem", "hypcluster"],
)
def test_methods_that_would_keep_copies_equal_refuse_them(
    kind: type[FederatedAlgorithm], options: dict[str, Any]
) -> None:
    data = make_data(n_features=5)
    model = kind(**{"backbone": Adapter(), "n_clients": 4, "client_optimizer": SGD, **options})
    with pytest.raises(UserError, match=f"components start as copies of one network, and {kind.__name__} would"):
        train(model, data, 1)
