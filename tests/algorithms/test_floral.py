"""FLoRAL: rounds in NumPy, the adapters of convolutions, degenerate cases, unseen clients, bytes, refusals."""

from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import softmax
from torch import nn

from fedem_lightning import ClientSGD, FedAvg, FLoRAL, UserError
from fedem_lightning.methods.floral import preconditioned
from fedem_lightning.models.parts import model_bytes
from fedem_lightning.models.routed_adapters import RoutedAdapters
from helpers import perceptron
from helpers.federations import make_data, make_model, make_trainer, train
from helpers.perceptron import BODY, HEAD, Model

M, ROUNDS, ALPHA = 3, 3, 2.0
LAYERS = ("layers/0", "layers/2")


def adapted(**options: Any) -> Any:
    given = {"participation": 2, "client_optimizer": ClientSGD(lr=0.2), "hidden": True, "rank": 2, "alpha": ALPHA}
    return make_model(FLoRAL, perceptron.Clients().data, n_components=M, **{**given, **options})


class Numpy:
    def __init__(self, model: Any) -> None:
        self.clients = perceptron.Clients()
        start = perceptron.start_of(model)
        self.theta = {name.removeprefix("network."): v for name, v in start.items() if name.startswith("network.")}
        self.adapters = {name: v.squeeze(-1) if name[0] in "ab" else v for name, v in start.items() if name[1] == "."}
        self.routers = np.zeros((len(perceptron.SIZES), M))

    def effective(self, theta: Model, adapters: Model, p: np.ndarray) -> Model:
        """The perceptron of a client with weights p of the adapters."""
        merged = {}
        for key in LAYERS:
            name, a, b, d = key.replace("/", "."), *(adapters[f"{part}.{key}"] for part in ("a", "b", "d"))
            merged[f"{name}.weight"] = theta[f"{name}.weight"] + ALPHA * sum(p[m] * b[m] @ a[m] for m in range(M))
            merged[f"{name}.bias"] = theta[f"{name}.bias"] + ALPHA * p @ d
        return merged

    def round(self, number: int) -> None:
        sent = []
        for t in self.clients.cohort(number):
            sent.append((*self.local(t, number), len(self.clients.samples[t][1])))
        self.theta = perceptron.mean([theta for theta, _, _, _ in sent], [n for *_, n in sent])
        self.adapters = {
            name: np.stack(
                [np.average([ad[name][m] for _, ad, _, _ in sent], axis=0, weights=[n * p[m] for *_, p, n in sent])
                 for m in range(M)]
            )
            for name in self.adapters
        }  # fmt: skip

    def local(self, t: int, number: int) -> tuple[Model, Model, np.ndarray]:
        """Steps on network, adapters and router together."""
        theta, adapters, r, lr = dict(self.theta), dict(self.adapters), self.routers[t], self.clients.lr
        for x, y in self.clients.batches(t, number):
            p = softmax(r)
            g = perceptron.gradient(self.effective(theta, adapters, p), x, y)
            of_p, new = np.zeros(M), dict(adapters)
            for key in LAYERS:
                w, bias = (g[f"{key.replace('/', '.')}.{part}"] for part in ("weight", "bias"))
                a, b, d = (adapters[f"{part}.{key}"] for part in ("a", "b", "d"))
                for m in range(M):
                    of_p[m] += ALPHA * ((w * (b[m] @ a[m])).sum() + bias @ d[m])
                of_a = np.stack([ALPHA * p[m] * b[m].T @ w for m in range(M)])
                of_b = np.stack([ALPHA * p[m] * w @ a[m].T for m in range(M)])
                some = 1e-5 * np.eye(a.shape[1])
                of_a = np.stack([np.linalg.inv(b[m].T @ b[m] + some) @ of_a[m] for m in range(M)])
                of_b = np.stack([of_b[m] @ np.linalg.inv(a[m] @ a[m].T + some) for m in range(M)])
                new[f"a.{key}"] = a - lr * of_a
                new[f"b.{key}"] = b - lr * of_b
                new[f"d.{key}"] = d - lr * ALPHA * p[:, None] * bias
            r = r - lr * p * (of_p - p @ of_p)
            theta, adapters = perceptron.plus(theta, g, -lr), new
        self.routers[t] = r
        return theta, adapters, softmax(r)


@pytest.mark.parametrize("engine", ["loop", "vmap"])
def test_rounds_agree_with_numpy(engine: str) -> None:
    """Unequal clients, a cohort of two, minibatches; adapters that have left 0."""
    model = adapted(engine=engine)
    rng = np.random.default_rng(0)
    for name, p in model.components[0].named_parameters():
        if name.startswith("b."):  # B = 0 at first: the test would not see a wrong A
            p.data = torch.from_numpy(rng.normal(size=tuple(p.shape))).to(p)
    expected = Numpy(model)
    for number in range(ROUNDS):
        expected.round(number)
    train(model, perceptron.Clients().data, ROUNDS)
    found = perceptron.start_of(model)
    for name in (*BODY, *HEAD):
        np.testing.assert_allclose(found[f"network.{name}"], expected.theta[name], rtol=1e-8, atol=1e-11)
    for name, value in expected.adapters.items():
        np.testing.assert_allclose(found[name].reshape(value.shape), value, rtol=1e-8, atol=1e-11, err_msg=name)
    p = np.stack([softmax(r) for r in expected.routers])
    np.testing.assert_allclose(model.pi.numpy(), p, rtol=1e-6)  # pi is in float32 where a model is
    served = perceptron.served(model, 1)["router"]
    np.testing.assert_allclose(softmax(served), p[1], rtol=1e-9)


