"""`python -m fedem_lightning.personalize`: the models are those of the run's own unseen clients."""

import contextlib
import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from fedem_lightning import (
    MLP,
    ClientSGD,
    CropFlip,
    FedAvg,
    FederatedDataModule,
    FedPer,
    Finetune,
    load,
    load_clients,
)
from fedem_lightning.evaluate.__main__ import main as evaluate
from fedem_lightning.personalize import main
from fedem_lightning.run.callbacks import RoundCheckpoint
from helpers.federations import make_trainer


def of_results(path: Path) -> Any:
    return json.loads((path / "results.json").read_text())["unseen"]["test"]


@pytest.mark.parametrize("algorithm", ["fedem", "fedavg", "fedavg_plus", "local", "clustered"])
@pytest.mark.parametrize("kind", ["npz", "csv"])
def test_unseen_clients_have_the_scores_of_their_run(
    algorithm: str, kind: str, place: Path, run_of: Callable[[str], Path], tmp_path: Path
) -> None:
    """To the last bit, whether the rows come from an .npz or from a table."""
    run, data, out = run_of(algorithm), place / f"unseen.{kind}", tmp_path / "new" / "clients.safetensors"
    main([str(run), str(data), "--out", str(out)])
    evaluate([str(out), str(data), "--out", str(tmp_path / "scores")])
    scores = json.loads((tmp_path / "scores" / "evaluation.json").read_text())["scores"]
    assert scores == of_results(run)


def test_rows_without_a_split_are_all_for_training(place: Path, tmp_path: Path) -> None:
    """And one client's rows need no column."""
    table = pd.read_csv(place / "unseen.csv")
    first = table[table.client == table.client[0]].drop(columns=["client", "split"])
    first.to_parquet(tmp_path / "one.parquet")
    main(
        [str(place / "fedem"), str(tmp_path / "one.parquet"), "--client", "x", "--out", str(tmp_path / "c.safetensors")]
    )
    model = load(place / "fedem")
    mine = model.personalize(first.drop(columns="y").to_numpy(), first.y.to_numpy(), "x")
    assert torch.equal(load_clients(tmp_path / "c.safetensors").personal.mixture[0], mine.weights)


@pytest.mark.parametrize(("kind", "options"), [(FedPer, {}), (FedAvg, {"adaptation": Finetune(epochs=4)})])
def test_clients_train_with_the_augmentation_of_their_run(kind: Any, options: Any, tmp_path: Path) -> None:
    """In the process that trained and from its file; a transform that no file can name is named, and left out."""
    x, y = np.random.default_rng(0).integers(256, size=(60, 6, 6)).astype(np.uint8), np.arange(60) % 3
    for augmentation in (CropFlip(2), lambda x, keys: x.flip(-1), None):
        options |= {"batch_size": 4, "local_epochs": 3, "client_optimizer": ClientSGD(lr=0.5)}
        data = FederatedDataModule.from_arrays(x, y, np.arange(60) // 15, unseen=["3"], fractions=(0.6, 0, 0.4))
        data.federation.augmentation = augmentation
        model = kind(functools.partial(MLP, data.in_shape, 3, [5]), 4, **options)
        saving = {"callbacks": [RoundCheckpoint(2, dirpath=tmp_path)], "enable_checkpointing": True}
        trainer = make_trainer(2, **saving)
        trainer.fit(model, data)
        trainer.test(model, data, verbose=False)
        train, test = (data.federation.block(torch.tensor([3]), split).index.numpy() for split in ("train", "test"))
        loaded = kind.load_from_checkpoint(tmp_path / "round-000002.ckpt")
        for one in (model, loaded):
            lost = one is loaded and not isinstance(augmentation, CropFlip | None)
            with pytest.warns(UserWarning, match="train without .*lambda") if lost else contextlib.nullcontext():
                p = one.personalize(x[train], y[train], "3").predict(x[test])
            loss = -np.log(p[np.arange(len(test)), y[test]]).mean()
            same = loss == pytest.approx(float(model.clients.set_index("id").test_loss["3"]), rel=1e-6)
            assert same == (not lost)
