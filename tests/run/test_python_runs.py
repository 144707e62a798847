"""`save_run`: a run from Python has the folder that the command line writes."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fedem_lightning import FedAvg, FedEM, FederatedDataModule, Linear, UserError, load, save_run
from fedem_lightning.evaluate.__main__ import main as evaluate
from fedem_lightning.export import main as export
from fedem_lightning.predict import main as predict
from fedem_lightning.report.__main__ import main as report
from helpers import serving
from helpers.federations import make_trainer


def test_it_enters_everything_that_takes_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    full = serving.arrays()
    np.savez(tmp_path / "rows.npz", **full)  # type: ignore[arg-type]
    monkeypatch.chdir(tmp_path)
    for kind in (FedEM, FedAvg):
        data = FederatedDataModule.from_arrays(**full)
        model = kind(Linear(data.in_shape, data.n_outputs), data.n_clients)
        with pytest.raises(UserError, match=r"call trainer.test\(model, data\) first"):
            save_run(model, data, "runs/early")
        trainer = make_trainer(3, "32-true", limit_val_batches=1.0, check_val_every_n_epoch=2)
        trainer.fit(model, data)
        trainer.test(model, data, verbose=False)
        folder = Path("runs") / kind.__name__
        save_run(model, data, folder, dataset="clinics")
    metrics = pd.read_csv(folder / "metrics.csv")
    assert metrics["round"].tolist() == [0, 1, 2, 3]
    assert metrics["val/accuracy"].notna().tolist() == [True, False, True, False]
    with pytest.raises(UserError, match="is not empty"):
        save_run(model, data, folder)
    x = full["x"][:3]
    np.testing.assert_array_equal(load(folder).client("clinic 1").predict(x), model.client("clinic 1").predict(x))
    predict([str(folder), "rows.npz", "--out", "predictions.csv"])
    evaluate([str(folder), "rows.npz"])
    export([str(folder), "--all", "--format", "safetensors"])
    report(["runs"])
    out = capsys.readouterr().out
    assert "FedEM" in out
    assert "FedAvg" in out
    assert "clinics" in out
