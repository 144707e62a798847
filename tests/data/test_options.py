"""What data modules take: the keywords of each, and the options that they share, which are defined once."""

import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedem_lightning import (
    DensityDataModule,
    Digits,
    FederatedDataModule,
    FolderDataModule,
    ImageDataModule,
    NpzDataModule,
    PFLlibDataModule,
    SyntheticMixture,
    TableDataModule,
    TextDataModule,
    TorchDataModule,
)
from fedem_lightning.settings.check import parameters

HELD_OUT = "unseen_fraction unseen seed"
SPLIT = f"{HELD_OUT} fractions"
DEALT = f"{SPLIT} partition n_clients alpha beta n_label_groups shards_per_client min_samples"
OWN = f"{DEALT} split_by"
TASK = "task n_classes standardize_targets"
IMAGES = "name path data_dir sample_fraction shift n_groups shifted_share invert mean std domains"
TABLE = "path label client features categorical missing split"
KEYWORDS: dict[Any, str] = {
    SyntheticMixture: f"n_clients n_components dimension alpha noise test_size one_hot {HELD_OUT}",
    DensityDataModule: f"n_clients n_symbols n_samples test_size {HELD_OUT}",
    Digits: f"n_clients alpha n_groups {SPLIT}",
    TextDataModule: f"path data_dir window stride n_clients {SPLIT}",
    ImageDataModule: f"{IMAGES} label_smoothing {DEALT}",
    NpzDataModule: f"path {TASK} {OWN}",
    TableDataModule: f"{TABLE} {TASK} {OWN}",
    TorchDataModule: f"data test val client {TASK} {OWN}",
    PFLlibDataModule: f"path val_fraction n_clients {TASK} {HELD_OUT}",
    FolderDataModule: f"path size {TASK} {OWN}",
    FederatedDataModule.from_arrays: f"x y client split names domain {TASK} {OWN}",
}


@pytest.mark.parametrize("kind", KEYWORDS, ids=lambda kind: kind.__name__)
def test_the_keywords_of_a_data_module(kind: Any) -> None:
    known, is_open = parameters(kind)
    assert sorted(known) == sorted(KEYWORDS[kind].split())
    assert not is_open
    needed = [name for name, setting in known.items() if setting.default is inspect.Parameter.empty]
    with pytest.raises(TypeError, match="unexpected keyword argument 'shards'"):
        kind(**dict.fromkeys(needed, "mnist"), shards=2)


def test_all_options_are_recorded_whether_given_or_not(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    pd.DataFrame({"y": np.arange(40) % 2, "a": rng.normal(size=40)}).to_csv(tmp_path / "t.csv", index=False)
    data = TableDataModule(tmp_path / "t.csv", "y", partition="iid", n_clients=2, unseen=["1"])
    said = data.hparams["data"]
    assert said.keys() == {"class", *KEYWORDS[TableDataModule].split()}
    assert (said["n_clients"], said["unseen"], said["fractions"]) == (2, ["1"], [0.6, 0.2, 0.2])
    assert "partition='iid'" in repr(data)
    arrays = FederatedDataModule.from_arrays(np.ones((8, 1)), np.arange(8) % 2, np.arange(8) % 2, alpha=1.0)
    assert arrays.hparams["data"].keys() == {"class", *f"{TASK} {OWN}".split()}
