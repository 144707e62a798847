"""The digest of a federation covers all of it, x included, for every kind of samples."""

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedem_lightning import (
    Digits,
    FedAvg,
    FederatedDataModule,
    TextDataModule,
    UserError,
)
from fedem_lightning.data.federation import Federation
from fedem_lightning.data.samples import Arrays, hash_of
from helpers.federations import make_data, make_model, make_trainer, stored, train
from helpers.folders import save_text

ARRAYS: dict[str, Any] = {
    "x": np.arange(24.0).reshape(6, 4),
    "y": np.array([0, 1, 0, 1, 0, 1]),
    "client": np.array([0, 0, 0, 1, 1, 1]),
    "split": np.array([0, 1, 2, 0, 1, 2]),
    "domain": np.array([0, 0, 0, 1, 1, 1]),
}
CHANGES: dict[str, dict[str, Any]] = {
    "a value": {"x": ARRAYS["x"] + (np.arange(24).reshape(6, 4) == 23)},
    "the last bit": {"x": np.nextafter(ARRAYS["x"], np.inf)},
    "shape": {"x": ARRAYS["x"].reshape(6, 2, 2)},
    "dtype": {"x": ARRAYS["x"].astype(np.float32)},
    "label": {"y": np.array([1, 1, 0, 1, 0, 1])},
    "client": {"client": np.array([0, 0, 0, 1, 1, 0])},
    "split": {"split": np.array([0, 2, 1, 0, 1, 2])},
    "domain": {"domain": np.array([0, 0, 0, 1, 1, 0])},
}


def federation(**change: Any) -> Federation:
    return FederatedDataModule.from_arrays(**{**ARRAYS, **change}).federation


@pytest.mark.parametrize("what", CHANGES)
def test_every_array_enters_the_digest(what: str) -> None:
    assert federation().digest() == federation().digest()
    assert federation(**CHANGES[what]).digest() != federation().digest()


def test_a_digest_is_the_hash_of_the_bytes_in_any_memory_order() -> None:
    """Also of those whose columns, not rows, are one after the other."""
    x = np.random.default_rng(0).normal(size=(1000, 7))
    expected = hashlib.sha256(f"torch.float64 [{len(x)}, 7]".encode() + x.tobytes()).hexdigest()
    assert hash_of([torch.from_numpy(x)], shapes=True).hexdigest() == expected
    assert hash_of([torch.from_numpy(np.asfortranarray(x))], shapes=True).hexdigest() == expected


def test_text_and_the_length_of_its_windows_enter(tmp_path: Path) -> None:
    digests = set()
    for word, window in (("not", 5), ("not", 6), ("bot", 5)):
        text = save_text(tmp_path / "text.npz", {"HAMLET": f"To be. Or {word}. " * 20})
        digests.add(TextDataModule(text, window=window).federation.digest())
    assert len(digests) == 3


def test_other_samples_have_another_digest_and_a_moved_federation_the_same() -> None:
    data = federation()
    before = data.digest()
    more = Arrays(torch.cat([stored(data).x, stored(data).x[:1]]), stored(data).y)
    assert data._with(samples=more).digest() != before
    assert data.with_part(torch.tensor([0]), 0.0, seed=0).digest() != before
    assert data.to("cpu").digest() == data.digest() == before


def test_a_trained_model_refuses_another_x() -> None:
    data = make_data()
    model = train(make_model(FedAvg, data), data, 1)
    other = make_data()
    stored(other.federation).x[0, 0] += 1
    with pytest.raises(UserError, match="it was trained on another federation"):
        make_trainer(2).fit(model, other)


def test_digests_of_before_are_those_of_today() -> None:
    """Of the first version whose digests have x in them."""
    assert Digits(n_clients=5, seed=3).federation.digest().startswith("580f4ce82e81a7ea")
