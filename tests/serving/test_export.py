"""`python -m fedem_lightning.export`: what it writes gives the library's predictions without the library."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import nn

from fedem_lightning import (
    MLP,
    CharLSTM,
    FedEM,
    FederatedDataModule,
    Linear,
    Local,
    TextDataModule,
    UserError,
    load_clients,
)
from fedem_lightning.data.schema import Schema
from fedem_lightning.data.tasks import Classification
from fedem_lightning.export import main
from fedem_lightning.models.personal_models import ClientModels, SharedModels
from fedem_lightning.serving import exporting
from fedem_lightning.serving.onnx_files import measured, random_inputs
from helpers.federations import make_trainer
from helpers.folders import save_text
from helpers.networks import SmallCNN

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")  # of torch and onnx

PLAY = {
    "HAMLET": "To be, or not to be: that is the question. Whether it is nobler in the mind to suffer.",
    "GHOST": "I am thy father's spirit, doomed for a certain term to walk the night. List, list, O list!",
}


class Case(NamedTuple):
    """A method with a network on data, and a client whose model is exported."""

    kind: Any
    network: Any
    options: dict[str, Any] = {}
    data: dict[str, Any] = {}
    client: str = "b/ö"


CASES = {
    "linear": Case(FedEM, Linear, {"n_components": 3}),
    "binary": Case(FedEM, Linear, {"n_components": 2}, {"n_classes": 2, "task": "binary"}),
    "own": Case(Local, Linear),
    "regression": Case(FedEM, MLP, {"n_components": 2}, {"task": "regression"}),
    "cnn": Case(FedEM, SmallCNN, {"n_components": 2}, {"images": True}),
    "text": Case(FedEM, CharLSTM, {"n_components": 2}, {"text": True}, "GHOST"),
}


def federation(folder: Path, n_classes: int = 3, images: bool = False, text: bool = False, **options: Any) -> Any:
    """Three clients with odd names; features, small colour images, a play, or real targets."""
    rng, client = np.random.default_rng(0), np.arange(36) % 3
    if text:
        return TextDataModule(save_text(folder / "text.npz", PLAY), window=6)
    x = rng.integers(256, size=(36, 8, 8, 3)).astype(np.uint8) if images else rng.normal(size=(36, 4))
    names = np.array(["a", "b/ö", "B?ö"])
    if options.get("task") == "regression":
        return FederatedDataModule.from_arrays(x, 500 + 1000 * x[:, :2], client, names=names, **options)
    return FederatedDataModule.from_arrays(x, rng.integers(n_classes, size=36), client, names=names, **options)


def checkpoint(folder: Path, case: Case, **options: Any) -> Path:
    """A checkpoint of a model after one round."""
    folder.mkdir(exist_ok=True, parents=True)
    data = federation(folder, **case.data)
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"hidden": 8} if case.network is CharLSTM else {}
    network = case.network(in_shape=data.in_shape, n_outputs=data.n_outputs, **sizes)
    model = case.kind(network, n_clients=data.n_clients, batch_size=4, **case.options, **options)
    trainer = make_trainer(1, precision="32-true")
    trainer.fit(model, data)
    if "n_components" in case.options:
        model.pi[:] = torch.tensor([0.7, 0.3, 0.0][: case.options["n_components"]])
        model.pi[1] = model.pi[1].flip(0)
    trainer.save_checkpoint(folder / "model.ckpt")
    return folder / "model.ckpt"


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A checkpoint of each case."""
    return {name: checkpoint(tmp_path_factory.mktemp(name), case) for name, case in CASES.items()}


def export(*arguments: Any) -> None:
    """Calls the command in this process."""
    main([*map(str, arguments)])


WITHOUT = "import sys\n\nsys.modules.update(dict.fromkeys({absent}))  # none of them can be imported\n"
LIBRARY = ("fedem_lightning", "pytorch_lightning", "lightning", "hydra")
READ = """
import glob
import numpy as np
import onnxruntime
for path in glob.glob("*/*.onnx"):
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (x,), (y,) = session.get_inputs(), session.get_outputs()
    given = np.load(path + ".x.npz")
    found = {n: session.run(None, {"x": given[n]})[0] for n in given}
    np.savez(path + ".y.npz", shape=str([x.name, *x.shape, y.name]), **found)
"""


