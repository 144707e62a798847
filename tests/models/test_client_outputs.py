"""Models of the clients' own: all at once they give what each network gives for its client's samples by itself."""

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedem_lightning as fl
from fedem_lightning.data.federation import Block
from fedem_lightning.models import client_outputs as module
from fedem_lightning.models.components import make_components, model_state
from fedem_lightning.models.personal_models import OwnModels
from fedem_lightning.models.tensors import call_with

SIZES = (5, 0, 9, 4, 5, 1, 8, 5)  # of clients; one has no samples


class Last(nn.Module):
    """The last character's logits."""

    def __init__(self) -> None:
        super().__init__()
        self.network = fl.CharLSTM(3, embedding=2, hidden=4, n_layers=1)

    def forward(self, x: Tensor) -> Tensor:
        """Codes [n, L] -> [n, 3]."""
        last: Tensor = self.network(x % 3)[:, -1]
        return last


class Two(nn.Module):
    """Two inputs, of which one is added to what the other becomes."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 3), nn.Linear(2, 3)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        """[n, 4], [n, 2] -> [n, 3]."""
        return self.first(a).relu() + self.second(b)


class Residual(nn.Module):
    """A network that adds its input, which models share, to its outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        """[n, 4] -> [n, 3]."""
        return (x + self.inner(x))[:, :3]


class Mixes(nn.Module):
    """Subtracts the mean of all samples that it sees together."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        """[n, 4] -> [n, 3]."""
        z = self.layer(x)
        return z - z.mean(dim=0)


class Branches(nn.Module):
    """Its way depends on the values, which `torch.func.vmap` refuses."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.layer = nn.LayerNorm(4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        """[n, 4] -> [n, 3]."""
        z: Tensor = self.layer(self.norm(x))
        return z if z.sum() > 0 else -z


class Recurrent(nn.Module):
    """A layer that cannot be stacked."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.GRU(1, 3, batch_first=True), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        """[n, L] -> [n, 3]."""
        z: Tensor = self.head(self.layer(x.unsqueeze(-1))[0][:, -1])
        return z


def frozen_body() -> nn.Module:
    network = fl.MLP((4,), 3, [5])
    network.layers[0].requires_grad_(False)
    return network


NETWORKS: dict[str, Any] = {
    "linear": lambda: fl.Linear((4,), 3),
    "mlp": lambda: fl.MLP((4,), 3, [5]),
    "frozen": frozen_body,
    "dropout": lambda: nn.Sequential(nn.Linear(4, 6), nn.Dropout(0.5), nn.Linear(6, 3)),
    "norm": lambda: nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3)),
    "residual": Residual,
    "several inputs": Two,
    "conv": lambda: nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(2 * 4, 3)),
    "lstm": Last,
    "gru": Recurrent,
    "mixes": Mixes,
    "branches": Branches,
}


def block_of(name: str, sizes: tuple[int, ...] = SIZES) -> Block:
    rng, n = np.random.default_rng(0), sum(sizes)
    x: Any = rng.normal(size=(n, 4)).astype(np.float32)
    if name == "several inputs":
        x = {"a": x, "b": x[:, :2] + 1}
    if name == "conv":
        x = rng.normal(size=(n, 1, 4, 4)).astype(np.float32)
    if name == "lstm":
        x = rng.integers(3, size=(n, 6))
    owner = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    y, split = rng.integers(3, size=n), np.zeros(n, dtype=np.int8)
    federation = fl.FederatedDataModule.from_arrays(x, y, owner.numpy(), split=split, n_classes=3).federation
    return Block(federation, torch.arange(len(sizes)), torch.arange(n), owner)


def own_models(name: str, n_clients: int, n_models: int, shared: tuple[str, ...] = ()) -> OwnModels:
    """Models with random values; tensors with a name in `shared` are the same for all clients."""
    torch.manual_seed(1)
    network = make_components(NETWORKS[name](), 1, 0)[0]
    models = {}
    for key, tensor in model_state(network).items():
        rows = 1 if any(key.startswith(part) for part in shared) else n_clients
        noise = torch.randn(rows, n_models, *tensor.shape)
        noise = noise.abs() if key.endswith("running_var") else noise
        models[key] = (tensor + noise if tensor.is_floating_point() else tensor.expand(noise.shape)).expand(
            n_clients, n_models, *tensor.shape
        )
    return OwnModels(network, models, torch.rand(n_clients, n_models).softmax(dim=1))


def alone(own: OwnModels, block: Block, c: int, m: int) -> Tensor:
    """The logits of one network, loaded with model (c, m), for client c's samples."""
    network = copy.deepcopy(own.backbone)
    network.load_state_dict({name: rows[c, m] for name, rows in own.models.items()}, strict=False)
    network.eval()
    x = block.federation.samples.features(block.index[block.owner == c], torch.float32)
    outputs: Tensor = network(**x) if isinstance(x, dict) else network(x)
    return outputs.detach()


