"""A trained model: its clients, new clients, files, other methods' checkpoints, and a run's folder."""

import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytorch_lightning as pl
import torch
from torch import nn

import fedem_lightning
from fedem_lightning import (
    EightBit,
    FedAvg,
    FedEM,
    FederatedDataModule,
    Finetune,
    Linear,
    Local,
    MultiKrum,
    Network,
    NoAnswer,
    PrivateMean,
    ShiftedExponentialNetwork,
    TopK,
    load,
    load_clients,
    save_run,
)
from fedem_lightning.tasks import BinaryClassification, Classification, Regression, make_task
from helpers.federations import make_data, make_trainer
from wrong_inputs.python.call import Call
from wrong_inputs.python.parts import CLASSES, T, data, fit, network, rows, saved, trained

Calls = dict[str, tuple[Callable[[Path], Any], str | None]]
NAMES: dict[str, Any] = {
    "unknown": "nobody",
    "None": None,
    "negative": -1,
    "too large": 99,
    "a fraction": 0.5,
    "a list": ["0"],
    "a tensor": torch.tensor(0.0),
    "empty": "",
    "a dict": {},
    "bytes": b"0",
    "a class": str,
}


def calls() -> Iterator[Call]:
    """All of them."""
    every = _clients() | _personalized() | _saved_runs() | _together() | _tasks() | _mains()
    for name, (call, told) in every.items():
        yield Call(f"trained/{name}", call, says=told)
    for name, (call, told) in _loads().items():
        yield Call(f"load/{name}", call, says=told, python="unknown" in name)


def _clients() -> Calls:
    found: Calls = {f"client/{n}": (functools.partial(_client, value), "client") for n, value in NAMES.items()}
    models: Callable[[], Any] = lambda: trained().trained_model.clients_models()  # noqa: E731
    found |= {f"clients/{n}": (lambda _, v=v: models().model(v), "client") for n, v in NAMES.items()}
    x, y = rows()
    return found | {
        "client/0": (lambda _: trained().client(0), None),
        "client/numpy": (lambda _: trained().client(np.int64(0)), None),
        "clients/0": (lambda _: models().model(0), None),
        "client/of a new model": (lambda _: FedAvg(network(), T).client("0"), "has not been trained"),
        "clients/of a new model": (
            lambda _: FedAvg(network(), T).trained_model.clients_models(),
            "has not been trained",
        ),
        "client/tuned": (lambda _: fit(FedAvg(network(), T, adaptation=Finetune())).client("0"), "personalize"),
        "client/called": (lambda _: trained().client("0")(torch.zeros(2, 4)), None),
        "client/trained on": (lambda _: make_trainer(1).fit(trained().client("0"), data()), ""),
        "new/unseen by method": (lambda _: trained(Local).personalize(x, y), None),
    }


def _client(name: Any, _: Path) -> Any:
    return trained().client(name)


def _personalized() -> Calls:
    x, y = rows()
    empty = np.zeros((0, 4)), np.zeros(0, int)
    return {
        "personalize/x alone": (lambda _: trained().personalize(x, None), "y"),
        "personalize/y alone": (lambda _: trained().personalize(None, y), "x"),
        "personalize/neither": (lambda _: trained().personalize(None, None), "x"),
        "personalize/wrong way round": (lambda _: trained().personalize(y, x), ""),
        "personalize/a known client": (lambda _: trained().personalize(x, y, name="0"), "took part in training"),
        "personalize/no samples": (lambda _: trained().personalize(*empty), None),
        "personalize/one sample": (lambda _: trained().personalize(x[:1], y[:1]), None),
        "personalize/a name, None": (lambda _: trained().personalize(x, y, name=None), "name"),
        "personalize/a name, a list": (lambda _: trained().personalize(x, y, name=["a"]), "name"),
        "personalize/labels unknown": (lambda _: trained().personalize(x, y + 5), "y"),
        "personalize/words": (lambda _: trained().personalize(x, np.array(["a"] * 6)), "y"),
        "personalize/a new model": (lambda _: FedAvg(network(), T).personalize(x, y), "has not been trained"),
        "personalize/images": (lambda _: trained().personalize(np.zeros((6, 2, 2), np.uint8), y), "x"),
        "personalize/bytes of features": (lambda _: trained().personalize(np.zeros((6, 4), np.uint8), y), None),
        "predict/a sample alone": (lambda _: trained().client("0").predict(x[0]), "x"),
        "predict/no samples": (lambda _: trained().client("0").predict(x[:0]), None),
        "predict/images": (lambda _: trained().client("0").predict(np.zeros((6, 2, 2), np.uint8)), "x"),
        "predict/a frame": (lambda _: trained().client("0").predict(pd.DataFrame(x)), None),
        "predict/a wider frame": (
            lambda _: trained().client("0").predict(pd.DataFrame(x).assign(z=1.0)),
            "x",
        ),
        "predict/a data module": (lambda _: trained().client("0").predict(data()), "x"),
        "predict/a federation": (lambda _: trained().client("0").predict(data().federation), "x"),
    }


