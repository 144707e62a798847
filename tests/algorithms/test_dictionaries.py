"""Samples of several arrays: every algorithm trains on them, predicts, and goes on from a checkpoint, or refuses."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedem_lightning import FederatedDataModule, UserError
from helpers.conformance import Row
from helpers.every_method import A_FEW
from helpers.federations import make_trainer

SIZES = (7, 12, 5, 20)
CLIENT = np.repeat(np.arange(len(SIZES)), SIZES)
REFUSED = {"MOCHA": "backbone: MOCHA needs one linear layer", "FedGMM": "algorithm: FedGMM needs inputs with a density"}


class Texts(nn.Module):
    """The mean of the tokens' vectors; its outputs come as a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.body, self.head = nn.Embedding(9, 4), nn.Linear(4, 5), nn.Linear(5, 3)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> dict[str, Tensor]:
        weight = attention_mask.unsqueeze(-1)
        z = (self.embed(input_ids) * weight).sum(dim=1) / weight.sum(dim=1)
        return {"logits": self.head(self.body(z).tanh())}


def texts() -> FederatedDataModule:
    """Sequences of 2 to 6 tokens, padded to 7; the label is a function of the first."""
    rng, n = np.random.default_rng(0), len(CLIENT)
    mask = np.arange(7) < rng.integers(2, 7, size=(n, 1))
    ids = rng.integers(1, 9, size=(n, 7)) * mask
    x = {"input_ids": ids.astype(np.int16), "attention_mask": mask.astype(np.int8)}
    data = FederatedDataModule.from_arrays(x, ids[:, 0] % 3, CLIENT, n_classes=3, domain=np.arange(n) % 2)  # type: ignore[arg-type]
    data.federation.truth["group"] = np.arange(len(SIZES)) % 2
    return data


def model_of(row: Row) -> Any:
    torch.manual_seed(0)
    return row.kind(Texts, n_clients=len(SIZES), **{"batch_size": 4, **row.options})


@A_FEW
def test_every_algorithm_takes_dictionaries_or_refuses_in_one_line(row: Row, tmp_path: Path) -> None:
    data, refusal, trainer = texts(), REFUSED.get(row.kind.__name__), make_trainer(1)
    if refusal is not None:
        with pytest.raises(UserError) as error:
            trainer.fit(model_of(row), data)
        assert str(error.value).startswith(refusal)
        assert "\n" not in str(error.value)
        return
    model = model_of(row)
    trainer.fit(model, data)
    trainer.test(model, data, verbose=False)
    losses = model.clients.test_loss
    assert np.isfinite(losses).all()
    found: Any = (trainer.predict(model, data) or [None])[0]
    assert found.prediction.shape == (len(found.y), 3)
    trainer.save_checkpoint(tmp_path / "round.ckpt")
    again = model_of(row)
    make_trainer(0).test(again, data, ckpt_path=tmp_path / "round.ckpt", verbose=False, weights_only=True)
    np.testing.assert_array_equal(again.clients.test_loss, losses)