def test_a_convolutions_adapter_is_two_convolutions() -> None:
    """Along the rows and then along the columns of the image, with the layer's stride and padding."""
    torch.manual_seed(0)
    layer = nn.Conv2d(3, 4, 3, stride=2, padding=1)
    network = RoutedAdapters(nn.Sequential(layer), 2, 2, ALPHA).double()
    for parameter in network.parameters():
        parameter.data = torch.randn_like(parameter)
    x, p = torch.randn(5, 3, 8, 9, dtype=torch.float64), network.router.softmax(0)
    expected = layer(x)
    for m in range(2):
        a, b = network.a["0"][m].unsqueeze(2), network.b["0"][m].unsqueeze(-1)  # [r, i, 1, w], [o, r, h, 1]
        z = nn.functional.conv2d(x, a, stride=(1, 2), padding=(0, 1))
        expected = expected + ALPHA * p[m] * nn.functional.conv2d(z, b, network.d["0"][m], (2, 1), (1, 0))
    torch.testing.assert_close(network(x), expected)


def test_gradients_of_a_convolution_are_divided_by_norms() -> None:
    a, b, g, h = (torch.randn(2, *shape) for shape in ((2, 3, 5), (4, 2, 5), (2, 3, 5), (4, 2, 5)))
    of_a, of_b = preconditioned(a, b, g, h)
    for m in range(2):
        gram = np.einsum("orh,osh->rsh", b[m].numpy(), b[m].numpy())
        np.testing.assert_allclose(of_a[m], g[m] / (np.sqrt((gram**2).sum()) + 1e-5), rtol=1e-5)
        gram = np.einsum("riw,siw->rsw", a[m].numpy(), a[m].numpy())
        np.testing.assert_allclose(of_b[m], h[m] / (np.sqrt((gram**2).sum()) + 1e-5), rtol=1e-5)


def test_it_starts_as_the_users_network_and_without_adapters_is_fedavg() -> None:
    data = make_data()
    model, plain = (make_model(kind, data, hidden=True) for kind in (FLoRAL, FedAvg))
    x = torch.randn(6, 4)
    assert torch.equal(model.components[0](x), plain.components[0](x))
    model = make_model(FLoRAL, data, hidden=True, alpha=1e-12)
    for each in (model, plain):
        train(each, data, 2)
    mine = model.components[0].network.state_dict()
    torch.testing.assert_close(mine, plain.components[0].state_dict(), rtol=1e-9, atol=1e-11)


def test_the_server_never_sees_a_router_and_an_unseen_client_trains_its_own_alone() -> None:
    data = make_data(sizes=(20, 20, 20, 20, 20), unseen_fraction=0.2)
    model = make_model(FLoRAL, data, hidden=True, client_optimizer=ClientSGD(lr=0.5))
    unseen = int(data.federation.clients(seen=False)[0])
    train(model, data, 8)
    assert not model.components[0].router.any()
    even = torch.full((3,), 1 / 3, dtype=model.pi.dtype)
    torch.testing.assert_close(model.pi[unseen], even)
    before = {name: t.clone() for name, t in model.components[0].state_dict().items()}
    make_trainer(8).test(model, data, verbose=False)
    assert all(torch.equal(t, before[name]) for name, t in model.components[0].state_dict().items())
    assert (model.pi[unseen] - even).abs().max() > 1e-4
    row = model.clients.iloc[unseen]
    np.testing.assert_allclose([row.pi_0, row.pi_1, row.pi_2], model.pi[unseen], rtol=1e-6)


def test_diagnostics_see_each_adapter_alone() -> None:
    model = train(adapted(), perceptron.Clients().data, 2)
    alone = model.evaluation_components(perceptron.Clients().data.federation)
    network, x = model.components[0], torch.randn(4, 4, dtype=torch.float64)
    for m in range(M):
        found = torch.func.functional_call(network, {name: rows[m] for name, rows in alone.items()}, (x,))
        parts = {f"layers.{i}.weight": network.network.get_parameter(f"layers.{i}.weight") for i in (0, 2)}
        for i in (0, 2):
            b, a = network.b[f"layers/{i}"][m].squeeze(-1), network.a[f"layers/{i}"][m].squeeze(-1)
            parts[f"layers.{i}.weight"] = parts[f"layers.{i}.weight"] + ALPHA * b @ a
            bias = network.network.get_parameter(f"layers.{i}.bias")
            parts[f"layers.{i}.bias"] = bias + ALPHA * network.d[f"layers/{i}"][m]
        torch.testing.assert_close(found, torch.func.functional_call(network.network, parts, (x,)))


def test_ranks_and_bytes() -> None:
    """Below 1 the rank is a share of the layer's parameters: 0.5 of 4 x 5 are 1 x (4 + 5), and 0.9 are 2 x (4 + 5)."""
    for rank, r in ((0.5, 1), (0.9, 2), (3, 3)):
        assert adapted(rank=rank).components[0].a["layers/0"].shape == (M, r, 4, 1)
    n, adapters = 5 * 4 + 5 + 3 * 5 + 3, M * ((4 + 5) + (5 + 3) + 5 + 3)
    data = make_data()
    model = train(adapted(rank=1), data, 1)
    assert model_bytes(model.components[0]) == 8 * n
    assert model.statistics.up_bytes == 2 * 8 * (n + adapters + M)  # of two clients, and the router's weights


def test_what_is_refused() -> None:
    data = make_data()
    with pytest.raises(UserError, match="component_weights=router: it needs aggregation=mean"):
        adapted(aggregation="median")
    with pytest.raises(UserError, match="adapts linear and convolution layers"):
        FLoRAL(nn.Sequential(nn.LayerNorm(4)), data.n_clients)
