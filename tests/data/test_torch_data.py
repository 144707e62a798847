"""What torch users hold becomes a federation: dictionaries of clients, Datasets, and their mistakes."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, TensorDataset

from fedem_lightning import FederatedDataModule, TorchDataModule, UserError
from helpers.commands import call
from helpers.federations import stored

RNG = np.random.default_rng(0)
N = 60
X, Y = RNG.normal(size=(N, 3)).astype(np.float32), np.arange(N) % 3
CLIENT = np.repeat(["Ann", "Bob", "Cem"], [30, 20, 10])
ARRAYS = FederatedDataModule.from_arrays(X, Y, CLIENT, seed=2)
OF = {name: np.flatnonzero(name == CLIENT) for name in ("Ann", "Bob", "Cem")}


def tensors(rows: Any) -> tuple[Tensor, Tensor]:
    """Samples as tensors."""
    return torch.from_numpy(X[rows]), torch.from_numpy(Y[rows])


class Named(Dataset[Any]):
    """Samples that are dictionaries."""

    def __len__(self) -> int:
        return N

    def __getitem__(self, i: int) -> Any:
        return {"img": X[i], "label": int(Y[i])}


def each(make: Callable[[Any], Any]) -> Callable[[], Any]:
    """A dictionary of the three clients."""
    return lambda: TorchDataModule({name: make(rows) for name, rows in OF.items()}, seed=2)


ALL = TensorDataset(*tensors(np.arange(N)))
FORMS: dict[str, Callable[[], Any]] = {
    "arrays": each(lambda rows: (X[rows], Y[rows])),
    "tensors": each(tensors),
    "dictionaries of arrays": each(lambda rows: {"x": X[rows], "y": Y[rows]}),
    "lists of samples, as PFLlib's": each(lambda rows: list(zip(*tensors(rows), strict=True))),
    "data sets": each(lambda rows: TensorDataset(*tensors(rows))),
    "subsets": each(lambda rows: torch.utils.data.Subset(ALL, rows.tolist())),
    "one data set": lambda: TorchDataModule(ALL, client=CLIENT, seed=2),
    "one data set of dictionaries": lambda: TorchDataModule(Named(), client=CLIENT, seed=2),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_federation_of_the_arrays(form: str) -> None:
    before = torch.get_rng_state()
    data = FORMS[form]()
    assert data.federation.digest() == ARRAYS.federation.digest()
    assert data.federation.names == ("Ann", "Bob", "Cem")
    assert torch.equal(torch.get_rng_state(), before)


def test_a_list_numbers_its_clients() -> None:
    data = TorchDataModule([tensors(rows) for rows in OF.values()], seed=2)
    assert data.federation.names == ("0", "1", "2")
    assert data.federation.digest() == ARRAYS.federation.digest()


def test_test_and_validation_samples_are_those_given() -> None:
    parts = {"data": slice(0, 6), "val": slice(6, 7), "test": slice(7, None)}
    given: dict[str, Any] = {
        part: {name: tensors(rows[where]) for name, rows in OF.items()} for part, where in parts.items()
    }
    data = TorchDataModule(**given)
    order = np.concatenate([rows[where] for where in parts.values() for rows in OF.values()])
    split = np.concatenate([[part] * len(rows[where]) for part, where in parts.items() for rows in OF.values()])
    split = np.where(split == "data", "train", split)
    expected = FederatedDataModule.from_arrays(X[order], Y[order], CLIENT[order], split=split)
    assert data.federation.digest() == expected.federation.digest()
    assert [len(data.federation.splits[part]) for part in ("train", "val", "test")] == [18, 3, 39]
    without = TorchDataModule(given["data"], given["test"])
    assert [len(without.federation.splits[part]) for part in ("train", "val", "test")] == [18, 0, 39]


def test_labels_may_be_words_or_real_and_samples_images() -> None:
    words = TorchDataModule({"a": [(X[i], "no" if i % 2 else "yes") for i in range(10)]})
    assert words.federation.notes["classes"] == ["no", "yes"]
    real = TorchDataModule({"a": [(X[i], X[i, :2]) for i in range(10)]}, task="regression")
    assert stored(real.federation).y.shape == (10, 2)
    image = torch.zeros(3, 8, 8, dtype=torch.uint8)
    assert TorchDataModule({"a": [(image, 0), (image, 1)] * 5}).in_shape == (3, 8, 8)


def test_samples_are_not_kept_twice_and_options_are_recorded() -> None:
    data = TorchDataModule({"a": tensors(np.arange(N))}, fractions=(0.5, 0.25, 0.25))
    assert not {"data", "test", "val", "client"} & data.made_with.keys()
    assert data.hparams["data"]["fractions"] == [0.5, 0.25, 0.25]
    assert "fractions=" in repr(data)


GOOD = tensors(OF["Ann"])
WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "nothing": (lambda: TorchDataModule(None), "^data: expected a dictionary .*; on the command line dataset.data._ta"),
    "a pair": (lambda: TorchDataModule(GOOD), "^data: expected a dictionary or a list .* got a tuple$"),
    "an array": (lambda: TorchDataModule(X), "^data: expected .*x, y.* as arrays, a torch Dataset .* got a ndarray$"),
    "an empty client": (lambda: TorchDataModule({"a": GOOD, "b": []}), "^data: client b: no samples$"),
    "lengths": (
        lambda: TorchDataModule({"a": (X, Y[1:])}),
        r"^data: client a: expected x \[n, ...\] and y \[n\], got shapes \[60, 3\] and \[59\]$",
    ),
    "no clients": (lambda: TorchDataModule(ALL), "^client: partition=natural needs the client of each sample"),
    "shapes in a client": (
        lambda: TorchDataModule({"a": [(X[0], 0), (X[1, :2], 1)]}),
        r"^data: client a: sample 1: x of shape \[n, 2\] and float32, but data: client a: sample 0: of shape",
    ),
    "shapes of clients": (
        lambda: TorchDataModule({"a": GOOD, "b": (X[:, :2], Y)}),
        r"^data: client b: x of shape \[n, 2\] and float32, but data: client a: of shape \[n, 3\] and float32; all",
    ),
    "no label": (
        lambda: TorchDataModule({"a": [{"img": X[0], "digit": 1}]}),
        "^data: client a: sample 0: expected x and y or labels or label in it, got img, digit$",
    ),
    "unknown test client": (lambda: TorchDataModule({"a": GOOD}, {"b": GOOD}), "^test: client b is not in data$"),
    "validation alone": (lambda: TorchDataModule({"a": GOOD}, val={"a": GOOD}), "^val: it needs test; without test"),
    "test of one set": (lambda: TorchDataModule(Named(), {"a": GOOD}), "^test: it goes with a dictionary or a list"),
    "kinds of names": (
        lambda: TorchDataModule({"a": GOOD, 1: GOOD}),
        "^data: client: expected only strings, ",
    ),
    "a loader": (lambda: TorchDataModule({"a": DataLoader(ALL)}), r"^data: client a: .* \(that of a DataLoader is its"),
}


@pytest.mark.parametrize("mistake", WRONG)
def test_every_mistake_is_one_line(mistake: str) -> None:
    make, line = WRONG[mistake]
    with pytest.raises(UserError, match=line) as found:
        make()
    assert "\n" not in str(found.value)


MINE = """
import torch

def clients(n=3):
    torch.manual_seed(0)
    return {f"c{k}": (torch.randn(20, 4), torch.arange(20) % 2) for k in range(n)}
"""
SHORT = ("trainer.max_epochs=1", "trainer.accelerator=cpu", "backbone=linear", "algorithm=fedavg", "run_dir=out")


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with the user's module, which can be imported."""
    (tmp_path / "mine.py").write_text(MINE)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    sys.modules.pop("mine", None)


def test_a_run_reads_a_users_function(
    mine: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("dataset=torch", "dataset.data._target_=mine.clients", "+dataset.data.n=5")
    assert call(mine, monkeypatch, *words, *SHORT) == 0
    assert "data: 5 clients, 100 samples" in capsys.readouterr().out