def _loads() -> Calls:
    path = _checkpoint
    net: Callable[..., nn.Module] = network
    other = {"backbone": net(CLASSES, 7)}
    wrong: dict[str, tuple[Any, str]] = {
        "nowhere": ("no_such", "no such run or file"),
        "a folder": (".", ""),
        "None": (None, "path"),
        "a number": (3, "path"),
        "a list": (["a"], "path"),
        "bytes": (b"a", "path"),
        "a model": (nn.Linear(1, 1), "path"),
        "empty": ("", ""),
        "a text file": (__file__, "no intact checkpoint"),
        "a safetensors": ("a.safetensors", ""),
    }
    found: Calls = {}
    for function in (load, load_clients):
        found |= {
            f"{function.__name__}/{name}": (lambda _, f=function, v=v: f(v), says) for name, (v, says) in wrong.items()
        }
    methods = (FedAvg, FedEM, Local)
    for kind in methods:
        for written in methods:
            says = None if kind is written else f"was written by {written.__name__}"
            found[f"{kind.__name__} of {written.__name__}"] = (functools.partial(_of, kind, written), says)
    return found | {
        "with its backbone": (lambda _: load(path(), backbone=net()), None),
        "with a wider backbone": (lambda _: load(path(), backbone=net(CLASSES, 7)), "0.weight"),
        "with a function": (lambda _: load(path(), backbone=network), None),
        "with more outputs": (lambda _: load(path(), backbone=net(CLASSES + 1)), "components"),
        "with other layers": (lambda _: load(path(), backbone=Linear((4,), CLASSES)), "components"),
        "with a class": (lambda _: load(path(), backbone=nn.Linear), "backbone"),
        "with None": (lambda _: load(path(), backbone=None), "backbone"),
        "with a text": (lambda _: load(path(), backbone="mlp"), "backbone"),
        "without a backbone": (lambda _: load(path()), "backbone"),
        "with more clients": (lambda _: load(path(), backbone=net(), n_clients=9), "n_clients"),
        "with no clients": (lambda _: load(path(), backbone=net(), n_clients=0), "n_clients"),
        "with unknown arguments": (lambda _: load(path(), backbone=net(), lr=1.0), "lr"),
        "with a wrong value": (lambda _: load(path(), backbone=net(), batch_size=0), "batch_size"),
        "with a class of adaptation": (lambda _: load(path(), backbone=net(), adaptation=Finetune), "adaptation"),
        "with trust, a number": (lambda _: load(path(), trust=3, backbone=net()), "trust"),
        "with trust, None": (lambda _: load(path(), trust=None, backbone=net()), "trust"),
        "from_checkpoint, wider": (lambda _: FedAvg.load_from_checkpoint(path(), **other), "weight"),
        "from_checkpoint, nowhere": (lambda _: FedAvg.load_from_checkpoint("no_such"), "no_such"),
        "from_checkpoint, None": (lambda _: FedAvg.load_from_checkpoint(None), "checkpoint_path"),
        "from_checkpoint, a folder": (lambda folder: FedAvg.load_from_checkpoint(folder), ""),
        "from_checkpoint, a base": (
            lambda _: fedem_lightning.FederatedAlgorithm.load_from_checkpoint(path(), backbone=net()),
            "",
        ),
        "from_checkpoint, map_location": (
            lambda _: FedAvg.load_from_checkpoint(path(), map_location="cpu", strict=False, backbone=net()),
            None,
        ),
    }


@functools.cache
def _folder() -> Path:
    import tempfile

    return Path(tempfile.mkdtemp(prefix="python-calls-"))


