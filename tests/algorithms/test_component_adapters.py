"""FedEM whose components share all but LoRA adapters: the equations in NumPy, degenerate cases, bytes, refusals."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedem_lightning import (
    DFedEM,
    FedAvgEnsemble,
    FederatedDataModule,
    FedGMM,
    HypCluster,
    ReferenceCNN,
    Transformer,
    UserError,
    load_clients,
)
from fedem_lightning.algorithms.fedem import FedEM
from fedem_lightning.backbones.pretrained import LoRA
from fedem_lightning.client_optimizers import ClientSGD
from fedem_lightning.export import main as export
from fedem_lightning.models.tensors import trained_parameters
from helpers import by_hand, perceptron
from helpers.encoders import CONFIG
from helpers.federations import make_data, make_model, make_trainer, parameters, train
from helpers.perceptron import BODY, HEAD, Model

pytest.importorskip("peft")

M, ROUNDS, RANK, ALPHA = 3, 3, 2, 6.0


def mixture(adapters: Any, n_components: int = M, **options: Any) -> Any:
    given = {"participation": 2, "client_optimizer": ClientSGD(lr=0.2), "hidden": True, **options}
    return make_model(FedEM, perceptron.Clients().data, n_components=n_components, adapters=adapters, **given)


def plain(model: Model) -> Model:
    """The same tensors by shorter names."""
    return {name.replace(".base_layer", "").replace(".default", ""): tensor for name, tensor in model.items()}


class Numpy:
    """Rounds of FedEM in NumPy: W + (alpha / r) B_m A_m in both layers; theta_0 is W and the biases."""

    def __init__(self, model: Any) -> None:
        self.clients, self.pi = perceptron.Clients(), np.full((len(perceptron.SIZES), M), 1 / M)
        states = [plain(perceptron.start_of(model, m)) for m in range(M)]
        self.theta: Model = {name: states[0][name] for name in (*BODY, *HEAD)}
        self.phi: list[Model] = [{name: t for name, t in state.items() if "lora" in name} for state in states]

    @staticmethod
    def effective(theta: Model, phi: Model) -> Model:
        """The network of a component without adapters."""
        merged = dict(theta)
        for layer in ("layers.0", "layers.2"):
            product = phi[f"{layer}.lora_B.weight"] @ phi[f"{layer}.lora_A.weight"]
            merged[f"{layer}.weight"] = theta[f"{layer}.weight"] + ALPHA / RANK * product
        return merged

    def round(self, number: int) -> None:
        sent, sizes = [], []
        for t in self.clients.cohort(number):
            x, y = self.clients.samples[t]
            losses = [perceptron.losses(self.effective(self.theta, phi), x, y) for phi in self.phi]
            q = self.pi[t] * np.exp(-np.stack(losses, axis=1))
            q /= q.sum(axis=1, keepdims=True)  # Eq. 8
            self.pi[t] = q.mean(axis=0)  # Eq. 9
            sent.append(self.local(t, number, q))
            sizes.append(len(y))
        self.theta = perceptron.mean([theta for theta, _ in sent], sizes)
        self.phi = [perceptron.mean([phi[m] for _, phi in sent], sizes) for m in range(M)]

    def local(self, t: int, number: int, q: np.ndarray) -> tuple[Model, list[Model]]:
        """The M-step: theta_0 and all phi_m take each step together."""
        theta, phi, (x, y) = self.theta, self.phi, self.clients.samples[t]
        for rows in by_hand.batches(self.clients.data, t, self.clients.batch_size, 1, number):
            steps = [self.gradient(theta, phi[m], x[rows], y[rows], q[rows, m]) for m in range(M)]
            of_theta = {name: np.sum([step[name] for step, _ in steps], axis=0) for name in theta}
            phi = [perceptron.plus(phi[m], steps[m][1], -self.clients.lr) for m in range(M)]
            theta = perceptron.plus(theta, of_theta, -self.clients.lr)
        return theta, phi

    def gradient(self, theta: Model, phi: Model, x: np.ndarray, y: np.ndarray, q: np.ndarray) -> tuple[Model, Model]:
        """Of (1 / |I|) sum_i q_i l_i, by W and the biases, and by A and B."""
        merged = self.effective(theta, phi)
        each = [perceptron.gradient(merged, x[i : i + 1], y[i : i + 1]) for i in range(len(y))]
        g = {name: sum(q[i] * one[name] for i, one in enumerate(each)) / len(y) for name in merged}
        of_phi: Model = {}
        for layer in ("layers.0", "layers.2"):
            a, b = phi[f"{layer}.lora_A.weight"], phi[f"{layer}.lora_B.weight"]
            of_phi[f"{layer}.lora_A.weight"] = ALPHA / RANK * b.T @ g[f"{layer}.weight"]
            of_phi[f"{layer}.lora_B.weight"] = ALPHA / RANK * g[f"{layer}.weight"] @ a.T
        return g, of_phi


@pytest.mark.parametrize("engine", ["loop", "vmap"])
def test_rounds_agree_with_numpy(engine: str) -> None:
    """Unequal clients, a cohort of two, minibatches; adapters that have left 0."""
    model = mixture(LoRA(RANK, ALPHA), engine=engine)
    for m, component in enumerate(model.components):  # B = 0 at first: the test would not see a wrong A
        rng = np.random.default_rng(m)
        for name, p in component.named_parameters():
            if "lora_B" in name:
                p.data = torch.from_numpy(rng.normal(size=tuple(p.shape))).to(p)
    expected = Numpy(model)
    for number in range(ROUNDS):
        expected.round(number)
    train(model, perceptron.Clients().data, ROUNDS)
    np.testing.assert_allclose(model.pi.numpy(), expected.pi, rtol=1e-9)
    for m in range(M):
        perceptron.assert_models_agree(plain(perceptron.start_of(model, m)), expected.theta | expected.phi[m])


def test_components_start_at_one_network() -> None:
    """B = 0, so all components give what the network gives; A is drawn for each."""
    model, other = mixture(RANK), mixture(None)
    x = torch.randn(6, 4, dtype=torch.float64)
    model.initialize(perceptron.Clients().data.federation)
    model.double()
    outputs = [component(x) for component in model.components]
    assert torch.equal(outputs[0], outputs[1])
    assert torch.equal(outputs[0], other.double().components[0](x))
    first, second = (component.get_parameter("layers.0.lora_A.default.weight") for component in model.components[:2])
    assert not torch.equal(first, second)


def test_one_component_has_no_adapters() -> None:
    """It is FedAvg, whose test is that of FedEM with M = 1."""
    model, other = mixture(RANK, n_components=1), mixture(None, n_components=1)
    train(model, perceptron.Clients().data, ROUNDS)
    train(other, perceptron.Clients().data, ROUNDS)
    assert torch.equal(parameters(model), parameters(other))


def test_adapters_are_sent_by_component_and_the_network_once() -> None:
    data = make_data(sizes=perceptron.SIZES)
    model = train(mixture(RANK), data, 1)
    own = RANK * (4 + 5) + RANK * (5 + 3)
    assert model.statistics.up_bytes == pytest.approx(2 * 8 * (43 + M * own))  # float64, two clients


def test_a_rank_below_one_is_a_share_of_each_layer_s() -> None:
    component = mixture(0.5).components[0]
    shapes = {name: tuple(p.shape) for name, p in trained_parameters(component).items() if "lora_A" in name}
    assert shapes == {"layers.0.lora_A.default.weight": (2, 4), "layers.2.lora_A.default.weight": (2, 5)}
    shapes = {name: tuple(p.shape) for name, p in mixture(0.01).components[0].named_parameters() if "lora_A" in name}
    assert shapes == {"layers.0.lora_A.default.weight": (1, 4), "layers.2.lora_A.default.weight": (1, 5)}


def test_adapters_of_a_rank_have_scale_one() -> None:
    """Whatever the layers' ranks: else the layer with rank 1 would take steps many times longer than the others."""
    component = mixture(0.5).components[0].double()
    x = torch.rand(3, 4, dtype=torch.float64)
    with torch.no_grad():
        for name, p in component.named_parameters():
            if "lora_B" in name:
                p.copy_(torch.rand(p.shape))
    named = {name: p.detach() for name, p in component.named_parameters()}
    t = {name.replace(".base_layer", "").replace(".default", ""): p for name, p in named.items()}
    for layer in ("layers.0", "layers.2"):
        t[f"{layer}.weight"] = t[f"{layer}.weight"] + t[f"{layer}.lora_B.weight"] @ t[f"{layer}.lora_A.weight"]
    hidden = torch.relu(x @ t["layers.0.weight"].T + t["layers.0.bias"])
    expected = hidden @ t["layers.2.weight"].T + t["layers.2.bias"]
    torch.testing.assert_close(component(x), expected)
    scaled = mixture(LoRA(4, scale=0.5)).components[0]
    scales = {m.scaling["default"] for m in scaled.modules() if hasattr(m, "scaling")}
    assert scales == {0.5}


