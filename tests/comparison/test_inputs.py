"""What a path means to `compare`: a table, arrays, folders; and shipped experiments."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

import fedem_lightning as fl
from fedem_lightning import UserError
from fedem_lightning.comparison.command import main
from fedem_lightning.comparison.inputs import words_of
from fedem_lightning.comparison.runs import Runs
from helpers.pfllib import save_pfllib


def read(path: Path, label: str | None = None, client: str | None = None) -> Runs:
    return Runs(path.parent / "out", words_of(path, label, client))


def test_a_table_and_arrays(tmp_path: Path) -> None:
    frame = pd.DataFrame({"who": np.arange(40) % 2, "a b": np.arange(40.0), "y": np.arange(40) % 3})
    frame.to_parquet(tmp_path / "my table.parquet")
    data = read(tmp_path / "my table.parquet", "y", "who").data(0)
    assert (data.n_clients, data.in_shape, data.n_outputs) == (2, (1,), 3)
    np.savez(tmp_path / "d.npz", x=np.zeros((40, 2)), y=np.arange(40) % 2, client=np.arange(40) % 4)
    assert read(tmp_path / "d.npz").data(0).n_clients == 4


def test_folders(tmp_path: Path) -> None:
    for client in ("ann", "bob"):
        for kind in ("cat", "dog"):
            (tmp_path / "images" / client / kind).mkdir(parents=True)
            for i in range(6):
                Image.new("RGB", (16, 16), (40 * i, 0, 0)).save(tmp_path / "images" / client / kind / f"{i}.png")
    runs = read(tmp_path / "images")
    assert runs.data(0).n_clients == 2
    assert runs.settle() == "network lenet"
    x, owner = np.zeros((40, 3), dtype=np.float32), np.arange(40) % 2
    save_pfllib(tmp_path / "pfllib", x, np.arange(40) % 2, owner, np.arange(40) < 30)
    assert read(tmp_path / "pfllib").data(0).n_clients == 2
    datasets = pytest.importorskip("datasets")
    datasets.Dataset.from_dict({"a": [1.0, 2.0] * 10, "y": [0, 1] * 10, "who": [0] * 10 + [1] * 10}).save_to_disk(
        tmp_path / "disk"
    )
    assert read(tmp_path / "disk", "y", "who").data(0).n_clients == 2
    with pytest.raises(UserError, match=r"expected \.csv, \.parquet, \.npz or a folder"):
        words_of(Path(__file__), None, None)


def test_a_shipped_experiment(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its rates, which were tuned for it, are not used; training stops by validation, as for all."""
    words = ["+experiment=digits", "trainer.max_epochs=2", "dataset.n_clients=5", "--out", str(tmp_path / "out")]
    main([*words, "--methods", "ditto", "--trials", "1", "--seeds", "2"])
    assert "network mlp" in capsys.readouterr().out
    config = next((tmp_path / "out" / "trials" / "ditto").glob("*/.hydra/config.yaml")).read_text()
    assert "BestRound" in config
    assert fl.load(tmp_path / "out" / "model") is not None
