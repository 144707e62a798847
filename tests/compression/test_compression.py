"""Compressed uploads: against their equations in NumPy, in every method, in bytes, and across stops and processes."""

import math
import warnings
from typing import Any

import numpy as np
import pytest
import torch

from fedem_lightning import (
    ClientSGD,
    Clustered,
    Compression,
    EightBit,
    FedAvg,
    FedEM,
    FedPer,
    FedProto,
    HypCluster,
    Scaffold,
    TopK,
    UserError,
)
from fedem_lightning.module.round import draw_cohort
from helpers.conformance import Noisy, Row
from helpers.every_method import A_FEW
from helpers.federations import make_data, make_model, parameters, stored, train

RNG = np.random.default_rng(0)
UPDATES = {"a": RNG.normal(size=(2, 3, 4)), "b": RNG.normal(size=(2, 3, 2, 5)), "c": RNG.normal(size=(2, 3))}
"""Of C = 2 clients, M = 3 components, one parameter a scalar."""

REFUSED = (Clustered, FedProto)
KEYS = torch.tensor([4, 9])


def read(compression: Compression, updates: dict[str, np.ndarray], keys: torch.Tensor = KEYS) -> dict[str, np.ndarray]:
    tensors = {name: torch.tensor(rows) for name, rows in updates.items()}
    return {name: rows.numpy() for name, rows in compression.decode(compression.encode(tensors, keys), tensors).items()}


def top_k(update: np.ndarray, k: int) -> np.ndarray:
    """Sparsified SGD with Memory, Definition 2.1, with the largest entries."""
    kept = np.zeros_like(update)
    largest = np.argsort(-np.abs(update))[:k]
    kept[largest] = update[largest]
    return kept


def test_top_k_keeps_the_largest_entries_of_each_component() -> None:
    found = read(TopK(0.3), UPDATES)
    for c in range(2):
        for m in range(3):
            flat = np.concatenate([rows[c, m].ravel() for rows in UPDATES.values()])
            expected = top_k(flat, math.ceil(0.3 * 15))
            assert np.concatenate([rows[c, m].ravel() for rows in found.values()]) == pytest.approx(expected, abs=0)


def test_eight_bits_are_within_a_level_and_right_on_average() -> None:
    draws = [read(EightBit(), UPDATES, torch.tensor([i, 1000 + i])) for i in range(500)]
    for name, rows in UPDATES.items():
        level = np.abs(rows.reshape(2, 3, -1)).max(axis=2).reshape(2, 3, *[1] * (rows.ndim - 2)) / 127
        errors = np.stack([draw[name] - rows for draw in draws])
        assert (np.abs(errors) <= level * (1 + 1e-9)).all()
        assert (np.abs(errors.mean(axis=0)) < 5 * level * 0.5 / math.sqrt(500)).all()
        assert np.abs(errors).max() > 0.3 * level.min() or rows.ndim == 2  # it does round; one number is its own scale
        assert draws[0][name] / level == pytest.approx(np.round(draws[0][name] / level), abs=1e-6)


def test_an_update_of_zeros_stays_zero() -> None:
    zeros = {name: np.zeros_like(rows) for name, rows in UPDATES.items()}
    for compression in (TopK(0.3), EightBit()):
        assert all((rows == 0).all() for rows in read(compression, zeros).values())


def test_error_feedback_over_rounds_with_cohorts() -> None:
    """Sparsified SGD with Memory, Algorithm 1, for the updates of FedAvg: e <- u - top_k(u), u = d + e."""
    data = make_data()
    options = {"client_optimizer": ClientSGD(lr=0.3), "participation": 0.5, "engine": "loop"}
    model, plain = (make_model(FedAvg, data, compression=c, **options) for c in (TopK(0.2), None))
    theta, error = parameters(plain.components).numpy(), np.zeros((4, 15))
    n = data.federation.splits["train"].counts().numpy()
    train(model, data, 4)
    for round_ in range(4):
        cohort = draw_cohort(plain, data.federation, round_).tolist()
        total = np.zeros(15)
        for t in cohort:
            d = client_model(plain, data, theta, t, round_) - theta
            u = d + error[t]
            sent = top_k(u, 3)
            error[t] = u - sent
            total += n[t] / n[cohort].sum() * (theta + sent)
        theta = total
    assert parameters(model.components).numpy() == pytest.approx(theta, abs=1e-12)
    assert np.abs(error).max() > 0.01


