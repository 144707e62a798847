"""Each method against its equations, written out in NumPy for two or three clients, and its degenerate cases."""

from typing import Any

import numpy as np
import pytest
import torch

from fedem_lightning import (
    APFL,
    L2SGD,
    QFFL,
    ClientSGD,
    Clustered,
    DFedEM,
    Ditto,
    FedAvg,
    FedEM,
    FederatedAlgorithm,
    FederatedDataModule,
    FedProx,
    Finetune,
    Local,
    PFedMe,
)
from fedem_lightning.module.round import draw_cohort
from helpers.by_hand import assert_agree, batches, by_torch, gradient, row, samples, vector
from helpers.federations import make_data, make_model, models_of, parameters, spoil, table_of, train, train_and_test

FULL: dict[str, Any] = {"batch_size": 1000}


# --- FedProx ----------------------------------------------------------------------------------------------------------


def test_fedprox_without_its_term_is_fedavg_bit_for_bit() -> None:
    data, sgd = make_data(), ClientSGD(lr=0.5, momentum=0.9, weight_decay=0.01)
    options: dict[str, Any] = {"client_optimizer": sgd, "participation": 0.75, "local_epochs": 2}
    for precision in ("64-true", "32-true"):
        prox = train(make_model(FedProx, data, mu=0.0, **options), data, 4, precision=precision)
        plain = train(make_model(FedAvg, data, **options), data, 4, precision=precision)
        assert torch.equal(parameters(prox.components), parameters(plain.components))


# --- FedAvg+ ----------------------------------------------------------------------------------------------------------


def test_tuning_starts_at_the_global_model_and_never_feeds_back() -> None:
    data, sgd = make_data(), ClientSGD(lr=0.2)
    plain = train(make_model(FedAvg, data, client_optimizer=sgd, **FULL), data, 3)
    plus = make_model(FedAvg, data, client_optimizer=sgd, adaptation=Finetune(1, ClientSGD(lr=0.1)), **FULL)
    once = train_and_test(plus, data, 3, limit_val_batches=1).clients
    assert torch.equal(parameters(plus.components), parameters(plain.components))
    assert once.equals(table_of(plus, data))
    tuned = plus.adaptation.adapt(plus, data.federation.block(torch.tensor([1]), "train")).models
    theta = vector(plus.components[0])  # one full batch: theta - lr grad F_t(theta)
    assert_agree(row(tuned, 0), theta - 0.1 * gradient(theta, *samples(data, 1)))


@pytest.mark.parametrize("inference_mode", [True, False])
def test_no_epochs_of_tuning_is_no_tuning(inference_mode: bool) -> None:
    data = make_data(unseen_fraction=0.25)
    tables = []
    for adaptation in (None, Finetune(0)):
        model = make_model(FedAvg, data, client_optimizer=ClientSGD(lr=0.2), adaptation=adaptation)
        train_and_test(model, data, 2, inference_mode=inference_mode)
        tables.append(model.clients)
    columns = [c for c in tables[0] if str(c).endswith(("loss", "accuracy"))]
    np.testing.assert_allclose(tables[1][columns], tables[0][columns], rtol=1e-9)


# --- APFL -------------------------------------------------------------------------------------------------------------


def test_apfl_at_the_ends_is_fedavg_and_local() -> None:
    data, sgd = make_data(), ClientSGD(lr=0.3, momentum=0.9, state="keep")
    options: dict[str, Any] = {"client_optimizer": sgd, "local_epochs": 2}
    fedavg = train(make_model(FedAvg, data, **options), data, 4)
    local = train(make_model(Local, data, **options), data, 4)
    for alpha, expected in ((0.0, fedavg), (1.0, local)):
        apfl = train(make_model(APFL, data, alpha=alpha, adaptive=False, **options), data, 4)
        assert torch.equal(parameters(apfl.components), parameters(fedavg.components))
        torch.testing.assert_close(models_of(apfl), models_of(expected), rtol=1e-12, atol=1e-12)


# --- L2SGD ------------------------------------------------------------------------------------------------------------


def test_l2sgd_takes_an_epochs_steps_on_average() -> None:
    data = make_data(sizes=(20, 40, 60), fractions=(1.0, 0.0, 0.0))
    model = make_model(L2SGD, data, batch_size=10)
    steps = [model.local_steps_of(data.federation, k) for k in range(3000)]
    assert min(steps) == 0
    assert np.mean(steps) == pytest.approx(4.0, abs=0.3)  # geometric, standard deviation sqrt(20); (2 + 4 + 6) / 3


@pytest.mark.parametrize("schedule", ["cosine", "multistep"])
def test_unseen_clients_train_at_the_first_rounds_rate(schedule: Any) -> None:
    sgd = ClientSGD(lr=0.4, schedule=schedule)
    assert [sgd.lr_at(k, 4) for k in (0, 4)] == [0.4, 0.4]
    assert sgd.lr_at(3, 4) < 0.4


# --- q-FFL ------------------------------------------------------------------------------------------------------------


def test_qffl_draws_large_clients_more_often() -> None:
    data = make_data(sizes=(5, 5, 90))
    model = make_model(QFFL, data, participation=0.3)
    assert [int(draw_cohort(model, data.federation, k)[0]) for k in range(60)].count(2) > 45


