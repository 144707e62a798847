"""`python -m fedem_lightning.predict`: the rows' own order, and each client's own model."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from safetensors.torch import load_file
from scipy.special import softmax

from fedem_lightning import FedAvg, FedEM, FederatedDataModule, Local, load_clients
from fedem_lightning.data.datamodule import ARRAYS
from fedem_lightning.data.formats import read_npz
from fedem_lightning.personalize import main as personalize
from fedem_lightning.predict import main
from fedem_lightning.serving.model_files import write_clients
from fedem_lightning.serving.predicting import predictions
from fedem_lightning.serving.rows import read_rows
from helpers.federations import make_model, train


def test_probabilities_are_those_worked_out_by_hand(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """For every row of shuffled clients: sum_m pi_m softmax(W_m x + b_m), from the tensors of the file."""
    models, out = tmp_path / "c.safetensors", tmp_path / "p.parquet"
    personalize([str(place / "fedem"), str(place / "unseen.npz"), "--out", str(models)])
    tensors = {name: tensor.double().numpy() for name, tensor in load_file(models).items()}
    names = list(load_clients(models).names)
    data, order = read_npz(place / "unseen.npz", ARRAYS), np.random.default_rng(0).permutation(72)
    x, client = data["x"][order], data["client"][order]
    np.savez(tmp_path / "shuffled.npz", x=x, client=client)
    main([str(models), str(tmp_path / "shuffled.npz"), "--out", str(out)])
    capsys.readouterr()
    main([str(models), str(tmp_path / "shuffled.npz")])  # prints them
    printed = pd.read_csv(io.StringIO(capsys.readouterr().out))
    assert printed["client"].tolist() == client.tolist()
    table = pd.read_parquet(out)
    wanted = np.zeros((72, 3))
    for i in range(72):
        pi = tensors["weights"][names.index(client[i])]
        for m in range(len(pi)):
            logits = tensors[f"components.{m}.linear.weight"] @ x[i] + tensors[f"components.{m}.linear.bias"]
            wanted[i] += pi[m] * softmax(logits)
    assert table.columns.tolist() == ["client", "class", "p_0", "p_1", "p_2"]
    assert table.client.tolist() == client.tolist()
    np.testing.assert_allclose(table[["p_0", "p_1", "p_2"]], wanted, atol=1e-6)
    assert table["class"].tolist() == wanted.argmax(axis=1).tolist()


@pytest.mark.parametrize("kind", [FedEM, Local, FedAvg])
@pytest.mark.parametrize("task", ["classification", "binary", "regression"])
def test_every_client_predicts_as_its_own_model(kind: Any, task: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {"task": task, "n_classes": 2 if task == "binary" else 3}
    if task == "regression":
        options["n_classes"] = None
    x = np.random.default_rng(1).normal(size=(30, 4))
    y = np.arange(30) % 2 if task != "regression" else x[:, 0] * 3
    client = np.arange(30) % 3
    data = FederatedDataModule.from_arrays(x, y, client, **options)
    models = train(make_model(kind, data), data, 3).trained_model.clients_models()
    np.savez(tmp_path / "d.npz", x=x, client=client)
    table = predictions(models, read_rows(tmp_path / "d.npz", models.schema))
    for t in range(3):
        mine = table[client == t].filter(regex="p_|mean").to_numpy()
        np.testing.assert_allclose(mine, models.model(str(t)).predict(x[client == t]), atol=1e-6)
    assert ("mean" in table) == (task == "regression")


def test_classes_have_their_names(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 2))
    words = np.where(x[:, 0] > 0, "well", "ill")
    data = FederatedDataModule.from_arrays(x, words, np.repeat(["north", "south"], 20))
    model = train(make_model(FedEM, data), data, 30)
    write_clients(tmp_path / "c.safetensors", model.trained_model.clients_models())
    pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "client": "south"}).to_csv(tmp_path / "t.csv", index=False)
    main([str(tmp_path / "c.safetensors"), str(tmp_path / "t.csv"), "--out", str(tmp_path / "p.csv")])
    table = pd.read_csv(tmp_path / "p.csv")
    assert table.columns.tolist() == ["client", "class", "p_ill", "p_well"]
    assert (table["class"] == words).mean() > 0.8
    assert ((table.p_well > 0.5) == (table["class"] == "well")).all()