def client_model(plain: Any, data: Any, theta: np.ndarray, t: int, round_: int) -> np.ndarray:
    """What client t computes from theta."""
    torch.nn.utils.vector_to_parameters(torch.tensor(theta), plain.components.double().parameters())
    block = data.federation.block(torch.tensor([t]), "train")
    with torch.no_grad():
        sent = plain.client_update(block, round_)
    return np.concatenate([rows.flatten().numpy() for rows in sent.models.values()])


def refuses(row: Row) -> bool:
    """Whether a method refuses compression, in its own words."""
    if "shared" in row.options:
        with pytest.raises(UserError, match=r"^shared: leave out compression"):
            row.model(row.data(), compression=TopK(1.0))
    return "shared" in row.options


@A_FEW
def test_all_entries_are_no_compression(row: Row) -> None:
    data = row.data()
    if refuses(row):
        return
    if not row.kind.sends_models or row.kind in REFUSED:
        with pytest.raises(UserError, match=r"^compression: \w+ (has no server|compares the .* whole)"):
            trained(row, data, TopK(1.0))
        return
    compressed, whole = trained(row, data, top(row, 1.0)), trained(row, data)
    assert learnt(compressed).numpy() == pytest.approx(learnt(whole).numpy(), abs=1e-10)


def top(row: Row, share: float) -> TopK:
    """With error feedback, but where it is refused."""
    return TopK(share, error_feedback=row.kind is not HypCluster)


def test_errors_of_one_hypothesis_are_not_added_to_another() -> None:
    with pytest.raises(UserError, match=r"^compression.error_feedback: HypCluster's clients change models"):
        make_model(HypCluster, make_data(), compression=TopK())


def learnt(model: Any) -> torch.Tensor:
    """All of a model's tensors but the errors of its messages."""
    state = {name: t for name, t in model.state_dict().items() if not name.startswith("compression_error.")}
    return torch.cat([t.double().flatten() for t in state.values()])


def trained(row: Row, data: Any, compression: Compression | None = None) -> Any:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*eta lambda")
        warnings.filterwarnings("ignore", message=".*cannot split")
        return train(row.model(data, compression=compression), data, 3)


@pytest.mark.parametrize(
    ("kind", "compression", "expected"),
    [
        (FedAvg, TopK(0.2), 3 * (8 + 4)),  # k = 3 of 15 parameters in float64, and positions of 4 bytes
        (FedEM, TopK(0.2), 3 * 3 * (8 + 4)),
        (FedAvg, EightBit(), 15 + 2 * 8),  # an entry has a byte, each of the two tensors a scale
        (Scaffold, EightBit(), 15 + 2 * 8 + 15 * 8),  # and the control variate as it is
        (FedPer, TopK(0.2), 5 * (8 + 4)),  # 25 of 43 parameters are shared
    ],
)
def test_bytes_of_a_clients_upload(kind: Any, compression: Compression, expected: int) -> None:
    data = make_data()
    model = train(make_model(kind, data, hidden=kind is FedPer, compression=compression), data, 2)
    assert model.statistics.up_bytes == 2 * 4 * expected


def test_buffers_are_sent_as_they_are() -> None:
    data = make_data(sizes=(12, 12, 12, 12))
    torch.manual_seed(0)
    model = FedAvg(Noisy(), n_clients=4, batch_size=4, compression=TopK(1e-9), seed=0)
    torch.manual_seed(0)
    whole = FedAvg(Noisy(), n_clients=4, batch_size=4, seed=0)
    train(model, data, 1)
    train(whole, data, 1)
    for name, buffer in whole.components[0].named_buffers():
        assert torch.equal(buffer, model.components[0].get_buffer(name)), name
    assert model.statistics.up_bytes == 4 * (8 + 4 + 2 * 6 * 8 + 8)


def test_a_client_whose_update_is_not_finite_keeps_its_error() -> None:
    data = make_data()
    stored(data.federation).x[data.federation.splits["train"].positions(torch.tensor([1]))[0]] = torch.nan
    model = make_model(FedAvg, data, compression=TopK(0.2))
    train(model, data, 2)
    assert model.statistics.rejections.total == 2
    kept = model.compression_error[torch.arange(4)]
    assert all(rows.isfinite().all() for rows in kept.values())
    assert not any(rows[1].any() for rows in kept.values())
    assert any(rows[0].any() for rows in kept.values())