# --- steps ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["loop", "vmap"])
def test_a_number_of_local_steps(engine: str) -> None:
    """Five steps of a client with two batches are two and a half passes."""
    data = make_data(sizes=(7, 2, 16), fractions=(1.0, 0.0, 0.0))
    sgd = ClientSGD(lr=0.1, momentum=0.9)
    model = train(make_model(Local, data, local_steps=5, client_optimizer=sgd, engine=engine), data, 1)
    for t in range(3):
        rows, net = batches(data, t, 4, 0, 0, steps=5), make_model(Local, data).double().components[0]
        assert len(rows) == 5
        x, y = map(torch.from_numpy, samples(data, t))
        by_torch(net, x, y, rows, lr=0.1, momentum=0.9)
        served = model.personal_models(torch.tensor([t])).models
        for name, parameter in net.named_parameters():
            torch.testing.assert_close(served[name][0, 0], parameter.detach(), rtol=1e-9, atol=1e-12)


# --- how much of its data an unseen client may use --------------------------------------------------------------------


@pytest.mark.parametrize(("fraction", "expected"), [(0.0, [0, 0]), (0.5, [4, 9]), (1.0, [9, 18])])
def test_an_unseen_client_uses_a_part_of_its_samples(fraction: float, expected: list[int]) -> None:
    data = make_data(sizes=(9, 18, 30, 30), fractions=(1.0, 0.0, 0.0))
    federation = data.federation
    part = federation.with_part(torch.tensor([0, 1]), fraction, seed=0)
    assert part.splits["train"].counts().tolist() == [*expected, 30, 30]
    for t in (0, 1):
        few, all_ = (set(f.block(torch.tensor([t]), "train").index.tolist()) for f in (part, federation))
        assert few <= all_
    alone = federation.with_part(torch.tensor([1]), fraction, seed=0)
    assert torch.equal(*(f.block(torch.tensor([1]), "train").index.sort().values for f in (part, alone)))


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (FedAvg, {}),
        (FedProx, {"mu": 0.0}),
        (Clustered, {}),
        (QFFL, {"q": 0.0}),
        (DFedEM, {"n_components": 1}),
        (FedEM, {"n_components": 1}),
        (APFL, {"alpha": 1.0, "adaptive": False}),
    ],
)
def test_one_client_is_centralised_training(kind: type[FederatedAlgorithm], options: dict[str, Any]) -> None:
    data, sgd = make_data(sizes=(23,)), ClientSGD(lr=0.3, momentum=0.9)
    found, alone = (
        train(make_model(method, data, client_optimizer=sgd, **given), data, 4)
        for method, given in ((kind, options), (Local, {}))
    )
    torch.testing.assert_close(models_of(found)[:, :15], models_of(alone), rtol=1e-9, atol=1e-12)


# --- found by a review ------------------------------------------------------------------------------------------------


def test_a_part_of_the_samples_limits_tuning_too() -> None:
    data = make_data(sizes=(30,) * 4, unseen_fraction=0.5)
    seen, losses = data.federation.seen.numpy(), []
    for fraction in (0.0, 1.0):
        tuning = Finetune(2, ClientSGD(lr=0.2))
        model = make_model(FedAvg, data, adaptation=tuning, personalize_fraction=fraction)
        train_and_test(model, data, 2)
        losses.append(model.clients.test_loss.to_numpy())
        assert (model.clients.n_train > 0).all()
    np.testing.assert_array_equal(losses[0][seen], losses[1][seen])
    assert (losses[0][~seen] != losses[1][~seen]).all()


@pytest.mark.parametrize("kind", [PFedMe, L2SGD, APFL])
def test_clients_never_sampled_serve_the_newest_global_model(kind: type[FederatedAlgorithm]) -> None:
    data = make_data(sizes=(9,) * 5)
    model = train(make_model(kind, data, participation=0.2, client_optimizer=ClientSGD(lr=0.3)), data, 2)
    sampled = {int(draw_cohort(model, data.federation, k)) for k in range(2)}
    never = torch.tensor([t for t in range(5) if t not in sampled])
    torch.testing.assert_close(model.personal_models(never).models, model.received(never))


def test_testing_twice_with_kept_momentum_is_testing_once() -> None:
    data = make_data(sizes=(20,) * 4, unseen_fraction=0.5)
    for kind in (Local, PFedMe, APFL, Ditto):
        model = make_model(kind, data, client_optimizer=ClientSGD(lr=0.2, momentum=0.9, state="keep"))
        once = train_and_test(model, data, 2).clients
        assert once.equals(table_of(model, data)), kind


def test_qffl_with_a_large_q_and_small_losses_stays_finite() -> None:
    x = np.concatenate([np.full((30, 1), -5.0), np.full((30, 1), 5.0)])
    data = FederatedDataModule.from_arrays(x, (x[:, 0] > 0).astype(int), np.arange(60) % 3, n_classes=2)
    model = make_model(QFFL, data, q=40.0, client_optimizer=ClientSGD(lr=0.5))
    train(model, data, 3, precision="32-true")
    assert float(model.reference) ** 40 < 1e-45  # zero in float32
    assert parameters(model.components).isfinite().all()


def test_weights_of_a_client_with_an_infinite_loss_stay() -> None:
    data = make_data(sizes=(9, 9, 9))
    spoil(data, 1e300)
    for kind in (FedEM, DFedEM):
        model = train(make_model(kind, data, client_optimizer=ClientSGD(lr=1e10)), data, 3)
        assert model.personal_models(torch.arange(3)).mixture.isfinite().all()
