"""What clients do with their models before they are scored, after methods with several models, against NumPy."""

from typing import Any

import numpy as np
import pytest
import torch

from fedem_lightning import (
    ClientSGD,
    Dapper,
    DFedEM,
    FedAvg,
    FedEM,
    FederatedAlgorithm,
    FederatedDataModule,
    Finetune,
    Interpolate,
    Topology,
)
from helpers.by_hand import (
    ALL_TRAIN,
    assert_agree,
    batches,
    descend,
    gradient,
    losses,
    responsibilities,
    row,
    samples,
    vector,
)
from helpers.federations import block_of, make_data, make_model, train

EVERYBODY = torch.arange(4)


def mixed_models(kind: type[FederatedAlgorithm], **options: Any) -> tuple[FederatedAlgorithm, FederatedDataModule]:
    """Four clients after two rounds with two components: nobody's mixture is close to one-hot or to uniform."""
    data = make_data(sizes=(9, 17, 6, 13), fractions=ALL_TRAIN)
    sgd = ClientSGD(lr=0.3, schedule="cosine")
    model = train(make_model(kind, data, n_components=2, client_optimizer=sgd, **options), data, 2)
    pi = model.personal_models(EVERYBODY).mixture
    assert 0.1 < pi.min() < pi.max() < 0.9
    assert (pi - 0.5).abs().min() > 0.005
    return model, data


WEIGHTED = pytest.mark.parametrize(
    ("kind", "options"),
    [
        (FedEM, {}),
        (DFedEM, {"topology": Topology(graph="ring")}),
    ],
    ids=["FedEM", "DFedEM"],
)


@WEIGHTED
@pytest.mark.parametrize("optimizer", [ClientSGD(lr=0.2), None], ids=["its own", "the algorithm's"])
def test_fine_tuning_weighs_samples_by_responsibilities(
    kind: type[FederatedAlgorithm], options: dict[str, Any], optimizer: ClientSGD | None
) -> None:
    """Every component: two passes of SGD on q l, q (Eq. 8) from the models before the tuning; pi stays."""
    model, data = mixed_models(kind, **options)
    start, pi = model.personal_models(EVERYBODY).models, model.personal_models(EVERYBODY).mixture.numpy().copy()
    tuned = Finetune(2, optimizer).adapt(model, block_of(data))
    for t in range(4):
        (x, y), thetas = samples(data, t), [row(start, t, m) for m in range(2)]
        q = responsibilities(pi[t], thetas, x, y)
        rows = batches(data, t, size=4, epochs=2, round_=2)
        for m in range(2):
            expected = descend(thetas[m], x, y, rows, 0.3 if optimizer is None else 0.2, q[:, m])
            assert_agree(row(tuned.models, t, m), expected)
    assert_agree(tuned.mixture.numpy(), pi)
    assert_agree(model.personal_models(EVERYBODY).mixture.numpy(), pi)
    torch.testing.assert_close(model.personal_models(EVERYBODY).models, start, rtol=0, atol=0)


# --- Dapper -----------------------------------------------------------------------------------------------------------


def contrary() -> FederatedDataModule:
    """Clients 0 and 3 train on label 0, the others, who have most samples, on label 1.

    In validation the labels of clients 0 and 1 are 1, those of clients 2 and 3 are 0: clients 0 and 2 are misled by
    their training samples, clients 1 and 3 are not.
    """
    client = np.repeat(EVERYBODY.numpy(), 20)
    split, trained, validated = np.tile([0] * 10 + [1] * 10, 4), np.array([0, 1, 1, 0]), np.array([1, 1, 0, 0])
    y = np.where(split == 0, trained[client], validated[client])
    x = np.random.default_rng(0).normal(size=(80, 4))
    return FederatedDataModule.from_arrays(x, y, client, split=split, n_classes=3)


def test_dapper_chooses_lambda_on_validation_samples() -> None:
    """Half of the pool has label 0 and half label 1; a client's own samples have one label alone."""
    data, sgd, expected = contrary(), ClientSGD(lr=0.5), [0.0, 1.0, 0.0, 1.0]
    model = make_model(FedAvg, data, client_optimizer=sgd)
    chosen = Dapper(lambdas=(0.0, 1.0)).adapt(model, block_of(data))
    assert chosen.columns["lambda"].tolist() == expected
    each = [Dapper(lambdas=(value,)).adapt(model, block_of(data)).models for value in (0.0, 1.0)]
    for t, value in enumerate(expected):  # and serves the model of this lambda
        assert_agree(row(chosen.models, t), row(each[int(value)], t))
    assert all(np.abs(row(each[0], t) - row(each[1], t)).max() > 0.01 for t in range(4))


def test_dapper_scores_a_lambda_on_the_clients_own_samples_not_on_those_drawn_for_it() -> None:
    """Client 0 has all three labels, the pool almost one alone: the pool's own samples would be easier to fit."""
    client = np.repeat([0, 1, 2], [12, 60, 60])
    y = np.where(client == 0, np.arange(132) % 3, 1)
    data = FederatedDataModule.from_arrays(
        np.random.default_rng(0).normal(size=(132, 4)), y, client, n_classes=3, fractions=ALL_TRAIN
    )
    model = make_model(FedAvg, data, client_optimizer=ClientSGD(lr=0.1))
    assert Dapper(lambdas=(0.0, 1.0)).adapt(model, block_of(data)).columns["lambda"][0] == 1.0  # on training samples


# --- interpolation ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("objective", ["own", "mixture"])
def test_interpolation_starts_from_the_model_with_the_largest_weight(objective: Any) -> None:
    """One full-batch step of h_l: on its own loss, or on -log(lambda p_l + (1 - lambda) sum_m pi_m p_m)."""
    data, share, lr = make_data(sizes=(9, 17, 6, 13), fractions=ALL_TRAIN), 0.4, 0.3
    model = train(make_model(FedEM, data, n_components=3, batch_size=100), data, 1)
    pi = np.array([[0.1, 0.3, 0.6], [0.5, 0.2, 0.3], [0.2, 0.7, 0.1], [0.3, 0.25, 0.45]])
    model.pi.copy_(torch.from_numpy(pi))
    interpolate = Interpolate(objective, lambdas=(share,), client_optimizer=ClientSGD(lr=lr))
    found = interpolate.adapt(model, block_of(data))
    assert_agree(found.mixture.numpy(), np.concatenate([np.full((4, 1), share), (1 - share) * pi], axis=1))
    thetas = [vector(component) for component in model.components]
    for t, strongest in enumerate((2, 0, 1, 2)):
        (x, y), start = samples(data, t), thetas[strongest]
        central = sum(pi[t, m] * np.exp(-losses(thetas[m], x, y)) for m in range(3))
        own = np.exp(-losses(start, x, y))
        q = share * own / (share * own + (1 - share) * central) if objective == "mixture" else np.ones(len(y))
        assert_agree(row(found.models, t), start - lr * gradient(start, x, y, q))
        for m in range(3):
            assert_agree(row(found.models, t, 1 + m), thetas[m])
