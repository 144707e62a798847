"""The field's baselines: each against its equations in NumPy, with client sampling and unequal sizes."""

import copy
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from fedem_lightning import (
    ClientSGD,
    Ditto,
    FedALA,
    FedAvg,
    FedAvgEnsemble,
    FedBABU,
    FederatedAlgorithm,
    FedPer,
    FedRep,
    Finetune,
    LGFedAvg,
    PerFedAvg,
    Scaffold,
)
from fedem_lightning.evaluate.scores import scored_models
from helpers.federations import make_model, make_trainer, train
from helpers.perceptron import (
    BODY,
    HEAD,
    SIZES,
    Clients,
    Model,
    assert_models_agree,
    gradient,
    losses,
    mean,
    part,
    plus,
    served,
    start_of,
)

ROUNDS = 4


def trained(kind: type[FederatedAlgorithm], clients: Clients, **options: Any) -> tuple[Any, Model]:
    """The method after some rounds, and where it started."""
    sgd = ClientSGD(lr=clients.lr)
    given: dict[str, Any] = {"participation": clients.participation, "client_optimizer": sgd, **options}
    model = make_model(kind, clients.data, hidden=True, **given).double()
    start = start_of(model)
    return train(model, clients.data, ROUNDS), start


# --- partial averaging ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "sent", "kept"), [(FedPer, BODY, HEAD), (LGFedAvg, HEAD, BODY)])
def test_a_part_is_averaged_and_the_rest_stays(kind: Any, sent: Any, kept: Any) -> None:
    clients = Clients()
    model, w = trained(kind, clients, local_epochs=2)
    own = [part(w, kept) for _ in SIZES]
    for k in range(ROUNDS):
        cohort = clients.cohort(k)
        found = {t: clients.descend(w | own[t], t, k, epochs=2) for t in cohort}
        for t in cohort:
            own[t] = part(found[t], kept)
        w = w | mean((part(found[t], sent) for t in cohort), (SIZES[t] for t in cohort))
    for t in range(len(SIZES)):
        assert_models_agree(served(model, t), w | own[t])


def test_fedrep_trains_heads_first() -> None:
    clients = Clients()
    model, w = trained(FedRep, clients, head_epochs=3, local_epochs=2)
    own = [part(w, HEAD) for _ in SIZES]
    for k in range(ROUNDS):
        bodies, cohort = [], clients.cohort(k)
        for t in cohort:
            head_moved = clients.descend(w | own[t], t, k, epochs=3, only=HEAD)
            own[t] = part(head_moved, HEAD)
            bodies.append(part(clients.descend(head_moved, t, k, epochs=2, only=BODY), BODY))
        w = w | mean(bodies, (SIZES[t] for t in cohort))
    for t in range(len(SIZES)):
        assert_models_agree(served(model, t), w | own[t])


def test_fedbabu_trains_bodies_and_tunes_everything_before_scoring() -> None:
    clients = Clients()
    model, w = trained(FedBABU, clients, adaptation=Finetune(2, ClientSGD(lr=0.2)))
    head = part(w, HEAD)
    for k in range(ROUNDS):
        cohort = clients.cohort(k)
        found = [part(clients.descend(w, t, k, only=BODY), BODY) for t in cohort]
        w = w | mean(found, (SIZES[t] for t in cohort))
    assert_models_agree(start_of(model), w)
    assert_models_agree(part(start_of(model), HEAD), head)
    for t in range(len(SIZES)):
        tuned = scored_models(model, clients.data.federation.block(torch.tensor([t]), "train")).models
        expected = clients.descend(w, t, ROUNDS, epochs=2)
        assert_models_agree({name: rows[0, 0].numpy() for name, rows in tuned.items()}, expected)


# --- Ditto ------------------------------------------------------------------------------------------------------------


def pulled(w: Model, penalty: float, v: Model) -> Model:
    """The gradient of (penalty / 2) |v - w|^2."""
    return {name: penalty * (v[name] - w[name]) for name in v}


def test_ditto_agrees_with_numpy() -> None:
    clients, penalty = Clients(), 0.7
    model, w = trained(Ditto, clients, penalty=penalty, own_epochs=2)
    own: dict[int, Model] = {}
    start = w
    for k in range(ROUNDS):
        cohort, received = clients.cohort(k), w
        for t in cohort:
            pull = partial(pulled, received, penalty)
            own[t] = clients.descend(own.get(t, start), t, k, epochs=2, pull=pull)
        w = mean((clients.descend(w, t, k) for t in cohort), (SIZES[t] for t in cohort))
    assert_models_agree(start_of(model), w)
    for t in range(len(SIZES)):
        assert_models_agree(served(model, t), own.get(t, w))


# --- SCAFFOLD ---------------------------------------------------------------------------------------------------------


def test_scaffold_agrees_with_option_2_in_numpy() -> None:
    clients = Clients()
    model, w = trained(Scaffold, clients, local_epochs=2)
    zero = {name: np.zeros_like(v) for name, v in w.items()}
    c, controls = zero, [zero for _ in SIZES]
    for k in range(ROUNDS):
        cohort, ends, changes = clients.cohort(k), [], []
        for t in cohort:
            correction = plus(c, controls[t], -1.0)
            y = clients.descend(w, t, k, epochs=2, pull=partial(plus, correction, by=0.0))  # anywhere
            n_steps = len(clients.batches(t, k, 2))
            new = plus(plus(controls[t], c, -1.0), plus(w, y, -1.0), 1 / (n_steps * clients.lr))  # line 12, option II
            changes.append(plus(new, controls[t], -1.0))
            controls[t] = new
            ends.append(y)
        w = mean(ends, [1.0] * len(cohort))
        c = plus(c, mean(changes, [1.0] * len(cohort)), len(cohort) / len(SIZES))
    assert_models_agree(start_of(model), w)
    np.testing.assert_allclose(model.control.numpy(), np.concatenate([v.ravel() for v in c.values()]), atol=1e-12)
    for t in range(len(SIZES)):
        found = {name: rows[0].numpy() for name, rows in model.controls[torch.tensor(t)].items()}
        assert_models_agree(found, controls[t])