@pytest.mark.parametrize(
    ("kind", "options"),
    [(FedAvgEnsemble, {}), (HypCluster, {"initialization": "random"}), (FedGMM, {"n_gaussians": 2}), (DFedEM, {})],
)
def test_other_methods_have_adapters(kind: Any, options: dict[str, Any]) -> None:
    """Components differ in their adapters alone, which have left 0; bytes; what is not theirs is refused."""
    data = make_data(sizes=perceptron.SIZES)
    model = make_model(kind, data, n_components=2, adapters=RANK, hidden=True, **options)
    train(model, data, 2)
    if kind is DFedEM:  # each client has its own components
        rows = model._own(torch.tensor([0]))  # [1, M, ...]
        first, second = ({name: t[0, m] for name, t in rows.items()} for m in (0, 1))
    else:
        first, second = (dict(component.named_parameters()) for component in model.components)
    assert {name for name in first if not torch.equal(first[name], second[name])} == {n for n in first if "lora" in n}
    assert all(p.abs().sum() > 0 for p in first.values())
    own = RANK * (4 + 5) + RANK * (5 + 3)
    n_up = 43 + own if kind is HypCluster else 43 + 2 * own
    if kind in (FedAvgEnsemble, HypCluster):
        assert model.statistics.up_bytes == pytest.approx(2 * len(perceptron.SIZES) * 8 * n_up)
    with pytest.raises(UserError, match="adapters: all else is shared, so leave out shared"):
        make_model(kind, data, n_components=2, adapters=RANK, shared="body", hidden=True, **options)


