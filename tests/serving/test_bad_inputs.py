"""What the commands on trained models read: broken files of clients' models, and broken DATA, are one line."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from fedem_lightning import load
from fedem_lightning.predict import main as predict
from fedem_lightning.serving.model_files import write_clients


@pytest.fixture(scope="module")
def parts(place: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """The tensors and the metadata of an intact file."""
    from safetensors import safe_open

    path = tmp_path_factory.mktemp("clients") / "a.safetensors"
    write_clients(path, load(place / "fedem").trained_model.clients_models())
    with safe_open(path, framework="pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, file.metadata()  # noqa: SIM118


CHANGES: dict[str, dict[str, Any]] = {
    "another format": {"format": "pt"},
    "no names": {"clients": None},
    "half a JSON": {"schema": '{"task":'},
    "a number for the network": {"network": "5"},
    "a network without its size": {"network": '{"_target_": "fedem_lightning.backbones.simple.Linear"}'},
}


@pytest.mark.parametrize("name", CHANGES)
def test_broken_files_of_clients_models(
    name: str,
    parts: tuple[dict[str, torch.Tensor], dict[str, str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    tensors, metadata = parts
    changed = {key: value for key, value in {**metadata, **CHANGES[name]}.items() if value is not None}
    save_file(tensors, tmp_path / "a.safetensors", changed)
    np.savez(tmp_path / "rows.npz", x=np.zeros((2, 4)))
    with pytest.raises(SystemExit) as stopped:
        predict(["a.safetensors", "rows.npz", "--client", "clinic 1", "--out", "p.csv"])
    assert stopped.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith(("error: a.safetensors: ", "error: backbone: the file's"))
    assert error.count("\n") == 1
    assert len(error) < 500
    assert not (tmp_path / "p.csv").exists()