# --- Per-FedAvg -------------------------------------------------------------------------------------------------------


def meta_gradient(w: Model, x: np.ndarray, y: np.ndarray, alpha: float) -> Model:
    """FO on halves of a batch; 0 where one is empty."""
    if len(y) < 2:
        return {name: np.zeros_like(v) for name, v in w.items()}
    return gradient(plus(w, gradient(w, x[::2], y[::2]), -alpha), x[1::2], y[1::2])


def test_per_fedavg_agrees_with_numpy() -> None:
    clients, alpha = Clients(), 0.3
    model, w = trained(PerFedAvg, clients, inner_lr=alpha)
    for k in range(ROUNDS):
        ends, cohort = [], clients.cohort(k)
        for t in cohort:
            local = w
            for x, y in clients.batches(t, k):
                local = plus(local, meta_gradient(local, x, y, alpha), -clients.lr)
            ends.append(local)
        w = mean(ends, [1.0] * len(cohort))  # as in the paper: clients count alike
    assert_models_agree(start_of(model), w)
    model.personalize_clients(clients.data.federation, torch.arange(len(SIZES)))
    for t in range(len(SIZES)):
        assert_models_agree(served(model, t), plus(w, gradient(w, *clients.samples[t]), -alpha))


# --- FedALA -----------------------------------------------------------------------------------------------------------


def learned(
    clients: Clients, weights: Model, own: Model, w: Model, t: int, round_: int, first: bool, settle: float
) -> Model:
    """Eq. 5: passes over all samples; the first time until the losses of ten passes settle."""

    def mixed() -> Model:
        return w | {n: own[n] + (w[n] - own[n]) * weights[n] for n in HEAD}

    def one_pass() -> None:
        for x, y in clients.batches(t, round_):
            g = gradient(mixed(), x, y)
            for n in HEAD:
                weights[n] = np.clip(weights[n] - 5.0 * g[n] * (w[n] - own[n]), 0.0, 1.0)

    weights = dict(weights)
    one_pass()
    seen: list[float] = []
    while first and len(seen) + 1 < 100:
        seen.append(float(losses(mixed(), *clients.samples[t]).mean()))
        if len(seen) >= 10 and np.std(seen[-10:]) < settle:
            break
        one_pass()
    return weights


def test_fedala_agrees_with_numpy() -> None:
    clients = Clients()
    model, w = trained(FedALA, clients, weights_lr=5.0, share=1.0, tolerance=1e-4, local_epochs=3)
    own = [w for _ in SIZES]
    weights = [{n: np.ones_like(w[n]) for n in HEAD} for _ in SIZES]
    begun: set[int] = set()
    for k in range(ROUNDS):
        cohort = clients.cohort(k)
        for t in cohort:
            if k > 0:
                weights[t] = learned(clients, weights[t], own[t], w, t, k, t not in begun, 1e-4)
                begun.add(t)
            start = w | {n: own[t][n] + (w[n] - own[t][n]) * weights[t][n] for n in HEAD}
            own[t] = clients.descend(start, t, k, epochs=3)
        w = mean((own[t] for t in cohort), (SIZES[t] for t in cohort))
    assert_models_agree(start_of(model), w)
    make_trainer(0).test(model, clients.data, verbose=False)  # it serves what the next round would start from
    for t in {t for k in range(ROUNDS) for t in clients.cohort(k)}:
        newest = learned(clients, weights[t], own[t], w, t, ROUNDS, t not in begun, 1e-4)
        expected = w | {n: own[t][n] + (w[n] - own[t][n]) * newest[n] for n in HEAD}
        assert_models_agree(served(model, t), expected)
        kept = {name: rows[0].numpy() for name, rows in model.own[torch.tensor(t)].items()}
        assert_models_agree(kept, own[t])
    moved = [float(np.abs(v - 1).max()) for t in begun for v in weights[t].values()]
    assert max(moved) > 0.1  # else the test would see nothing


# --- the ensemble -----------------------------------------------------------------------------------------------------


def test_each_member_of_the_ensemble_is_a_fedavg() -> None:
    clients = Clients()
    sgd = ClientSGD(lr=0.2, momentum=0.9)
    options: dict[str, Any] = {"client_optimizer": sgd, "participation": 2}
    ensemble = make_model(FedAvgEnsemble, clients.data, hidden=True, n_components=3, **options).double()
    starts = [copy.deepcopy(component) for component in ensemble.components]
    train(ensemble, clients.data, 3)
    for m, start in enumerate(starts):
        plain = FedAvg(start, n_clients=len(SIZES), batch_size=4, **options)
        train(plain, clients.data, 3)
        assert_models_agree(start_of(ensemble, m), start_of(plain))
    block = clients.data.federation.block(torch.tensor([2]), "train")
    probabilities = [component(block.x(torch.float64)).softmax(dim=1) for component in ensemble.components]
    torch.testing.assert_close(ensemble.predict(block).exp(), torch.stack(probabilities).mean(dim=0))
