"""FedRoD and FedProto: against NumPy, degenerate cases, other tasks, and what they refuse."""

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import softmax
from torch import Tensor, nn

from fedem_lightning import (
    MLP,
    Categorical,
    ClientSGD,
    DensityDataModule,
    FederatedDataModule,
    FedProto,
    FedRoD,
    LeNet5,
    Linear,
    UserError,
)
from fedem_lightning.data.randomness import sample_cohort
from fedem_lightning.models.heads import find_head
from helpers.by_hand import ALL_TRAIN, assert_agree, batches, samples
from helpers.federations import make_data, make_model, make_trainer, parameters, train, train_and_test

LR, ROUNDS, CLIENTS = 0.3, 4, 5
PLAIN: dict[str, Any] = {"hidden": True, "client_optimizer": ClientSGD(lr=LR), "batch_size": 4, "participation": 3}
METHODS = pytest.mark.parametrize("kind", [FedRoD, FedProto], ids=lambda kind: kind.__name__)
Net = dict[str, np.ndarray]


@pytest.fixture
def data() -> FederatedDataModule:
    """Unequal clients; some lack a class."""
    return make_data(sizes=(7, 12, 3, 20, 5), fractions=ALL_TRAIN, seed=3)


def net_of(tensors: dict[str, Tensor], prefix: str = "network.layers.") -> Net:
    names = {"w": "0.weight", "b": "0.bias", "v": "2.weight", "c": "2.bias"}
    return {k: tensors[prefix + name].detach().numpy().squeeze().copy() for k, name in names.items()}


def hidden(net: Net, x: np.ndarray) -> np.ndarray:
    return np.maximum(x @ net["w"].T + net["b"], 0)


probabilities = partial(softmax, axis=1)


def step(net: Net, x: np.ndarray, error: np.ndarray, more: np.ndarray | float = 0.0) -> Net:
    """One step of SGD on a mean loss with gradients `error` [n, Y] of the logits and `more` [n, d] of the features."""
    z = hidden(net, x)
    back = (error @ net["v"] + more) * (z > 0)
    grads = {"w": back.T @ x, "b": back.sum(axis=0), "v": error.T @ z, "c": error.sum(axis=0)}
    return {k: net[k] - LR * grads[k] / len(x) for k in net}


# --- FedRoD -----------------------------------------------------------------------------------------------------------


def test_fedrod_agrees_with_numpy(data: FederatedDataModule) -> None:
    model = make_model(FedRoD, data, **PLAIN)
    shared = net_of(model.components[0].state_dict())
    heads = [(np.zeros((3, 5)), np.zeros(3)) for _ in range(CLIENTS)]
    train(model, data, ROUNDS)
    for k in range(ROUNDS):
        cohort, sent = sample_cohort(torch.arange(CLIENTS), 3, 0, k).tolist(), []
        for t in cohort:
            x, y = samples(data, t)
            with np.errstate(divide="ignore"):
                log_n = np.log(np.bincount(y, minlength=3))
            net, (v, c) = dict(shared), heads[t]
            for rows in batches(data, t, 4, 1, k):
                one_hot, z = np.eye(3)[y[rows]], hidden(net, x[rows])
                generic = z @ net["v"].T + net["c"]
                own = probabilities(generic + z @ v.T + c) - one_hot
                net = step(net, x[rows], probabilities(generic + log_n) - one_hot)
                v, c = v - LR * own.T @ z / len(rows), c - LR * own.mean(axis=0)
            heads[t] = v, c
            sent.append(net)
        n = [len(samples(data, t)[1]) for t in cohort]
        shared = {key: np.average([net[key] for net in sent], axis=0, weights=n) for key in shared}
    found = net_of(model.components[0].state_dict())
    for key in shared:
        assert_agree(found[key], shared[key])
    served = model.personal_models(torch.arange(CLIENTS))
    for t, (v, c) in enumerate(heads):
        assert_agree(served.models["personal.weight"][t, 0].numpy(), v)
        assert_agree(served.models["personal.bias"][t, 0].numpy(), c)
    block = data.federation.block(torch.tensor([3]), "train")
    x, z = samples(data, 3)[0], hidden(shared, samples(data, 3)[0])
    expected = probabilities(z @ shared["v"].T + shared["c"] + z @ heads[3][0].T + heads[3][1])
    assert_agree(model.predict(block).exp().numpy(), expected)
    assert len(x) == 20


def test_one_logit_is_shifted_by_the_log_odds_of_the_classes() -> None:
    data = make_data(sizes=(9, 20), n_classes=2, task="binary", fractions=ALL_TRAIN)
    model = make_model(FedRoD, data, **{**PLAIN, "participation": 1.0}).double()
    block = data.federation.block(torch.arange(2), "train")
    for t in range(2):
        ones = int(samples(data, t)[1].sum())
        n = len(samples(data, t)[1])
        assert_agree(model.log_counts(block)[t].numpy(), np.array([[np.log(ones / (n - ones))]]))


