"""FedEM with parameters of each client's own: rounds in NumPy, FedPer as its case, unseen clients, bytes, refusals."""

from typing import Any

import numpy as np
import pytest
import torch

from fedem_lightning import FedEM, FedPer, UserError
from fedem_lightning.client_optimizers import ClientSGD
from fedem_lightning.compression import TopK
from helpers import by_hand, perceptron
from helpers.federations import make_data, make_model, make_trainer, parameters, train
from helpers.perceptron import BODY, HEAD, Model

M, ROUNDS = 3, 3
BIAS = HEAD[1]


def mixture(personal: Any, n_components: int = M, **options: Any) -> Any:
    given = {"participation": 2, "client_optimizer": ClientSGD(lr=0.2), "hidden": True, "initialization": "random"}
    data = perceptron.Clients().data
    return make_model(FedEM, data, n_components=n_components, personal=personal, **{**given, **options})


class Numpy:
    """Rounds of FedEM in NumPy: `kept` are tensors of b_t, `own` those of phi_m, the others theta_0."""

    def __init__(self, model: Any, kept: tuple[str, ...], own: tuple[str, ...]) -> None:
        self.clients, self.kept, self.own = perceptron.Clients(), kept, own
        first = perceptron.start_of(model)
        self.components = [first | perceptron.part(perceptron.start_of(model, m), own) for m in range(M)]
        self.b = [perceptron.part(first, kept) for _ in perceptron.SIZES]
        self.pi = np.full((len(perceptron.SIZES), M), 1 / M)

    def served(self, t: int) -> list[Model]:
        return [component | self.b[t] for component in self.components]

    def q(self, t: int, pi: np.ndarray) -> np.ndarray:
        x, y = self.clients.samples[t]
        q = pi * np.exp(-np.stack([perceptron.losses(model, x, y) for model in self.served(t)], axis=1))
        return q / q.sum(axis=1, keepdims=True)  # Eq. 8

    def round(self, number: int) -> None:
        sent, sizes = [], []
        for t in self.clients.cohort(number):
            q = self.q(t, self.pi[t])
            self.pi[t] = q.mean(axis=0)  # Eq. 9
            models = self.local(t, number, q, (*BODY, *HEAD))
            self.b[t] = perceptron.part(models[0], self.kept)
            sent.append(models)
            sizes.append(len(self.clients.samples[t][1]))
        means = [perceptron.mean([models[m] for models in sent], sizes) for m in range(M)]
        self.components = [mean | perceptron.part(self.components[0], self.kept) for mean in means]  # b_t stays

    def local(self, t: int, number: int, q: np.ndarray, moving: tuple[str, ...]) -> list[Model]:
        """Steps of theta_0, all phi_m and b_t together, or of some of them."""
        models = self.served(t)
        x, y = self.clients.samples[t]
        for rows in by_hand.batches(self.clients.data, t, self.clients.batch_size, 1, number):
            each = [self.gradient(models[m], x[rows], y[rows], q[rows, m]) for m in range(M)]
            one = {name: np.sum([g[name] for g in each], axis=0) for name in moving if name not in self.own}
            own = [name for name in self.own if name in moving]
            models = [
                perceptron.plus(models[m], {**perceptron.part(each[m], own), **one}, -self.clients.lr) for m in range(M)
            ]
        return models

    @staticmethod
    def gradient(model: Model, x: np.ndarray, y: np.ndarray, q: np.ndarray) -> Model:
        """Of (1 / |I|) sum_i q_i l_i."""
        each = [perceptron.gradient(model, x[i : i + 1], y[i : i + 1]) for i in range(len(y))]
        return {name: sum(q[i] * g[name] for i, g in enumerate(each)) / len(y) for name in each[0]}


CASES = [
    ("body", ["head.bias"], (BIAS,), HEAD[:1]),
    (None, [BIAS], (BIAS,), (*BODY, HEAD[0])),
    (None, "layers.2", HEAD, BODY),
]