def test_convolutions_have_adapters_and_models_are_kept(tmp_path: Path) -> None:
    """A checkpoint, and the exported model of a client, give what the run gives."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(18, 1, 28, 28)).astype(np.float32), np.arange(18) % 3
    data = FederatedDataModule.from_arrays(x, y, np.arange(18) % 2)
    model: Any = FedEM(ReferenceCNN(3), 2, n_components=2, adapters=0.1, initialization="shared")
    trainer = make_trainer(2, "32-true")
    trainer.fit(model, data)
    trainer.test(model, data, verbose=False)
    assert any("lora_A" in name and p.ndim == 4 for name, p in model.components[0].named_parameters())
    trainer.save_checkpoint(tmp_path / "a.ckpt")
    again = FedEM.load_from_checkpoint(tmp_path / "a.ckpt")
    for name, tensor in model.components.state_dict().items():
        assert torch.equal(tensor, again.components.state_dict()[name]), name
    out = str(tmp_path / "1.safetensors")
    export([str(tmp_path / "a.ckpt"), "--client", "1", "--format", "safetensors", "--out", out])
    found, expected = load_clients(out).model("1").predict(x), model.client("1").predict(x)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("adapters", "options", "message"),
    [
        (0, {}, "adapters: expected a whole number from 1 on or a share below 1, got 0"),
        (2, {"shared": "body"}, "adapters: all else is shared, so leave out shared"),
        (LoRA(targets=["conv"]), {}, r"adapters: targets \['conv'\] do not fit"),
    ],
    ids=["rank", "shared", "targets"],
)
def test_wrong_adapters_are_refused(adapters: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        mixture(adapters, **options)


def test_a_pretrained_network_has_adapters_of_its_own() -> None:
    with pytest.raises(UserError, match=r"use backbone.trains=adapters, and shared=\[head\]"):
        FedEM(Transformer(3, config=CONFIG), 4, adapters=4)
