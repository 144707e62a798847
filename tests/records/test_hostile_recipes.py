"""Files from elsewhere that want to run something: checkpoints, files of clients' models, configurations of runs."""

import collections
import contextlib
import functools
import importlib
import inspect
import json
import pkgutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

import fedem_lightning
from fedem_lightning import FedEM, Linear, UserError, load
from fedem_lightning.algorithms.checkpoints import made_from
from fedem_lightning.records.recipes import recipe
from fedem_lightning.records.remaking import ROOMS, find, make
from fedem_lightning.serving.model_files import read_clients, write_clients
from fedem_lightning.serving.retest import retest
from fedem_lightning.settings.check import Checked
from helpers.federations import make_data, make_model, train

CANARY = """
import subprocess
from os import mkdir, system
from pathlib import Path

from torch import nn

Path("imported").mkdir()


class Net(nn.Linear):
    def __init__(self, size=4):
        super().__init__(size, 3)


def make_net(size=4):
    return Net(size)
"""
FOREIGN = [
    *("os.system", "os.mkdir", "builtins.eval", "builtins.exec", "subprocess.run", "pickle.loads", "functools.reduce"),
    *("torch.load", "torch.hub.load", "pandas.read_pickle", "numpy.load", "importlib.import_module", "canary.Net"),
    *("canary.make_net", "canary.mkdir", "canary", "", ".", "..", "os", "fedem_lightning", "fedem_lightning.load"),
    *("fedem_lightning.records.remaking.make", "fedem_lightning.algorithms.checkpoints.make"),
    *("fedem_lightning.algorithms.checkpoints.torch.load", "fedem_lightning.models.client_store.torch.load"),
    *("fedem_lightning.FedAvg.load_from_checkpoint", "fedem_lightning.algorithms.fedavg.FedAvg.load_from_checkpoint"),
    *("fedem_lightning.backbones.dense.MLP.__init__", "fedem_lightning.records.files.write_atomically"),
    *("fedem_lightning.__main__.main", "torch.optim.functools.reduce"),
    *("torch.optim.sgd.cast", "torch.optim._functional", "torch.optim.lr_scheduler.LambdaLR", "torch.nn.Linear"),
    *(3, None, ["os.system"], ("os", "system"), {"_target_": "os.system"}, True),
]
COMMAND: Any = {"path": "ran", "command": "mkdir ran", "args": ["mkdir ran"]}
SHAPES: dict[str, Callable[[Any], Any]] = {
    "plain": lambda p: {"_target_": p, **COMMAND},
    "bare": lambda p: {"_target_": p},
    "partial": lambda p: {"_target_": p, "_partial_": True, **COMMAND},
    "positional": lambda p: {"_target_": p, "_args_": ["mkdir ran"]},
    "in a list": lambda p: [{"_target_": p, **COMMAND}],
    "in a tuple": lambda p: ({"_target_": p, **COMMAND},),
    "in a dictionary": lambda p: {"deep": {"deeper": {"_target_": p, **COMMAND}}},
    "ordered": lambda p: collections.OrderedDict({"_target_": p, **COMMAND}),
    "an argument": lambda p: {"_target_": "fedem_lightning.backbones.dense.Linear", "in_shape": {"_target_": p}},
    "an argument in a tuple": lambda p: {
        "_target_": "fedem_lightning.backbones.dense.Linear",
        "in_shape": ({"_target_": p, **COMMAND}, {"_target_": p}),
        "n_outputs": ["mkdir ran", ({"_target_": p},)],
    },
    "through make": lambda p: {
        "_target_": "fedem_lightning.algorithms.checkpoints.make",
        "made_of": ({"_target_": p, **COMMAND},),
        "trusted": ["os", "builtins", "subprocess", "canary"],
    },
    "through pairs": lambda p: {  # plain JSON that once made a recipe of pairs, and then made that
        "_target_": "fedem_lightning.algorithms.checkpoints.make",
        "made_of": {
            "_target_": "fedem_lightning.engine.vmap.tree_map",
            "func": {"_target_": "torch.optim.optimizer.OrderedDict", "_partial_": True},
            "tree": [["_target_", p], ["path", "ran"]],
            "is_leaf": {"_target_": "fedem_lightning.algorithms.checkpoints.make", "_partial_": True},
        },
        "trusted": ["os", "builtins", "canary"],
    },
    "through partials": lambda p: {
        "_target_": "fedem_lightning.records.recipes.remember_call",
        "made": 0,
        "factory": {"_target_": p, "_partial_": True, **COMMAND},
    },
    "an optimiser": lambda p: {"_target_": "torch.optim.SGD", "params": [{"_target_": p}], "lr": 0.1},
}
QUICK = ("plain", "through pairs")
IN_FILES = [pytest.param(shape, marks=[] if shape in QUICK else pytest.mark.slow) for shape in SHAPES]
WATCHED = ("os.system", "os.exec", "os.posix_spawn", "os.mkdir", "os.remove", "os.rename", "subprocess.", "socket.")
_seen: list[str] | None = None