@functools.cache
def _checkpoint(kind: type = FedAvg) -> Path:
    place = _folder() / kind.__name__
    place.mkdir(exist_ok=True)
    return saved(place, kind)


def _of(kind: Any, written: type, _: Path) -> Any:
    return kind.load_from_checkpoint(_checkpoint(written), backbone=network())


def _saved_runs() -> Calls:
    return {
        "save_run/untested": (lambda folder: save_run(fit(FedAvg(network(), T)), data(), folder), "trainer.test"),
        "save_run/unfitted": (lambda folder: save_run(FedAvg(network(), T), data(), folder), "trainer.test"),
        "save_run/no model": (lambda folder: save_run(None, data(), folder), "model"),
        "save_run/a network": (lambda folder: save_run(network(), data(), folder), "model"),
        "save_run/a class": (lambda folder: save_run(FedAvg, data(), folder), "model"),
        "save_run/no data": (lambda folder: save_run(trained(), None, folder), "data"),
        "save_run/a federation": (lambda folder: save_run(trained(), data().federation, folder), "data"),
        "save_run/the wrong way round": (lambda folder: save_run(data(), trained(), folder), "model"),
        "save_run/other data": (lambda folder: save_run(trained(), make_data(sizes=(9,) * 7), folder), "data"),
        "save_run/None": (lambda _: save_run(trained(), data(), None), "folder"),
        "save_run/a number": (lambda _: save_run(trained(), data(), 3), "folder"),
        "save_run/a file": (lambda _: save_run(trained(), data(), __file__), "folder"),
        "save_run/a full folder": (lambda _: save_run(trained(), data(), Path(__file__).parent), "folder"),
        "save_run/below a file": (lambda _: save_run(trained(), data(), Path(__file__) / "a"), "cannot write"),
        "save_run/a data set, a number": (lambda folder: save_run(trained(), data(), folder, dataset=3), "dataset"),
        "save_run": (lambda folder: save_run(trained(), data(), folder), None),
    }


def _together() -> Calls:
    """Arguments that exclude one another, or the data."""
    kinds = fedem_lightning
    net = network

    def late(kind: Any, **options: Any) -> Callable[[Path], Any]:
        return lambda _: fit(kind(net(), T, **options))

    def scored(**options: Any) -> Callable[[Path], Any]:
        return lambda _: make_trainer(1, "32-true").test(FedAvg(net(), T, **options), data(), verbose=False)

    no_proxy = kinds.Dapper(source="proxy", proxy="no_such")
    one = ShiftedExponentialNetwork(1.0, 1.0, 1.0, deadline=1.0)
    unseen = make_data(sizes=(12,) * T, unseen_fraction=0.5)
    no_domain = FederatedDataModule.from_arrays(np.zeros((8, 4)), np.arange(8) % 3, np.arange(8) % T, n_classes=3)
    return {
        "together/networks, a list": (late(FedAvg, networks=[one]), "networks"),
        "together/networks, one": (late(FedAvg, networks=one), "networks"),
        "together/networks, a class": (late(FedAvg, networks={"a": Network}), "networks"),
        "together/networks, values": (late(FedAvg, networks={"a": 3}), "networks"),
        "together/two deadlines": (late(FedAvg, networks={"a": one, "b": one}), "network"),
        "together/krum of few": (late(FedAvg, aggregation=MultiKrum(faulty=0.4), participation=2), ""),
        "together/private FedEM, farthest": (
            late(FedEM, aggregation=PrivateMean(), initialization="farthest", participation=0.5),
            "aggregation",
        ),
        "together/compression of Local": (late(Local, compression=TopK()), "compression"),
        "together/faults of MOCHA": (late(kinds.Clustered, faults=NoAnswer()), ""),
        "together/participation of more": (late(FedAvg, participation=99), ""),
        "together/participation of Clustered": (late(kinds.Clustered, participation=0.5), "participation"),
        "together/server optimiser of Local": (
            late(Local, server_optimizer=lambda p: torch.optim.Adam(p, lr=0.1)),
            "server_optimizer",
        ),
        "together/server optimiser of q-FFL": (
            late(kinds.QFFL, server_optimizer=lambda p: torch.optim.Adam(p, lr=0.1)),
            None,
        ),
        "together/Oracle without groups": (late(kinds.Oracle), ""),
        "together/Agnostic without domains": (
            lambda _: fit(kinds.Agnostic(net(), T), no_domain),
            "domain",
        ),
        "together/Mapper of unseen": (lambda _: fit(kinds.Mapper(net(), T), unseen), None),
        "together/MOCHA of a network": (late(kinds.MOCHA), "MOCHA"),
        "together/FedPer without a head": (late(kinds.FedPer, head="no_such"), "head"),
        "together/FedPer, a broken head": (late(kinds.FedPer, head="("), "head"),
        "together/FedALA, a broken head": (late(kinds.FedALA, head="["), "head"),
        "together/Finetune, a broken head": (scored(adaptation=Finetune(part="head", head="*")), "head"),
        "together/Finetune, no head": (scored(adaptation=Finetune(part="head", head="zz")), "head"),
        "together/pretrained, unknown": (late(FedAvg, pretrained="features"), "pretrained"),
        "together/pretrained, a number": (late(FedAvg, pretrained=3), "pretrained"),
        "together/pretrained, numbers": (late(FedAvg, pretrained=[3]), "pretrained"),
        "together/n_components, 0": (late(FedEM, n_components=0), "n_components"),
        "together/one client": (
            lambda _: fit(FedEM(net(), 1, n_components=2), make_data(sizes=(12,))),
            None,
        ),
        "together/tolerance without steps": (late(FedEM, personalize_tolerance=0.1), "personalize_tolerance"),
        "together/threshold and compression": (
            late(FedEM, upload_threshold=0.1, compression=EightBit()),
            "upload_threshold",
        ),
        "together/KNN of a linear": (late(FedAvg, adaptation=kinds.KNN()), None),
        "together/Dapper of a proxy": (lambda _: kinds.Dapper(source="proxy"), "proxy"),
        "together/Dapper, no such proxy": (
            late(FedAvg, adaptation=no_proxy),
            "proxy",
        ),
        "together/FedEM without n_clients": (lambda _: FedEM(net(), None), "n_clients"),
        "together/n_clients first": (lambda _: FedEM(T, net()), ""),
        "together/trainer in place of model": (lambda _: save_run(pl.Trainer, data(), _), "model"),
    }