def check(own: OwnModels, block: Block) -> None:
    """Losses and predictions against each network by itself, mixed with NumPy."""
    losses, predicted = own.losses(block).numpy(), own.predict(block).numpy()
    assert losses.shape == (len(block.index), own.mixture.shape[1])
    for c in block.owner.unique().tolist():
        mine, total = (block.owner == c).numpy(), 0.0
        for m, pi in enumerate(own.mixture[c].tolist()):
            z = alone(own, block, c, m).double().numpy()
            p = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
            label = block.y()[block.owner == c].numpy()
            np.testing.assert_allclose(losses[mine, m], -np.log(p[np.arange(len(p)), label]), rtol=2e-5, atol=2e-5)
            total = total + (p if own.mixture.shape[1] == 1 else pi * p)
        np.testing.assert_allclose(np.exp(predicted[mine]), total, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("n_models", [1, 3])
@pytest.mark.parametrize("name", NETWORKS)
def test_all_clients_at_once_give_what_each_network_gives(name: str, n_models: int) -> None:
    block = block_of(name)
    check(own_models(name, len(SIZES), n_models), block)


@pytest.mark.parametrize("n_models", [1, 2])
@pytest.mark.parametrize("shared", [("layers.0",), ("layers.2",), ("layers.0.weight", "layers.2"), ("layers",)])
def test_what_clients_share_runs_once(shared: tuple[str, ...], n_models: int) -> None:
    check(own_models("mlp", len(SIZES), n_models, shared), block_of("mlp"))


@pytest.mark.parametrize("name", ["conv", "norm", "gru"])
def test_models_that_nobody_has_trained_run_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    block, own = block_of(name), own_models(name, len(SIZES), 2, shared=("",))
    check(own, block)
    calls = []

    def counted(*given: Any) -> Any:
        calls.append(1)
        return call_with(*given)

    monkeypatch.setattr(module, "call_with", counted)
    own.predict(block)
    assert len(calls) == 2  # one for each of the two models


def test_linear_networks_are_not_called_client_by_client(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = (4,) * 50
    block, own = block_of("mlp", sizes), own_models("mlp", 50, 1)
    check(own, block)  # which also checks the first group against the network alone
    monkeypatch.setattr(module, "call_with", None)
    assert own.predict(block).shape == (200, 3)


@pytest.mark.parametrize("name", ["mlp", "norm", "conv"])
@pytest.mark.parametrize("sizes", [(6,), (0, 6), (1, 1), (0, 0)])
def test_one_client_single_samples_and_nobody(name: str, sizes: tuple[int, ...]) -> None:
    own = own_models(name, len(sizes), 2)
    if not sum(sizes):
        one = block_of(name, (1, 1))
        empty = Block(one.federation, one.clients, one.index[:0], one.owner[:0])
        assert own.losses(empty).shape == (0, 2)
        return
    check(own, block_of(name, sizes))


@pytest.mark.parametrize("name", ["mlp", "norm", "conv"])
def test_groups_bounded_by_memory_give_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    block, own = block_of(name), own_models(name, len(SIZES), 2)
    monkeypatch.setattr(module, "MOST_NUMBERS", 100)  # a client or two at a time
    check(own, block)


def test_a_network_with_other_frozen_values_is_not_confused_with_its_former_self() -> None:
    block, own = block_of("frozen"), own_models("frozen", len(SIZES), 1)
    check(own, block)
    frozen = next(p for p in own.backbone.parameters() if not p.requires_grad)
    with torch.no_grad():
        frozen.mul_(-3)
    check(own, block)
    vars(own.backbone)["_modules"]["layers"][0].weight = nn.Parameter(-frozen.detach(), requires_grad=False)
    check(own, block)


def test_a_diverged_client_does_not_reach_the_others() -> None:
    block, own = block_of("mlp"), own_models("mlp", len(SIZES), 1)
    expected = own.losses(block)
    for rows in own.models.values():
        rows[2] = torch.nan
    losses, others = own.losses(block), block.owner != 2
    assert losses[~others].isnan().all()
    torch.testing.assert_close(losses[others], expected[others])