def _watch(event: str, arguments: tuple[Any, ...]) -> None:
    if _seen is not None and event.startswith(WATCHED):
        _seen.append(f"{event} {arguments}")


sys.addaudithook(_watch)


@contextlib.contextmanager
def nothing_runs() -> Iterator[None]:
    """Fails if something is started, connected to, made or removed; only pytest's own folder was there before."""
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
    data, folder = make_data(), tmp_path_factory.mktemp("files")
    train(make_model(FedEM, data, n_components=2), data, 1).trainer.save_checkpoint(folder / "a.ckpt")
    write_clients(folder / "a.safetensors", load(folder / "a.ckpt").trained_model.clients_models())
    with safe_open(folder / "a.safetensors", framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        return torch.load(folder / "a.ckpt", weights_only=True), tensors, file.metadata()


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "canary.py").write_text(CANARY)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    yield
    sys.modules.pop("canary", None)


def importable() -> Iterator[str]:
    """The import paths of everything that can be called in this package and in torch.optim."""
    for package in (fedem_lightning, torch.optim):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if module.name.endswith("__main__"):
                continue
            with contextlib.suppress(ImportError):  # an extra that is not installed
                for name, value in vars(importlib.import_module(module.name)).items():
                    if callable(value):
                        yield f"{module.name}.{name}"
    yield from (f"fedem_lightning.{name}" for name in fedem_lightning.__all__)


@pytest.mark.filterwarnings("ignore")
def test_a_file_finds_nothing_but_the_closed_list() -> None:
    """Of thousands of names; the classes and functions that are found are those of models and data, by identity."""
    paths, found = sorted(set(importable())), {}
    for path in paths:
        with contextlib.suppress(UserError):
            found[path] = find(path, rooms=(*ROOMS, "fedem_lightning.data"))
    assert len(paths) > 3000
    assert len(found) > 200
    for path, target in found.items():
        optimizer = inspect.isclass(target) and issubclass(target, torch.optim.Optimizer)
        own = inspect.isclass(target) and issubclass(target, Checked)
        networks = [f"fedem_lightning.backbones.{name}" for name in ("convolutional", "encoders", "pretrained")]
        assert optimizer or own or target.__module__ in networks, path
        assert optimizer or target.__module__.startswith((*ROOMS, "fedem_lightning.data")), path
    assert not [path for path in found if path.startswith("fedem_lightning.run")]


@pytest.mark.parametrize("shape", SHAPES)
def test_no_recipe_runs_what_it_names(shape: str) -> None:
    with nothing_runs():
        for path in FOREIGN:
            with contextlib.suppress(UserError):
                made = make({"value": SHAPES[shape](path)}, key="backbone")
                assert is_made_of_plain_values(made), path


def is_made_of_plain_values(made: Any) -> bool:
    if isinstance(made, dict | list):
        return all(map(is_made_of_plain_values, made.values() if isinstance(made, dict) else made))
    return made is None or type(made) in (int, float, bool, str)


@pytest.mark.parametrize("shape", IN_FILES)
def test_no_checkpoint_runs_what_it_names(shape: str, files: tuple[Any, Any, Any], tmp_path: Path) -> None:
    """As the algorithm, the network, or another part of the recipe; also where a server sends it to a client."""
    content = files[0]
    with nothing_runs():
        for path in FOREIGN:
            hostile = SHAPES[shape](path)
            whole, saved = hostile if isinstance(hostile, dict) else {"_target_": path}, content["recipe"]
            for changed in (whole, saved | {"backbone": hostile}, saved | {"faults": hostile}):
                torch.save(content | {"recipe": changed}, tmp_path / "a.ckpt")
                with pytest.raises(UserError) as error:
                    load(tmp_path / "a.ckpt")
                assert "\n" not in str(error.value)
                with pytest.raises(UserError):
                    made_from(changed, None, (), {"n_clients": 1}, content["state_dict"])


