"""FEROMA: against NumPy, where it is FedAvg, Local or neither, bytes, clients that join with and without labels."""

from typing import Any

import numpy as np
import pytest
import torch

from fedem_lightning import FEROMA, MLP, ClientSGD, FedAvg, Local
from fedem_lightning.data.randomness import Purpose, fold
from helpers.federations import make_data, make_model, models_of, train
from helpers.perceptron import SIZES, Clients, Model, assert_models_agree, hidden, mean, served, start_of

WARM_UP, ROUNDS, U, Y = 2, 6, 3, 3
SGD = ClientSGD(lr=0.2)


def directions(d: int, u: int) -> np.ndarray:
    """The principal directions of 200 uniform points, [u, d], by the eigenvectors of their covariance."""
    vectors = np.linalg.eigh(np.cov(np.random.RandomState(1).uniform(size=(200, d)).T))[1]
    rows = vectors.T[::-1][:u]
    return np.array([row * np.sign(row[np.abs(row).argmax()]) for row in rows])


def drawn(n: int, t: int, round_: int, share: float) -> np.ndarray:
    """The samples of a client's profile: which they are is the package's choice."""
    key = fold(0, Purpose.PROFILE, round_, torch.tensor([t]))
    return np.sort(np.argsort(fold(key, torch.arange(n)).numpy())[: int(np.ceil(share * n))])


