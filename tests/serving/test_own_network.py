"""A network of the user's own, by `_target_`: what becomes of its run, in a folder of the user's own."""

import functools
import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

from fedem_lightning import FedAvg, load, save_run
from fedem_lightning.export import main as export
from fedem_lightning.serving.commands import main_of
from helpers import serving
from helpers.commands import call
from helpers.federations import make_data, make_trainer

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
COMMANDS = {
    "evaluate": ["run", "seen.npz"],
    "personalize": ["run", "unseen.npz", "--out", "new.safetensors"],
    "export": ["run", "--all", "--format", "safetensors", "--out", "exported"],
}


def test_commands_import_it_only_if_it_is_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run's folder may come from somebody else, and to import a module is to run its code."""
    full = serving.arrays()
    (tmp_path / "conf" / "backbone").mkdir(parents=True)
    (tmp_path / "conf" / "backbone" / "mine.yaml").write_text(BACKBONE)
    (tmp_path / "my_network.py").write_text(NETWORK)
    np.savez(tmp_path / "all.npz", **full)  # type: ignore[arg-type]
    monkeypatch.syspath_prepend(tmp_path)
    assert call(tmp_path, monkeypatch, *RUN) == 0
    schema = load(tmp_path / "run", trust="my_network").schema
    assert schema is not None
    for file, wanted in (("seen", True), ("unseen", False)):
        names = [schema.name(t) for t in range(schema.n_clients) if bool(schema.seen[t]) == wanted]
        np.savez(tmp_path / f"{file}.npz", **serving.of_clients(full, names))  # type: ignore[arg-type]
    monkeypatch.chdir(tmp_path)
    for name, arguments in COMMANDS.items():
        sys.modules.pop("my_network")
        main = main_of(name)
        line = serving.refused(main, capsys, *arguments)
        assert line.startswith("backbone: the file wants to call my_network.Net, ")
        assert "--trust my_network" in line
        assert "my_network" not in sys.modules
        main([*arguments, "--trust", "my_network"])
    sys.modules.pop("my_network")


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
    net, data = import_module(f"of_{way}").Net, make_data(n_classes=n_classes)
    model = FedAvg(net if way == "class" else functools.partial(net, outputs=n_classes), data.n_clients)
    trainer, run = make_trainer(1), tmp_path / "run"
    trainer.fit(model, data)
    trainer.test(model, data, verbose=False)
    save_run(model, data, run)
    export([str(run), "--all", "--format", "safetensors", "--out", str(tmp_path / "out"), "--trust", f"of_{way}"])
    assert load(run, trust=f"of_{way}").client("0").predict(np.zeros((1, 4))).shape == (1, n_classes)