@pytest.mark.parametrize("engine", ["loop", "vmap"])
@pytest.mark.parametrize(("shared", "personal", "kept", "own"), CASES, ids=["shared body", "bias", "head"])
def test_rounds_agree_with_numpy(shared: Any, personal: Any, kept: Any, own: Any, engine: str) -> None:
    """Unequal clients, a cohort of two, minibatches; then the served models, and what a client that joins gets."""
    model = mixture(personal, shared=shared, engine=engine)
    expected = Numpy(model, kept, own)
    for number in range(ROUNDS):
        expected.round(number)
    data = perceptron.Clients().data
    train(model, data, ROUNDS)
    np.testing.assert_allclose(model.pi.numpy(), expected.pi, rtol=1e-9)
    for t in range(len(perceptron.SIZES)):
        found = model.personal_models(torch.tensor([t])).models
        for m, served in enumerate(expected.served(t)):
            perceptron.assert_models_agree({name: rows[0, m].numpy() for name, rows in found.items()}, served)
    joins = torch.tensor([1])  # as if client 1 had never taken part
    model.personalize_clients(data.federation, joins)
    expected.b[1] = perceptron.part(expected.components[0], kept)  # that of component 0
    expected.pi[1] = 1 / M
    for _ in range(20):
        expected.pi[1] = expected.q(1, expected.pi[1]).mean(axis=0)
    expected.b[1] = perceptron.part(expected.local(1, ROUNDS, expected.q(1, expected.pi[1]), kept)[0], kept)
    np.testing.assert_allclose(model.pi[1].numpy(), expected.pi[1], rtol=1e-9)
    found = model.own.read(joins)
    for name in kept:
        np.testing.assert_allclose(found[name][0, 0].numpy(), expected.b[1][name], rtol=1e-9, atol=1e-12)


def test_with_one_component_it_is_fedper_bit_for_bit() -> None:
    """In training, in what clients keep, for unseen clients, and in its bytes."""
    data = make_data(sizes=perceptron.SIZES, unseen=(3,))
    options: dict[str, Any] = {"participation": 2, "client_optimizer": ClientSGD(lr=0.2), "hidden": True}
    model = make_model(FedEM, data, n_components=1, personal="layers.2", **options)
    other = make_model(FedPer, data, **options)
    for one in (model, other):
        train(one, data, ROUNDS)
        make_trainer(1).test(one, data, verbose=False)
    assert torch.equal(parameters(model.components[0]), parameters(other.components[0]))
    clients = torch.arange(data.n_clients)
    for name, rows in other.own.read(clients).items():
        assert torch.equal(rows, model.own.read(clients)[name])
    assert model.statistics.up_bytes == other.statistics.up_bytes
    assert model.statistics.down_bytes == other.statistics.down_bytes


def test_a_warm_up_of_one_model_averages_all_of_it() -> None:
    """Clients then start from the average; what they send afterwards leaves their own part out."""
    data = perceptron.Clients().data
    options: dict[str, Any] = {"initialization": "shared", "warmup_rounds": 2, "shared": "body"}
    model = train(mixture([BIAS], **options), data, 2)
    assert not model.own.written.any()
    averaged = dict(model.components[0].named_parameters())[BIAS].detach().clone()
    model = train(mixture([BIAS], **options), data, 4)
    assert model.own.written.sum() >= 2
    after = dict(model.components[0].named_parameters())[BIAS]
    assert torch.equal(after, averaged)
    each = 8 * 43  # float64; 25 numbers of the body, 3 times 15 of the heads' weights
    assert model.statistics.up_bytes == pytest.approx(2 * (2 * each + 2 * 8 * (25 + 3 * 15)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"personal": ["layers.9"]}, "personal: expected names of parameters, or of modules with .*, got 'layers.9'"),
        ({"personal": ["head.biass"]}, "personal: expected names of parameters.*, got 'head.biass'"),
        ({"personal": ["layers.2"], "shared": "body"}, "personal: components would differ in nothing"),
        ({"personal": [BIAS], "personalize_seen": True}, "personal: leave out personalize_seen"),
        ({"personal": [BIAS], "upload_threshold": 0.5}, "personal: leave out upload_threshold"),
        ({"personal": [BIAS], "compression": TopK(0.5)}, "personal: leave out compression"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_does_not_go_with_it_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        mixture(**options)
