"""A row for each task, and samples of several arrays: every algorithm trains, predicts, goes on, or refuses."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedem_lightning import MLP, FederatedDataModule, UserError
from helpers.conformance import Row
from helpers.every_method import A_FEW
from helpers.federations import make_trainer

SIZES = (7, 12, 5, 20)
CLIENT = np.repeat(np.arange(len(SIZES)), SIZES)


class Tokens(nn.Module):
    """Next token by the token alone: 5 tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.body, self.head = nn.Embedding(5, 4), nn.Linear(4, 5), nn.Linear(5, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(self.embed(x)).tanh())


class Texts(nn.Module):
    """The mean of the tokens' vectors; its outputs come as a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.body, self.head = nn.Embedding(9, 4), nn.Linear(4, 5), nn.Linear(5, 3)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> dict[str, Tensor]:
        weight = attention_mask.unsqueeze(-1)
        z = (self.embed(input_ids) * weight).sum(dim=1) / weight.sum(dim=1)
        return {"logits": self.head(self.body(z).tanh())}


def texts(rng: np.random.Generator, n: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Sequences of 2 to 6 tokens, padded to 7; the label is a function of the first."""
    mask = np.arange(7) < rng.integers(2, 7, size=(n, 1))
    ids = rng.integers(1, 9, size=(n, 7)) * mask
    return {"input_ids": ids.astype(np.int16), "attention_mask": mask.astype(np.int8)}, ids[:, 0] % 3


def mlp(n_outputs: int) -> Callable[[], nn.Module]:
    return lambda: MLP((4,), n_outputs, [5])


@dataclass(frozen=True)
class TaskRow:
    name: str
    network: Callable[[], nn.Module]
    answer: tuple[int, ...]  # shape of a sample's prediction
    refused: dict[str, str]  # algorithm -> how its line begins

    def data(self) -> FederatedDataModule:
        """Four clients; every fifth label is missing, but never a sample's first."""
        rng, n = np.random.default_rng(0), len(CLIENT)
        x: Any
        if self.name == "classification":  # of several arrays, and no label is missing
            x, y = texts(rng, n)
            return self.with_truth(FederatedDataModule.from_arrays(x, y, CLIENT, domain=np.arange(n) % 2))
        if self.name == "language":
            x = rng.integers(0, 5, size=(n, 6))
            y = (x + 1) % 5
        else:
            x = rng.normal(size=(n, 4))
            y = x @ rng.normal(size=(4, 3))
            y = (y > 0).astype(int) if self.name == "multilabel" else y
        gone = rng.random(y.shape) < 0.2
        gone.reshape(n, -1)[:, 0] = False
        y = np.where(gone, np.nan if self.name == "regression" else -100, y)
        data = FederatedDataModule.from_arrays(x, y, CLIENT, task=self.name, domain=np.arange(n) % 2)
        return self.with_truth(data)

    def with_truth(self, data: FederatedDataModule) -> FederatedDataModule:
        data.federation.truth["group"] = np.arange(len(SIZES)) % 2
        return data

    def model(self, row: Row) -> Any:
        """The algorithm around networks with a hidden layer, whose initial values are always the same."""
        torch.manual_seed(0)
        return row.kind(self.network, n_clients=len(SIZES), **{"batch_size": 4, **row.options})


NEED_CLASSES = ("FEROMA", "FedAS", "FedLC", "FedPAC", "FedProto", "FedRC", "FedRoD", "GPFL")
CLASSES = {name: f"dataset.task: {name} needs classes as labels" for name in NEED_CLASSES}
MOCHA = {"MOCHA": "backbone: MOCHA needs one linear layer"}
ONE_CLASS = {name: f"dataset.task: {name} needs one class for each sample" for name in ("FedAS", "FEROMA")}
GMM = {
    "FedGMM": "algorithm: FedGMM needs inputs with a density",
    "DensityFedEM": "algorithm: fedem_density needs inputs with a density",
}
TASKS = [
    TaskRow("multilabel", mlp(3), (3,), MOCHA | CLASSES),
    TaskRow("language", Tokens, (6, 5), MOCHA | GMM | ONE_CLASS),
    TaskRow("regression", mlp(3), (3,), MOCHA | CLASSES),
    TaskRow("classification", Texts, (3,), MOCHA | GMM),
]


@A_FEW
@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_every_algorithm_learns_every_task_or_refuses_in_one_line(task: TaskRow, row: Row, tmp_path: Path) -> None:
    data = task.data()
    refusal, trainer = task.refused.get(row.kind.__name__), make_trainer(1)
    if refusal is not None:
        with pytest.raises(UserError) as error:
            trainer.fit(task.model(row), data)
        assert str(error.value).startswith(refusal)
        assert "\n" not in str(error.value)
        return
    model = task.model(row)
    trainer.fit(model, data)
    trainer.test(model, data, verbose=False)
    losses = model.clients.test_loss
    assert np.isfinite(losses).all()
    found: Any = (trainer.predict(model, data) or [None])[0]
    assert found.prediction.shape == (len(found.y), *task.answer)
    assert np.isfinite(found.prediction).all()
    trainer.save_checkpoint(tmp_path / "round.ckpt")
    again = task.model(row)
    make_trainer(0).test(again, data, ckpt_path=tmp_path / "round.ckpt", verbose=False, weights_only=True)
    np.testing.assert_array_equal(again.clients.test_loss, losses)
