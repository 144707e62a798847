"""FedEM with uploads of some of the components: unbiased, counted, and the same from clients of their own."""

from typing import Any

import numpy as np
import pytest
import torch

from fedem_lightning import ClientSGD, FedEM, TopK, UserError
from fedem_lightning.aggregation import Sent
from fedem_lightning.uploads import chosen_uploads, upload_some
from helpers.federations import make_data, make_model, parameters, train

OPTIONS: dict[str, Any] = {"client_optimizer": ClientSGD(lr=0.5)}


def test_an_update_counts_as_often_as_it_is_rare() -> None:
    rng = np.random.default_rng(0)
    theta, trained = rng.normal(size=(2, 3, 4)), rng.normal(size=(2, 3, 4))
    p = np.array([[1.0, 0.5, 0.1], [0.25, 0.0, 0.9]])
    total, counts, rounds = np.zeros_like(theta), np.zeros((2, 3)), 4000
    for round_ in range(rounds):
        update = Sent({"a": torch.tensor(trained)}, torch.ones(2))
        received = {"a": torch.tensor(theta)}
        sends = chosen_uploads(torch.tensor(p), 7, round_, torch.tensor([3, 8]))
        b, found = sends.numpy(), upload_some(update, received, torch.tensor(p), sends, ["a"]).models["a"].numpy()
        factors = np.divide(b, p, out=np.zeros_like(p), where=p > 0)
        assert found == pytest.approx(theta + factors[..., None] * (trained - theta), abs=1e-12)
        total += found
        counts += b
    assert counts / rounds == pytest.approx(p, abs=0.03)
    assert (counts / rounds)[p % 1 == 0].tolist() == p[p % 1 == 0].tolist()
    expected = np.where(p[..., None] > 0, trained, theta)
    assert total / rounds == pytest.approx(expected, abs=0.25)


def test_with_a_small_threshold_every_component_is_sent() -> None:
    data = make_data()
    every, none = (train(make_model(FedEM, data, upload_threshold=x, **OPTIONS), data, 5) for x in (1e-6, None))
    assert parameters(every) == pytest.approx(parameters(none), abs=1e-12)
    assert every.statistics.up_bytes == none.statistics.up_bytes


def test_bytes_and_the_mean_number_of_components() -> None:
    data = make_data()
    model = train(make_model(FedEM, data, upload_threshold=1.0, warmup_rounds=1, **OPTIONS), data, 1)
    assert model.statistics.up_bytes == 4 * 3 * model.message_bytes
    model = train(make_model(FedEM, data, upload_threshold=1.0, **OPTIONS), data, 1)
    uploaded = model.round_metrics.means()["uploaded_components"]
    assert model.statistics.up_bytes == round(4 * uploaded * model.message_bytes)
    assert 0 < uploaded < 3
    assert model.statistics.down_bytes == 4 * 3 * model.message_bytes


def test_blocks_do_not_matter() -> None:
    data = make_data()
    found = [
        parameters(train(make_model(FedEM, data, upload_threshold=0.9, engine=engine, **OPTIONS), data, 4))
        for engine in ("loop", "vmap")
    ]
    assert found[0] == pytest.approx(found[1], abs=1e-10)


def test_it_does_not_go_with_compression() -> None:
    with pytest.raises(UserError, match=r"^upload_threshold: .*use one of both$"):
        make_model(FedEM, make_data(), upload_threshold=0.5, compression=TopK())