def run_without(folder: Path, code: str, absent: tuple[str, ...]) -> None:
    """Runs code in a fresh process in which some packages cannot be imported."""
    script = folder / "script.py"
    script.write_text(WITHOUT.format(absent=absent) + code)
    variables = {**os.environ, "PYTHONPATH": "", "OMP_NUM_THREADS": "1"}
    ended = subprocess.run([sys.executable, "script.py"], cwd=folder, env=variables, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr


@pytest.fixture(scope="module")
def read_elsewhere(saved: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with all cases, and what a process without the library made of them."""
    folder = tmp_path_factory.mktemp("elsewhere")
    for name, case in CASES.items():
        export(saved[name], "--client", case.client, "--format", "onnx", "--out", folder / name, "--trust", "helpers")
        schema = load_clients(saved[name], "helpers").schema
        given: Any = {str(n): random_inputs(schema, n).numpy() for n in (1, 2, 9)}
        np.savez(f"{next((folder / name).glob('*.onnx'))}.x.npz", **given)
    run_without(folder, READ, (*LIBRARY, "torch", "onnx"))
    return folder


@pytest.mark.parametrize("name", CASES)
def test_a_file_predicts_as_the_library_without_it(name: str, read_elsewhere: Path, saved: dict[str, Path]) -> None:
    (path,) = (read_elsewhere / name).glob("*.onnx")
    model = load_clients(saved[name], "helpers").model(CASES[name].client)
    with np.load(f"{path}.x.npz") as given, np.load(f"{path}.y.npz") as found:
        x, y = dict(given), dict(found)
    assert sorted(x) == ["1", "2", "9"]
    for n in x:
        expected = model(torch.from_numpy(x[n])).numpy()
        assert y[n].dtype == np.float32
        np.testing.assert_allclose(y[n], expected, rtol=0, atol=1e-5 * max(1, np.abs(expected).max()))
        if name != "regression":
            np.testing.assert_allclose(y[n].sum(axis=-1), 1, atol=1e-5)
    answer = "mean" if name == "regression" else "probabilities"
    assert str(y["shape"]) == str(["x", "batch", *model.schema.in_shape, answer])


def snippet() -> str:
    page = (ROOT / "docs" / "serving.md").read_text()
    return next(code for code in re.findall(r"```python\n(.*?)```", page, re.S) if "safe_open" in code)


@pytest.mark.skipif(not (ROOT / "docs").is_dir(), reason="docs/ is only in a checkout")
def test_the_documented_lines_predict_as_the_library(saved: dict[str, Path], tmp_path: Path) -> None:
    """Of one model after another, in the same process."""
    x, code = torch.randn(5, 4), "import numpy, os\n"
    np.save(tmp_path / "x.npy", x.numpy())
    assert len(snippet().splitlines()) <= 17
    for name in ("linear", "binary"):
        export(saved[name], "--all", "--format", "safetensors", "--out", tmp_path / name / "exported")
        use = f'numpy.save("y.npy", predict({CASES[name].client!r}, torch.from_numpy(numpy.load("../x.npy"))))\n'
        code += f'os.chdir("{name}")\n{snippet()}\n{use}os.chdir("..")\n'
    run_without(tmp_path, code, LIBRARY)
    for name in ("linear", "binary"):
        expected = load_clients(saved[name]).model(CASES[name].client)(x)
        np.testing.assert_allclose(np.load(tmp_path / name / "y.npy"), expected, atol=1e-5)


def test_all_clients_have_a_file_and_an_index(
    saved: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    export(saved["own"], "--all", "--format", "onnx", "--out", tmp_path / "out")
    index = json.loads((tmp_path / "out" / "index.json").read_text())
    assert index == {"format": "onnx", "clients": {"a": "a.onnx", "b/ö": "b%2F%C3%B6.onnx", "B?ö": "B%3F%C3%B6.onnx"}}
    models = load_clients(saved["own"])
    for client, file in index["clients"].items():
        assert measured(tmp_path / "out" / file, models.model(client)) < 1e-5
    said = capsys.readouterr().out
    size = sum(path.stat().st_size for path in (tmp_path / "out").glob("*.onnx"))
    assert said.startswith(f"{tmp_path / 'out'}: 3 clients, ONNX, opset 18, {size:,} bytes\n")
    assert re.search(r"difference from the library: \d\.\de[+-]\d\d at most", said)


def test_a_safetensors_file_of_one_client_says_nothing_of_the_others(saved: dict[str, Path], tmp_path: Path) -> None:
    export(saved["own"], "--client", "b/ö", "--format", "safetensors", "--out", tmp_path)
    (path,) = tmp_path.glob("*.safetensors")
    one, every, x = load_clients(path), load_clients(saved["own"]), torch.randn(3, 4)
    assert one.names == ("b/ö",)
    assert one.schema.names == ("b/ö",)
    assert one.schema.n_train.tolist() == every.schema.n_train[1:2].tolist()
    torch.testing.assert_close(one.model("b/ö")(x), every.model("b/ö")(x))
    assert b"B?" not in path.read_bytes()
    export(path, "--client", "b/ö", "--format", "onnx", "--out", tmp_path / "again")
    assert list((tmp_path / "again").glob("*.onnx"))


def test_preprocessing_says_how_inputs_are_made(saved: dict[str, Path], tmp_path: Path) -> None:
    for name in ("cnn", "text"):
        arguments = ("--client", CASES[name].client, "--format", "safetensors", "--trust", "helpers")
        export(saved[name], *arguments, "--out", tmp_path / name)
    told = {name: json.loads((tmp_path / name / "preprocessing.json").read_text()) for name in ("cnn", "text")}
    assert (told["cnn"]["inputs"], told["cnn"]["output"]) == (["x"], "probabilities")
    assert (told["cnn"]["raw_shape"], told["cnn"]["in_shape"]) == ([8, 8, 3], [3, 8, 8])
    assert told["cnn"]["pixels"] == {"mean": None, "std": None, "invert": False}
    assert told["text"]["vocabulary"] == load_clients(saved["text"]).schema.vocabulary


# Refusals


class Stubborn(Linear):
    """Its forward depends on values, which no graph can hold."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) if float(x.sum()) > 0 else super().forward(-x)


def test_a_network_that_cannot_be_exported_is_one_line(tmp_path: Path) -> None:
    schema = Schema(Classification(3), (4,), (4,), torch.ones(1, dtype=torch.bool), torch.ones(1, dtype=torch.int64))
    models = ClientModels(("0",), SharedModels(nn.ModuleList([Stubborn((4,), 3)]), torch.ones(1, 1)), schema)
    with pytest.raises(UserError, match=r"cannot export the network of client 0 .*; --format safetensors"):
        exporting.write_graphs(models, tmp_path)