@pytest.mark.parametrize("shape", IN_FILES)
def test_no_file_of_models_runs_what_it_names(shape: str, files: tuple[Any, Any, Any], tmp_path: Path) -> None:
    _, tensors, metadata = files
    with nothing_runs():
        for path in FOREIGN:
            network = SHAPES[shape](path)
            for changed in (
                {"network": json.dumps(network)},
                {"schema": json.dumps(json.loads(metadata["schema"]) | {"task": network})},
            ):
                save_file(tensors, tmp_path / "a.safetensors", metadata | changed)
                with pytest.raises(UserError):
                    read_clients(tmp_path / "a.safetensors")


@pytest.mark.parametrize("shape", IN_FILES[1:])
def test_no_configuration_runs_what_it_names(shape: str, files: tuple[Any, Any, Any], tmp_path: Path) -> None:
    """`evaluate RUN` makes the run's data set by the same list; of the Trainer it takes plain options."""
    content, run = files[0], tmp_path / "run"
    (run / "checkpoints").mkdir(parents=True)
    (run / ".hydra").mkdir()
    torch.save(content, run / "checkpoints" / "last.ckpt")
    good = {"_target_": "fedem_lightning.SyntheticMixture", "n_clients": 3}
    with nothing_runs():
        for path in FOREIGN:
            hostile = SHAPES[shape](path)
            for config in (
                {"dataset": hostile if isinstance(hostile, dict) else {"_target_": path}},
                {"dataset": good | {"dimension": hostile}},
                {"dataset": good | {"seed": "${oc.env:HOME}"}},
                {"dataset": good, "trainer": {"_target_": path, "precision": hostile}, "algorithm": hostile},
            ):
                (run / ".hydra" / "config.yaml").write_text(json.dumps({"seed": 3} | config))
                with pytest.raises(UserError) as error:
                    retest(run, "test")
                assert Path.home() == Path("/") or str(Path.home()) not in str(error.value)


def test_a_module_of_the_run_s_own_folder_is_not_imported(files: tuple[Any, Any, Any], tmp_path: Path) -> None:
    torch.save(files[0] | {"recipe": {"_target_": "canary.Net"}}, tmp_path / "a.ckpt")
    with nothing_runs(), pytest.raises(UserError, match="add --trust canary"):
        load(tmp_path / "a.ckpt")


def test_trust_is_for_what_a_package_defines() -> None:
    """Classes defined in it, and functions of a module that is named itself; never what it has only imported."""
    trusted = ["canary"]
    made = make([{"_target_": "canary.Net", "size": 2}, {"_target_": "canary.make_net", "size": 5}], trusted)
    assert [net.in_features for net in made] == [2, 5]
    for path in ("canary.mkdir", "canary.system", "canary.subprocess.run", "canary.nn.Linear", "canary.Path"):
        with pytest.raises(UserError, match=r"which canary does not define|cannot import|--trust canary"):
            make({"_target_": path, "path": "ran", "command": "mkdir ran"}, trusted)
    assert find("torch.nn.Tanh", ["torch.nn"]) is torch.nn.Tanh
    with pytest.raises(UserError, match=r"which torch\.hub does not define"):
        find("torch.hub.load", ["torch"])
    assert not Path("ran").exists()


@pytest.mark.parametrize(
    "asked",
    [
        {"n_clients": 10**12},
        {"n_components": 10**9},
        {"backbone": {"_target_": "fedem_lightning.MLP", "in_shape": [4], "n_outputs": 3, "hidden": [10**6, 10**6]}},
        {"backbone": {"_target_": "fedem_lightning.CharLSTM", "n_outputs": 2, "hidden": 1, "n_layers": 10**9}},
        {"backbone": {"_target_": "fedem_lightning.Linear", "in_shape": [10**12], "n_outputs": 10**9}},
    ],
    ids=lambda asked: ",".join(asked),
)
def test_a_model_far_larger_than_its_file_is_refused(asked: dict[str, Any], files: tuple[Any, Any, Any]) -> None:
    content = files[0]
    with pytest.raises(
        UserError, match=r"far larger than the tensors in it|cannot be made|more than this machine's memory"
    ):
        made_from(content["recipe"] | asked, None, (), {}, content["state_dict"])


def test_a_recipe_of_a_user_s_partial_is_made_again() -> None:
    again = make(recipe(functools.partial(torch.optim.SGD, lr=0.5)))
    assert again.func is torch.optim.SGD
    assert recipe(make(recipe(Linear((3,), 2)))) == recipe(Linear((3,), 2))