def test_an_unseen_client_trains_a_personal_head_from_zero() -> None:
    data = make_data(sizes=(16,) * 4, unseen_fraction=0.25)
    model, trainer = make_model(FedRoD, data, **PLAIN, local_epochs=2), make_trainer(3)
    trainer.fit(model, data)
    before = parameters(model.components)
    trainer.test(model, data, verbose=False)
    assert torch.equal(parameters(model.components), before)
    (t,) = data.federation.clients(seen=False).tolist()
    net, (x, y) = net_of(model.components[0].state_dict()), samples(data, t)
    v, c = np.zeros((3, 5)), np.zeros(3)
    for rows in batches(data, t, 4, 2, 3):
        z = hidden(net, x[rows])
        own = probabilities(z @ (net["v"] + v).T + net["c"] + c) - np.eye(3)[y[rows]]
        v, c = v - LR * own.T @ z / len(rows), c - LR * own.mean(axis=0)
    assert_agree(model.own[torch.tensor([t])]["personal.weight"][0, 0].numpy(), v)
    assert_agree(model.own[torch.tensor([t])]["personal.bias"][0, 0].numpy(), c)


# --- FedProto ---------------------------------------------------------------------------------------------------------


def test_fedproto_agrees_with_numpy(data: FederatedDataModule) -> None:
    model = make_model(FedProto, data, **PLAIN, penalty=0.7)
    start = net_of(model.components[0].state_dict())
    nets, centres, known = [dict(start) for _ in range(CLIENTS)], np.zeros((3, 5)), np.zeros(3, dtype=bool)
    train(model, data, ROUNDS)
    for k in range(ROUNDS):
        sums, counts = np.zeros((3, 5)), np.zeros(3)
        for t in sample_cohort(torch.arange(CLIENTS), 3, 0, k).tolist():
            x, y = samples(data, t)
            for rows in batches(data, t, 4, 1, k):
                z, net = hidden(nets[t], x[rows]), nets[t]
                error = probabilities(z @ net["v"].T + net["c"]) - np.eye(3)[y[rows]]
                pull = 0.7 * 2 / 5 * (z - centres[y[rows]]) * known[y[rows], None]
                nets[t] = step(net, x[rows], error, pull)
            z = hidden(nets[t], x)
            for i, label in enumerate(y):
                sums[label] += z[i]
                counts[label] += 1
        here = counts > 0
        centres[here], known = sums[here] / counts[here, None], known | here
    assert_agree(model.prototypes.numpy(), centres)
    assert model.known.tolist() == known.tolist()
    models = model.models[torch.arange(CLIENTS)]
    for t in range(CLIENTS):
        found = net_of({name: rows[t] for name, rows in models.items()})
        for key in found:
            assert_agree(found[key], nets[t][key])
    for t in (1, 3):
        z = hidden(nets[t], samples(data, t)[0])
        distance = ((z[:, None] - centres) ** 2).sum(axis=2)
        found = model.predict(data.federation.block(torch.tensor([t]), "train")).exp().numpy()
        assert_agree(found, probabilities(-distance))


def test_a_class_without_a_prototype_is_never_predicted() -> None:
    rng = np.random.default_rng(0)
    x, y, split = rng.normal(size=(40, 4)), np.arange(40) % 2, np.arange(40) // 4 % 5 // 4 * 2
    y[split == 2] = 2  # the test samples' class is in no training set
    data = FederatedDataModule.from_arrays(x, y, np.arange(40) % 4, split=split, n_classes=3)
    model = train_and_test(make_model(FedProto, data, **{**PLAIN, "participation": 1.0}), data, 2)
    assert model.known.tolist() == [True, True, False]
    assert model.clients.test_accuracy.tolist() == [0] * 4
    assert model.clients.test_loss.between(50, 1000).all()


# --- both -------------------------------------------------------------------------------------------------------------


class Uncalled(nn.Module):
    """Its forward uses the head's weight without a call."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.last = nn.Linear(4, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(self.body(x), self.last.weight, self.last.bias)


@METHODS
def test_what_is_refused_is_one_line(kind: Any, data: FederatedDataModule) -> None:
    numbers = FederatedDataModule.from_arrays(
        np.zeros((8, 4)), np.linspace(0, 1, 8), np.arange(8) % 2, task="regression", fractions=ALL_TRAIN
    )
    with pytest.raises(UserError, match=r"dataset.task: .* expected classification or binary, got Regression"):
        train(kind(MLP((4,), 1), 2), numbers, 1)
    with pytest.raises(UserError, match=r"the last layer is all that trains .*no body is left"):
        kind(Linear((4,), 3), 2)
    with pytest.raises(UserError, match="no body is left"):
        kind(Categorical(n_outputs=DensityDataModule(n_clients=4).n_outputs), 4)
    with pytest.raises(UserError, match=r"^head: layers.0.bias, layers.2.bias are not one module"):
        kind(MLP((4,), 3), 2, head="bias")
    with pytest.raises(UserError, match="the network does not call its module last"):
        train(kind(Uncalled(), CLIENTS, head="last"), data, 1)


def test_heads_of_several_layers_are_one_module() -> None:
    first, module = find_head(LeNet5(10), "head")
    assert first == "head"
    assert module(torch.zeros(2, 400)).shape == (2, 10)
