"""FedEM whose components share parameters: the equations in NumPy, the cases in which it is another method, bytes."""

from typing import Any

import numpy as np
import pytest
import torch

from fedem_lightning import Dropout, FedEM, Finetune, UserError
from fedem_lightning.aggregate import PrivateMean
from fedem_lightning.aggregate.compression import TopK
from fedem_lightning.evaluate.scores import scored_models
from fedem_lightning.local.optimizers import ClientSGD
from fedem_lightning.models.mixture_network import MixtureNetwork, tensors_of
from fedem_lightning.models.stacked import StackedMixture
from fedem_lightning.models.tensors import call_with
from helpers import perceptron
from helpers.federations import make_data, make_model, parameters, train
from helpers.perceptron import BODY, HEAD

M, ROUNDS = 3, 3


def mixture(shared: Any, n_components: int = M, **options: Any) -> Any:
    given = {"participation": 2, "client_optimizer": ClientSGD(lr=0.2), "hidden": True, **options}
    return make_model(FedEM, perceptron.Clients().data, n_components=n_components, shared=shared, **given)


@pytest.mark.parametrize("engine", ["loop", "vmap"])
@pytest.mark.parametrize(("shared", "own"), [("body", HEAD), (["layers.0"], HEAD), (["layers.2"], BODY)], ids=str)
def test_rounds_agree_with_numpy(shared: Any, own: tuple[str, ...], engine: str) -> None:
    """Unequal clients, a cohort of two, minibatches: a shared body with own heads, and a shared head."""
    model = mixture(shared, engine=engine)
    expected = perceptron.Mixture(model, M, own)
    for number in range(ROUNDS):
        expected.round(number)
    train(model, perceptron.Clients().data, ROUNDS)
    np.testing.assert_allclose(model.pi.numpy(), expected.pi, rtol=1e-9)
    for m in range(M):
        perceptron.assert_models_agree(perceptron.start_of(model, m), expected.components[m])


@pytest.mark.parametrize("engine", ["loop", "vmap"])
def test_tuning_is_an_m_step_that_leaves_one_body(engine: str) -> None:
    data = perceptron.Clients().data
    model = train(mixture("body", adaptation=Finetune(), engine=engine), data, 2)
    block = data.federation.block(data.federation.clients(), "train")
    tuned = scored_models(model, block).models
    q = model.e_step(model.pi, model.losses(block), block)
    expected = model.tied.local_sgd(model.tied.received(block.clients, M), block, 2, q)
    for name, rows in tuned.items():
        torch.testing.assert_close(rows, expected[name])
        assert torch.equal(rows[:, 0], rows[:, 2]) == (name in BODY)


class Wide(torch.nn.Module):
    """A head that is no end of the network, and dropout before it."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.drop, self.head = torch.nn.Linear(4, 5), Dropout(0.3), torch.nn.Linear(5, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2.0 * self.head(self.drop(self.body(x).relu()))


@pytest.mark.parametrize("network", [lambda: torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Linear(5, 3)), Wide])
def test_the_network_of_a_mixture_has_the_outputs_of_all(network: Any) -> None:
    """Whether the body runs once (the head ends the network) or once for every component."""
    components = torch.nn.ModuleList(network() for _ in range(M))
    own = [name for name, _ in components[0].named_parameters()][2:]
    mixed, calls = MixtureNetwork(components, own).eval(), []
    next(mixed.network.children()).register_forward_hook(lambda *_: calls.append(1))
    x = torch.randn(6, 4)
    found = call_with(mixed, tensors_of(components, own), x)
    assert len(calls) == (1 + M if network is Wide else 1)  # it is tried first
    first = dict(components[0].named_parameters())
    for m, component in enumerate(components.eval()):
        tied: dict[str, torch.Tensor] = {n: first[n] if n not in own else p for n, p in component.named_parameters()}
        torch.testing.assert_close(found[:, m], call_with(component, tied, x))


@pytest.mark.parametrize("shared", [["body"], ["head"]], ids=str)
def test_engines_agree_and_one_of_them_stacks_the_components(shared: list[str]) -> None:
    """Also with dropout, whose masks are those of all components, and in a second fit."""
    found = []
    for engine in ("loop", "vmap"):
        torch.manual_seed(0)
        data = make_data(sizes=perceptron.SIZES)
        model: Any = FedEM(Wide(), n_clients=4, n_components=2, initialization="shared", engine=engine, shared=shared)
        found.append(parameters(train(train(model, data, 1), data, 1)))
        stacked = getattr(model.tied.training.engine, "_stacked", None)
        assert isinstance(stacked, StackedMixture) == (engine == "vmap")
    torch.testing.assert_close(found[0], found[1], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"shared": ["conv"]},
            "shared: expected body, or names of modules with parameters .layers.0, layers.2., got 'conv'",
        ),
        ({"shared": ["layers"]}, "shared: components would differ in nothing; that is algorithm=fedavg"),
        ({"shared": "body", "compression": TopK(0.5)}, "shared: leave out compression"),
        ({"shared": "body", "aggregation": PrivateMean(1.0, 1.0)}, "shared: a private mean"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_what_does_not_go_with_sharing_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        mixture(**options)
