"""A network of the user's own, by `_target_`: what becomes of its run, in a folder of the user's own."""

import functools
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

from fedem_lightning import FedAvg, load, save_run
from fedem_lightning.evaluate import main as evaluate
from fedem_lightning.export import main as export
from fedem_lightning.personalize import main as personalize
from fedem_lightning.predict import main as predict
from helpers import serving
from helpers.commands import call
from helpers.federations import make_data, make_trainer
from helpers.runs import leave_undrawn

NETWORK = """
from torch import nn


class Net(nn.Module):
    def __init__(self, in_shape, n_outputs, hidden, activation):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(in_shape[0], hidden), activation, nn.Linear(hidden, n_outputs))

    def forward(self, x):
        return self.layers(x)
"""
BACKBONE = """
_target_: my_network.Net
in_shape: null
n_outputs: null
hidden: 5
activation:
  _target_: torch.nn.Tanh
"""
RUN = [
    *("--config-dir", "conf", "backbone=mine", "algorithm=fedem", "dataset=npz", "dataset.path=all.npz"),
    *("dataset.unseen_fraction=0.25", "trainer.max_epochs=2", "trainer.check_val_every_n_epoch=1"),
    *("trainer.accelerator=cpu", "run_dir=run"),
]
TRUST = ["--trust", "my_network"]
COMMANDS: dict[str, tuple[Callable[[list[str]], None], list[str]]] = {
    "evaluate": (evaluate, ["run", "seen.npz"]),
    "predict": (predict, ["run", "seen.npz", "--out", "predictions.csv"]),
    "personalize": (personalize, ["run", "unseen.npz", "--out", "new.safetensors"]),
    "onnx": (export, ["run", "--all", "--format", "onnx", "--out", "onnx"]),
    "torch": (export, ["run", "--client", "clinic 0", "--format", "torch", "--out", "one.pt2"]),
    "safetensors": (export, ["run", "--all", "--format", "safetensors", "--out", "all.safetensors"]),
}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The user's folder, with a finished run."""
    folder, full = tmp_path_factory.mktemp("project"), serving.arrays()
    (folder / "conf" / "backbone").mkdir(parents=True)
    (folder / "conf" / "backbone" / "mine.yaml").write_text(BACKBONE)
    (folder / "my_network.py").write_text(NETWORK)
    np.savez(folder / "all.npz", **full)  # type: ignore[arg-type]
    with pytest.MonkeyPatch.context() as patch:
        leave_undrawn(patch)
        patch.syspath_prepend(folder)
        assert call(folder, patch, *RUN) == 0
        schema = load(folder / "run", trust="my_network").schema
    assert schema is not None
    for file, wanted in (("seen", True), ("unseen", False)):
        names = [schema.name(t) for t in range(schema.n_clients) if bool(schema.seen[t]) == wanted]
        np.savez(folder / f"{file}.npz", **serving.of_clients(full, names))  # type: ignore[arg-type]
    return folder


@pytest.fixture
def here(project: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder, from which nothing has been imported yet."""
    sys.modules.pop("my_network", None)
    monkeypatch.syspath_prepend(project)
    monkeypatch.chdir(project)
    yield project
    sys.modules.pop("my_network", None)


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (n == "onnx")) for n in COMMANDS])
def test_a_command_imports_it_only_if_it_is_trusted(name: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A run's folder may come from somebody else, and to import a module is to run its code."""
    main, arguments = COMMANDS[name]
    line = serving.refused(main, capsys, *arguments)
    assert line.startswith("backbone: the file wants to call my_network.Net, ")
    assert "--trust my_network" in line
    assert "my_network" not in sys.modules
    main([*arguments, *TRUST])


@pytest.mark.parametrize(("way", "n_classes"), [("class", 3), ("partial", 2)])
def test_a_network_that_python_made_from_a_class_is_made_again(
    way: str, n_classes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run from Python can be exported by the command if the method was given the class, not a network."""
    (tmp_path / f"of_{way}.py").write_text(
        "from torch import nn\n\n\nclass Net(nn.Linear):\n"
        "    def __init__(self, inputs=4, outputs=3):\n        super().__init__(inputs, outputs)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    leave_undrawn(monkeypatch)
    net, data = import_module(f"of_{way}").Net, make_data(n_classes=n_classes)
    model = FedAvg(net if way == "class" else functools.partial(net, outputs=n_classes), data.n_clients)
    trainer, run = make_trainer(1), tmp_path / "run"
    trainer.fit(model, data)
    trainer.test(model, data, verbose=False)
    save_run(model, data, run)
    export([str(run), "--all", "--format", "safetensors", "--out", str(tmp_path / "out"), "--trust", f"of_{way}"])
    assert load(run, trust=f"of_{way}").client("0").predict(np.zeros((1, 4))).shape == (1, n_classes)
