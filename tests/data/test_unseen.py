"""Clients that are held out of training by name."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf

from fedem_lightning import (
    DensityDataModule,
    FederatedDataModule,
    NpzDataModule,
    SyntheticMixture,
    TextDataModule,
    UserError,
)
from fedem_lightning.data.splits import SPLITS, HoldOut
from helpers.federations import make_data
from helpers.folders import save_text

NAMES = ("hospital_1", "hospital_2", "clinic", "true")


def unseen_names(data: FederatedDataModule) -> list[str]:
    return [data.federation.names[t] for t in data.federation.clients(seen=False)]


def test_clients_are_held_out_by_name() -> None:
    unseen = ["clinic", "hospital_1"]
    forms: list[Any] = [unseen, OmegaConf.create(unseen), np.array(unseen)]
    for given in forms:
        assert HoldOut(unseen=given).seen(NAMES).tolist() == [False, True, False, True]


@pytest.mark.parametrize(
    ("unseen", "fraction", "message"),
    [
        (["hospital_3"], 0.0, "unseen: no client is named hospital_3; there are clinic"),
        (["clinic"], 0.25, "it names clients, and unseen_fraction=0.25 draws some; give one of them"),
        (list(NAMES), 0.0, "it names all 4 clients, which leaves nobody to train"),
        ([True], 0.0, r"expected a list of clients\' names such as .* need quotes\), got \[True\]"),
    ],
)
def test_wrong_names_are_one_line(unseen: Any, fraction: float, message: str) -> None:
    options: dict[str, Any] = {"unseen": unseen, "unseen_fraction": fraction, "fractions": (1, 0, 0)}
    with pytest.raises(UserError, match=message) as caught:
        FederatedDataModule.from_arrays(np.zeros((8, 1)), np.arange(8) % 2, np.repeat(NAMES, 2), **options)
    assert "\n" not in str(caught.value)


def text(folder: Path, **options: Any) -> FederatedDataModule:
    spoken = {"HAMLET": "To be. Or not to be? " * 9, "GHOST": "Swear. By his sword. " * 7}
    return TextDataModule(save_text(folder / "text.npz", spoken), window=6, **options)


def npz(folder: Path, **options: Any) -> FederatedDataModule:
    client = np.arange(30) % 3
    np.savez(folder / "mine.npz", x=np.zeros((30, 2)), y=np.arange(30) % 2, client=client, names=["a", "b", "c"])
    return NpzDataModule(folder / "mine.npz", **options)


SETS = {
    "text": (text, "GHOST"),
    "npz": (npz, "b"),
    "arrays": (lambda folder, **options: make_data(**options), "2"),
    "density": (lambda folder, **options: DensityDataModule(n_clients=4, n_symbols=9, **options), "1"),
    "synthetic": (lambda folder, **o: SyntheticMixture(n_clients=3, dimension=2, test_size=5, **o), "0"),
}


@pytest.mark.parametrize("name", SETS)
def test_every_data_set_holds_out_by_name_and_keeps_the_splits(name: str, tmp_path: Path) -> None:
    make, client = SETS[name]
    everyone, some = make(tmp_path), make(tmp_path, unseen=[client])
    assert (unseen_names(everyone), unseen_names(some)) == ([], [client])
    everybody = torch.arange(everyone.n_clients)
    for split in SPLITS:
        before, after = (data.federation.splits[split].positions(everybody) for data in (everyone, some))
        assert torch.equal(before[0], after[0])
        assert torch.equal(before[1], after[1])


@pytest.mark.parametrize("name", SETS)
def test_every_data_set_prints_what_it_is(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Before the Trainer has set it up, and afterwards."""
    data = SETS[name][0](tmp_path)
    print(data)
    shown = capsys.readouterr().out
    assert shown.startswith(f"{type(data).__name__}(")
    assert "seed=0" in shown
    assert shown.endswith(f")\n{data.federation}\n")
    assert str(data.federation).startswith(f"{data.n_clients} clients, ")
    data.setup("fit")
    assert f"{data}\n" == f"{data!r}\n" == shown
