"""Files from elsewhere that want to run something: each runs nothing, asks no network, and is one line."""

import contextlib
import importlib
import json
import os
import pkgutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf
from safetensors import safe_open
from safetensors.torch import save_file

import fedem_lightning
from fedem_lightning import FedEM, Linear, UserError, load, load_clients
from fedem_lightning.module.checkpoints import made_from, read_checkpoint, recipe_of
from fedem_lightning.predict import main as predict
from fedem_lightning.serving.model_files import read_clients, write_clients
from fedem_lightning.settings.check import Checked
from fedem_lightning.settings.configs import read_yaml, resolved
from fedem_lightning.settings.recipes import RECORDED_FUNCTIONS, recipe
from fedem_lightning.settings.remaking import find, make
from helpers.commands import composed
from helpers.conformance import ROWS
from helpers.federations import make_data, make_model, train
from helpers.runs import make_run
from helpers.serving import refused

CANARY = """
import subprocess
from os import system
from pathlib import Path

from torch import nn

Path("imported").mkdir()


class Net(nn.Linear):
    def __init__(self, size=4):
        super().__init__(size, 3)


def make_net(size=4):
    return Net(size)
"""
RUN = {"path": "ran", "command": "mkdir ran", "args": ["mkdir ran"]}
TIMM = {"_target_": "timm.models._factory.create_model", "_partial_": True, "num_classes": 0}
PRETRAINED = {"_target_": "fedem_lightning.Pretrained", "n_outputs": 3}
DPT = {"model_type": "dpt", "backbone": "facebook/dinov2-small", "is_hybrid": False}
ENCODER = {"_target_": "fedem_lightning.models.backbones.pretrained.hugging_face"}
NETWORKS: dict[str, Any] = {
    "os.system": {"_target_": "os.system", **RUN},
    "a partial": {"_target_": "subprocess.run", "_partial_": True, **RUN},
    "through our module": {"_target_": "fedem_lightning.run.results.os.system", **RUN},
    "a room's import": {"_target_": "fedem_lightning.models.client_store.torch.load", **RUN},
    "a room's function": {"_target_": "fedem_lightning.models.parts.split_body_head", "network": 3},
    "a method": {"_target_": "fedem_lightning.FedAvg.load_from_checkpoint", **RUN},
    "our maker": {"_target_": "fedem_lightning.module.checkpoints.make", "made_of": RUN, "trusted": ["os"]},
    "torch's": {"_target_": "torch.hub.load", **RUN},
    "torch.nn's function": {"_target_": "torch.nn.functional.relu", **RUN},
    "a class without trust": {"_target_": "canary.Net"},
    "an algorithm": {"_target_": "fedem_lightning.FedAvg", "backbone": None, "n_clients": 3},
    "an optimiser": {"_target_": "torch.optim.SGD", "lr": 0.1},
    "a task": {"_target_": "fedem_lightning.data.tasks.kinds.Classification", "n_classes": 3},
    "an argument": {"_target_": "fedem_lightning.Linear", "in_shape": {"_target_": "os.system", **RUN}, "n_outputs": 3},
    "no text": {"_target_": ["os", "system"], **RUN},
    "a hub's encoder": {"_target_": "fedem_lightning.Transformer", "n_outputs": 3, "path": "someone/encoder"},
    "a hub's encoder, by its own class": {**PRETRAINED, "body": {"_target_": "transformers.AutoModel.from_pretrained"}},
    "a hub's part": {**PRETRAINED, "body": {**ENCODER, "config": DPT}},
    "a hub's code": {**ENCODER, "config": {"model_type": "x", "auto_map": {"AutoModel": "a/b--m.N"}}},
    "a hub's network": {**PRETRAINED, "body": {**TIMM, "model_name": "hf-hub:someone/net"}},
    "a file of timm's": {**PRETRAINED, "body": {**TIMM, "model_name": "x", "checkpoint_path": "/dev/stdin"}},
}
"""What a file names as its network."""
WATCHED = ("os.system", "os.exec", "os.posix_spawn", "os.mkdir", "os.remove", "os.rename", "subprocess.", "socket.")
_seen: list[str] | None = None


def _watch(event: str, arguments: tuple[Any, ...]) -> None:
    if _seen is not None and event.startswith(WATCHED):
        _seen.append(f"{event} {arguments}")


sys.addaudithook(_watch)