def _tasks() -> Calls:
    logits, y = torch.zeros(4, 3), torch.tensor([0, 1, 2, 0])
    return {
        "tasks/one class": (lambda _: Classification(1), "n_classes"),
        "tasks/classes, a text": (lambda _: Classification("3"), "n_classes"),
        "tasks/weights, a text": (lambda _: Classification(3, class_weights="balanced"), "class_weights"),
        "tasks/too few weights": (lambda _: Classification(3, class_weights=[1.0, 2.0]), "class_weights"),
        "tasks/negative weights": (lambda _: Classification(3, class_weights=[1.0, -2.0, 1.0]), "class_weights"),
        "tasks/smoothing of 1": (lambda _: Classification(3, label_smoothing=1.0), "label_smoothing"),
        "tasks/no targets": (lambda _: Classification(3, n_targets=0), "n_targets"),
        "tasks/binary weights": (lambda _: BinaryClassification(class_weights=[1.0]), "class_weights"),
        "tasks/binary of three": (lambda _: BinaryClassification(3), "n_classes"),
        "tasks/no outputs": (lambda _: Regression(0), "n_outputs"),
        "tasks/no noise": (lambda _: Regression(1, noise_scale=0.0), "noise_scale"),
        "tasks/unknown": (lambda _: make_task("ranking", 3), "task"),
        "tasks/None": (lambda _: make_task(None, 3), "task"),
        "tasks/losses": (lambda _: Classification(3).losses(logits, y), None),
    }


def _mains() -> Calls:
    """The commands as functions."""
    from fedem_lightning import evaluate, export, personalize, predict

    found: Calls = {}
    for module in (evaluate, export, personalize, predict):
        for what, words in {"nothing": [], "nowhere": ["no_such", "no_such.npz"], "an option": ["--no-such"]}.items():
            name = f"mains/{module.__name__.rpartition('.')[2]}/{what}"
            found[name] = (functools.partial(_main, module, words), "2")
    return found


def _main(module: Any, words: list[str], _: Path) -> None:
    """A command ends with exit code 2, which stands for its line here."""
    try:
        module.main(words)
    except SystemExit as stop:
        raise fedem_lightning.UserError(str(stop.code)) from stop