def profile(model: Model, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """[2 (1 + Y), U]."""
    z = hidden(model, x) @ directions(5, U).T
    blocks: list[np.ndarray] = []
    for some in (z, *(z[y == label] for label in range(Y))):
        blocks += [some.mean(axis=0), some.std(axis=0)] if len(some) > 1 else 2 * [np.full(U, -1.0)]
    return np.array(blocks)


class Numpy:
    """The rounds; `profiles` and `models` are the last ones of each client."""

    def __init__(self, clients: Clients, start: Model, share: float) -> None:
        self.clients, self.w, self.share = clients, start, share
        self.models: dict[int, Model] = {}
        self.profiles: dict[int, np.ndarray] = {}
        self.latest: list[int] = []
        self.ranges = np.ones((2 * (1 + Y), 1))
        self.shares: list[float] = []

    def round(self, number: int) -> None:
        sizes = {t: len(y) for t, (_, y) in enumerate(self.clients.samples)}
        cohort, trained, measured = self.clients.cohort(number), {}, {}
        for t in cohort:
            first = self.w
            if number >= WARM_UP:
                x, y = self.clients.samples[t]
                rows = drawn(len(y), t, number, self.share)
                measured[t] = profile(self.w, x[rows], y[rows])
                if self.latest:
                    d = [np.linalg.norm((measured[t] - self.profiles[j]) / self.ranges) for j in self.latest]
                    w = np.array([sizes[j] / (far + 1e-8) for j, far in zip(self.latest, d, strict=True)])
                    self.shares.append(float(w.max() / w.sum()))
                    first = mean([self.models[j] for j in self.latest], w)
            trained[t] = self.clients.descend(first, t, number)
        self.models |= trained
        if number < WARM_UP:
            self.w = mean(trained.values(), [sizes[t] for t in trained])
            return
        self.profiles |= measured
        if not self.latest:
            rows = np.array(list(measured.values()))
            spans = rows.max(axis=(0, 2)) - rows.min(axis=(0, 2))
            self.ranges = np.where(spans > 0, spans, 1.0)[:, None]  # 0: nobody has the class
        self.latest = cohort

    def nearest(self, mine: np.ndarray) -> int:
        """The client whose profile is nearest, in the blocks of `mine` that are there."""
        far = {
            t: np.linalg.norm(np.where(mine == -1, 0, (mine - other) / self.ranges))
            for t, other in self.profiles.items()
        }
        return min(far, key=lambda t: far[t])


@pytest.mark.parametrize(("share", "engine"), [(0.5, "loop"), (0.5, "vmap"), (1.0, "loop")])
def test_six_rounds_agree_with_numpy(share: float, engine: str) -> None:
    """Two of FedAvg; cohorts of two of four clients of unequal sizes, batches of 4."""
    clients = Clients()
    options: dict[str, Any] = {"warm_up_rounds": WARM_UP, "share": share, "engine": engine}
    options |= {"participation": clients.participation, "client_optimizer": SGD}
    model = make_model(FEROMA, clients.data, hidden=True, **options).double()
    expected = Numpy(clients, unwrapped(start_of(model)), share)
    train(model, clients.data, ROUNDS)
    for number in range(ROUNDS):
        expected.round(number)
    assert min(expected.shares) < 0.9  # some start is a mean of several models
    for t in range(len(SIZES)):
        assert_models_agree(unwrapped(served(model, t)), expected.models[t], rtol=1e-12)
    for t, rows in expected.profiles.items():
        np.testing.assert_allclose(model.profiles[t].numpy(), rows, rtol=1e-12, atol=1e-12)


def unwrapped(model: Model) -> Model:
    return {name.removeprefix("network."): v for name, v in model.items()}


def test_while_it_warms_up_it_is_fedavg() -> None:
    data = make_data(sizes=SIZES, fractions=(1.0, 0.0, 0.0))
    options: dict[str, Any] = {"hidden": True, "participation": 2, "client_optimizer": SGD}
    found = train(make_model(FEROMA, data, **options), data, 3)
    fedavg = train(make_model(FedAvg, data, **options), data, 3)
    expected = {f"network.{name}": t for name, t in fedavg.components[0].state_dict().items()}
    torch.testing.assert_close(dict(found.components[0].state_dict()), expected, rtol=0, atol=0)


def test_with_exact_profiles_it_is_local_and_with_drawn_ones_or_equal_data_it_is_not() -> None:
    """All samples in each profile: a client's own is at the distance 0, and weighs 1e8 times the others."""
    data = make_data(sizes=(12, 20, 9, 15), fractions=(1.0, 0.0, 0.0))
    options: dict[str, Any] = {"hidden": True, "client_optimizer": SGD}
    alone = models_of(train(make_model(Local, data, **options), data, 5))
    found = {
        share: models_of(train(make_model(FEROMA, data, warm_up_rounds=0, share=share, **options), data, 5))
        for share in (1.0, 0.5)
    }
    torch.testing.assert_close(found[1.0], alone, rtol=1e-5, atol=1e-6)
    assert (found[0.5] - alone).abs().max() > 1e-2
    same = make_data(sizes=(12,) * 4, fractions=(1.0, 0.0, 0.0))  # exact profiles of equal data: weights by n, FedAvg
    x = same.federation.samples.x  # type: ignore[attr-defined]
    x[:], same.federation.samples.y[:] = x[:12].repeat(4, 1), same.federation.samples.y[:12].repeat(4)
    model = make_model(FEROMA, same, warm_up_rounds=0, share=1.0, **options).double()
    train(model, same, 1)
    weights = 1 / (model.distances(model.profiles[:2], model.latest) + 1e-8)
    torch.testing.assert_close(weights / weights.sum(dim=1, keepdim=True), torch.full((2, 4), 0.25).double())


def test_data_that_move_take_the_model_of_who_had_them() -> None:
    """Clients 0 and 1 exchange their samples after a round: with exact profiles each goes on from the other's model."""
    data = make_data(sizes=(12, 12, 12), fractions=(1.0, 0.0, 0.0))
    model = make_model(FEROMA, data, hidden=True, warm_up_rounds=0, share=1.0, client_optimizer=SGD).double()
    train(model, data, 1)
    before, federation = models_of(model), data.federation
    moved = federation.block(torch.tensor([1, 0, 2]), "train")
    start = model.mean_near(model.profile(moved), federation)
    found = torch.cat([start[name].flatten(1) for name in model.models.names], dim=1)
    torch.testing.assert_close(found, before[torch.tensor([1, 0, 2])], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("labels", ["none", "all", "two of a class"])
def test_a_new_client_takes_the_nearest_clients_model(labels: str) -> None:
    clients = Clients()
    options: dict[str, Any] = {"warm_up_rounds": WARM_UP, "client_optimizer": SGD}
    model = make_model(FEROMA, clients.data, hidden=True, participation=2, **options).double()
    expected = Numpy(clients, unwrapped(start_of(model)), 0.5)
    train(model, clients.data, ROUNDS)
    for number in range(ROUNDS):
        expected.round(number)
    x, y = np.random.default_rng(3).normal(size=(9, 4)), np.arange(9) % Y
    mine = profile(expected.w, x, y)
    if labels == "none":
        mine[2:] = -1
        new = model.personalize(x)
    else:
        new = model.personalize(x, y)
    near = expected.nearest(mine)
    if labels == "two of a class":  # a class with one sample is not compared
        y = np.array([0, 0, 1, 2, 2, 2, 2, 2, 2])
        near, new = expected.nearest(profile(expected.w, x, y)), model.personalize(x, y)
    assert_models_agree(unwrapped({n: p.numpy() for n, p in new.networks[0].named_parameters()}), expected.models[near])


def test_without_profiles_or_samples_a_new_client_has_the_shared_model() -> None:
    data = make_data(sizes=SIZES, fractions=(1.0, 0.0, 0.0))
    for rounds, x in ((2, np.ones((3, 4))), (4, np.ones((0, 4))), (4, np.ones((1, 4)))):
        model = train(make_model(FEROMA, data, hidden=True, warm_up_rounds=2, client_optimizer=SGD), data, rounds)
        found = dict(model.personalize(x).networks[0].state_dict())
        torch.testing.assert_close(found, dict(model.components[0].state_dict()), rtol=0, atol=0)


def test_bytes_of_models_profiles_and_the_encoder() -> None:
    """Two rounds of FedAvg; in later ones a client that makes its first profile receives w beside its mean."""
    data = make_data(sizes=SIZES, fractions=(1.0, 0.0, 0.0))
    options: dict[str, Any] = {"warm_up_rounds": WARM_UP, "participation": 2}
    model = train(make_model(FEROMA, data, hidden=True, **options), data, ROUNDS)
    size, numbers = 8 * 43, 8 * 2 * (1 + Y) * U
    assert model.statistics.up_bytes == ROUNDS * 2 * size + (ROUNDS - WARM_UP) * 2 * numbers
    cohorts = [set(Clients().cohort(k)) for k in range(WARM_UP, ROUNDS)]
    new = len(set.union(*cohorts[1:]) - cohorts[0])
    assert model.statistics.down_bytes == (ROUNDS * 2 + new) * size


def test_with_few_features_z_has_as_many_numbers() -> None:
    data = make_data()
    model = train(FEROMA(MLP((4,), 3, [2]), 4, warm_up_rounds=1), data, 3)
    assert model.profiles.shape == (4, 2 * (1 + Y), 2)