@contextlib.contextmanager
def nothing_runs() -> Iterator[None]:
    """Fails if something is started, connected to, made or removed."""
    global _seen
    _seen = []
    try:
        yield
        found = _seen
    finally:
        _seen = None
    assert not found
    assert "canary" not in sys.modules
    assert not {p.name for p in Path().iterdir()} & {"ran", "imported"}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any, Any]:
    """A checkpoint's content, and the tensors and metadata of a file of clients' models."""
    for package in ("transformers", "timm"):  # their imports make folders
        with contextlib.suppress(ImportError):
            importlib.import_module(package)
    data, folder = make_data(), tmp_path_factory.mktemp("files")
    train(make_model(FedEM, data, n_components=2), data, 1).trainer.save_checkpoint(folder / "a.ckpt")
    write_clients(folder / "a.safetensors", load_clients(folder / "a.ckpt"))
    with safe_open(folder / "a.safetensors", framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        return torch.load(folder / "a.ckpt", weights_only=True), tensors, file.metadata()


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "canary.py").write_text(CANARY)
    (tmp_path / "rows.csv").write_text("client,a,b,c,d\n0,1,2,3,4\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    yield
    sys.modules.pop("canary", None)


@pytest.mark.parametrize("name", NETWORKS)
def test_a_hostile_recipe_is_one_line(
    name: str, files: tuple[Any, Any, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """As the network, the algorithm, and another part of a checkpoint; as the network and the task of a file."""
    hostile, (content, tensors, metadata) = NETWORKS[name], files
    schema = json.loads(metadata["schema"])
    changed: dict[str, Any] = {
        "a.ckpt": content | {"recipe": content["recipe"] | {"backbone": hostile}},
        "b.ckpt": content | {"recipe": content["recipe"] | {"faults": hostile}},
        "c.ckpt": content | {"recipe": content["recipe"] | hostile},
        "d.safetensors": metadata | {"network": json.dumps(hostile)},
        "e.safetensors": metadata | {"schema": json.dumps(schema | {"task": hostile})},
        "f.safetensors": metadata | {"schema": json.dumps(schema | {"augmentation": hostile})},
    }
    for file, written in changed.items():
        if name in ("an algorithm", "a task") and file[0] in "ce":  # it is one there
            continue
        if file.endswith(".ckpt"):
            torch.save(written, file)
        else:
            save_file(tensors, file, written)
        with nothing_runs():
            line = refused(predict, capsys, file, "rows.csv", "--out", "p.csv")
        assert not Path("p.csv").exists()
        assert len(line) < 600


def test_pickle_in_a_checkpoint_is_not_loaded(files: tuple[Any, Any, Any], capsys: pytest.CaptureFixture[str]) -> None:
    torch.save(files[0] | {"diagnostics": Hostile()}, "a.ckpt")
    with nothing_runs():
        line = refused(predict, capsys, "a.ckpt", "rows.csv", "--out", "p.csv")
    assert "is no intact checkpoint (UnpicklingError)" in line


class Hostile:
    def __reduce__(self) -> Any:
        return os.mkdir, ("ran",)


def test_pretrained_weights_are_not_downloaded() -> None:
    """They are in the file; also where the recipe does not say so, and the default is to download."""
    pytest.importorskip("timm")
    for made_of in (
        {"_target_": "fedem_lightning.ResNet18", "n_outputs": 3, "pretrained": True},
        {**PRETRAINED, "body": {**TIMM, "model_name": "resnet10t", "pretrained": True}},
    ):
        with nothing_runs():
            assert isinstance(make(made_of, key="backbone"), torch.nn.Module)


def test_a_run_s_configuration_is_never_built(
    files: tuple[Any, Any, Any], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command takes the model from the checkpoint alone."""
    monkeypatch.setenv("S", "hf-12345")
    config = {"dataset._target_": "os.system", "dataset.command": "mkdir ran", "a": "${oc.env:S}"}
    run = make_run(Path("run"), config=config)
    (run / "checkpoints").mkdir()
    torch.save(files[0], run / "checkpoints" / "last.ckpt")
    with nothing_runs():
        assert load(run).n_clients == 4
    assert "hf-12345" not in str(resolved(read_yaml(run / ".hydra" / "config.yaml")))
    assert "hf-12345" not in "".join(capsys.readouterr())


@pytest.mark.filterwarnings("ignore")
def test_of_everything_in_the_package_a_file_finds_parts_of_models_alone() -> None:
    paths, found = set(), {}
    for package in (fedem_lightning, torch.optim):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            with contextlib.suppress(ImportError):  # an extra that is not installed
                if not module.name.endswith("__main__"):
                    names = vars(importlib.import_module(module.name))
                    paths |= {f"{module.name}.{name}" for name, value in names.items() if callable(value)}
    for path in paths:
        with contextlib.suppress(UserError):
            found[path] = find(path)
    assert len(paths) > 2000
    assert len(found) > 60
    for path, target in found.items():
        ours: Any = isinstance(target, type) and issubclass(target, (Checked, torch.optim.Optimizer, torch.nn.Module))
        assert ours or target in RECORDED_FUNCTIONS, path
        reads = target.__module__.startswith(("fedem_lightning.data", "fedem_lightning.run"))
        task = target.__module__.startswith("fedem_lightning.data.tasks.")
        assert not reads or task, path
        ours = not isinstance(target, type) or not target.__module__.startswith("fedem")
        assert ours or issubclass(target, Checked), path  # type: ignore[arg-type]


def test_trust_is_for_what_a_package_defines() -> None:
    """Classes defined in it, and functions of a module that is named itself; never what it has only imported."""
    made = make([{"_target_": "canary.Net", "size": 2}, {"_target_": "canary.make_net", "size": 5}], ["canary"])
    assert [net.in_features for net in made] == [2, 5]
    for path in ("canary.system", "canary.subprocess.run", "canary.nn.Linear", "canary.Path"):
        with pytest.raises(UserError, match=r"canary\S* defines|cannot import|--trust"):
            make({"_target_": path, **RUN}, ["canary"])
    with pytest.raises(UserError, match=r"that torch\.hub defines"):
        find("torch.hub.load", ["torch"])
    assert not Path("ran").exists()


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.kind.__name__)
def test_every_method_is_made_again_from_its_recipe(row: Any) -> None:
    made_of = recipe_of(row.model(row.data()))
    assert recipe_of(made_from(made_of, None, (), {})) == made_of
    assert recipe(make(recipe(Linear((3,), 2)))) == recipe(Linear((3,), 2))


FORMS = (
    *("a ${oc.env:S} b", "${oc.env:${zz.name}}", "${${zz.oc}:S}", "${oc.decode:${oc.env:S}}"),
    *("${by_fidelity:${oc.env:S},${oc.env:S}}", "${oc.select:no,${oc.env:S}}", "${zz.twice}", "${zz}", "${made.up:S}"),
)


@pytest.mark.parametrize("form", FORMS)
def test_no_configuration_asks_the_environment(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("S", "hf-12345")
    keys = {"name": "S", "oc": "oc.env", "direct": "${oc.env:S}", "twice": "${zz.direct}"}
    Path("config.yaml").write_text(json.dumps({"seed": 0, "fidelity": "paper", "a": {"b": [form]}, "zz": keys}))
    found = resolved(read_yaml(Path("config.yaml")))
    assert "hf-12345" not in str(found)
    assert found["zz"]["direct"] == "${oc.env:S}"


@pytest.mark.parametrize("overrides", [[], ["+experiment=digits"], ["algorithm=clustered", "fidelity=reference"]])
def test_values_are_those_of_the_run(overrides: list[str]) -> None:
    config = composed(*overrides, "data_dir=/somewhere", "run_dir=run")
    tree: Any = OmegaConf.to_container(config)
    assert resolved(tree) == OmegaConf.to_container(config, resolve=True)


@pytest.mark.parametrize("text", ["[1, 2]", "\0", "a: !!python/object/apply:os.mkdir ['ran']", None])
def test_a_broken_configuration_is_one_line(text: str | None) -> None:
    path = Path("config.yaml")
    if text is None:
        os.mkfifo(path)
    else:
        path.write_text(text)
    with nothing_runs(), pytest.raises(UserError, match=r"^broken: \.hydra/config\.yaml "):
        read_yaml(path)


def test_no_reader_waits_for_a_pipe() -> None:
    os.mkfifo("a.ckpt")
    with pytest.raises(UserError, match="is no intact checkpoint"):
        read_checkpoint(Path("a.ckpt"))
    with pytest.raises(UserError, match="no intact"):
        read_clients(Path("a.ckpt"))
