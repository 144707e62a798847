"""Constructors: every parameter of every public class and function that makes something, with values it cannot take."""

import collections.abc
import functools
import inspect
import re
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import fedem_lightning
from fedem_lightning import callbacks, tasks
from fedem_lightning.settings.check import parameters
from wrong_inputs.python.call import Call
from wrong_inputs.python.parts import network

FEATURES, CLASSES = 4, 3
OF_ALL = fedem_lightning.FederatedAlgorithm
NEEDED: dict[str, dict[str, Any]] = {
    "CNN": {"n_outputs": 3},
    "ReferenceCNN": {"n_outputs": 3},
    "LeNet5": {"n_outputs": 3},
    "CharLSTM": {"n_outputs": 3},
    "LSTM": {"input_size": 3, "hidden_size": 4},
    "Linear": {"in_shape": (4,), "n_outputs": 3},
    "MLP": {"in_shape": (4,), "n_outputs": 3},
    "MobileNetV2": {"n_outputs": 3},
    "ResNet18": {"n_outputs": 3},
    "TimmModel": {"n_outputs": 3, "name": "resnet10t", "pretrained": False},
    "Transformer": {"n_outputs": 3, "config": {"model_type": "bert", "hidden_size": 8, "num_attention_heads": 2}},
    "Pretrained": {"body": fedem_lightning.Linear((4,), 2), "width": 2, "n_outputs": 3},
    "ShiftedExponentialNetwork": {"rho": 1.0, "t_min": 1.0, "mu": 1.0},
    "SurrogateOptimization": {"surrogate": fedem_lightning.MoreauSurrogate()},
    "DecentralizedSurrogateOptimization": {"surrogate": fedem_lightning.MoreauSurrogate()},
    "Classification": {"n_classes": 3},
    "TorchDataModule": {"data": {"a": (torch.zeros(6, 2), torch.arange(6) % 2)}},
    "MOCHA": {"backbone": fedem_lightning.Linear((4,), 1)},
}
"""Arguments without a default."""
SMALL: dict[str, dict[str, Any]] = {
    "SyntheticMixture": {"n_clients": 3, "dimension": 2, "test_size": 4},
    "MixturePopulation": {"n_clients": 3},
    "DensityDataModule": {"n_clients": 3},
}
WITHOUT_FILES = (
    *("ImageDataModule", "TextDataModule", "NpzDataModule", "TableDataModule", "DeviceNetwork"),
    *("PFLlibDataModule", "FLBenchDataModule", "HubDataModule"),
)
"""They read a file first, and `trained` has their cases; `Federation` and client models are made by the package."""
NOT_MADE = ("Federation", "ClientModel", "ClientModels", "Majorizer", "UserError", "FederatedDataModule", "LSTM")
ABSTRACT = (
    "Adaptation",
    "Aggregation",
    "Compression",
    "Engine",
    "Faults",
    "Network",
    "Surrogate",
    "FederatedAlgorithm",
)
FREE = {"salt", "text"}

A_CLASS, AN_OBJECT = nn.Linear, object()
WRONG: dict[Any, list[Any]] = {
    bool: ["no", 2, 1.0, None, [True], A_CLASS, np.array([True, False])],
    int: ["3", 1.5, True, float("nan"), [1], A_CLASS, AN_OBJECT, np.float64(1.5), np.array([1, 2]), lambda: 1],
    float: ["0.1", True, float("nan"), [0.1], A_CLASS, AN_OBJECT, np.array([1.0, 2.0]), torch.zeros(2), {}],
    str: [["a"], 3.5, True, A_CLASS, AN_OBJECT, {}],
    list: [5, AN_OBJECT, A_CLASS, True],
    object: [5, "no such", [1], AN_OBJECT, True, nn.Linear(1, 1)],
}
RIGHT = {
    ("int", "n_clients"): np.int64(4),
    ("float", "alpha"): np.float32(0.5),
}


def calls() -> Iterator[Call]:
    """Every parameter with every wrong value, and unknown and missing arguments."""
    yield from _classes()
    for name, kind in _public():
        base = _arguments(name, kind)
        yield Call(f"constructors/{name}", functools.partial(_make, kind, base))
        yield Call(
            f"constructors/{name}(unknown=1)",
            functools.partial(_make, kind, {**base, "unknown": 1}),
            "unknown",
            python=True,
        )
        for key, setting in _parameters(kind).items():
            for i, wrong in enumerate(_wrong(setting.hint)):
                act = functools.partial(_make, kind, {**base, key: wrong})
                yield Call(f"constructors/{name}({key}={_shown(wrong)}, {i})", act, says=key)


def _classes() -> Iterator[Call]:
    """Classes in place of objects of them."""
    fed, kind = fedem_lightning, fedem_lightning.FedAvg
    found: list[tuple[Any, str, tuple[type, ...]]] = [
        (kind, "adaptation", (fed.Finetune, fed.Dapper, fed.Interpolate, fed.KNN)),
        (kind, "aggregation", (fed.Mean, fed.Median, fed.MultiKrum, fed.PrivateMean)),
        (kind, "faults", (fed.NoAnswer, fed.SignFlip, fed.LabelFlip)),
        (kind, "compression", (fed.TopK, fed.EightBit)),
        (kind, "engine", (fed.AutoEngine, fed.LoopEngine, fed.VmapEngine)),
        (kind, "client_optimizer", (fed.ClientSGD,)),
        (fed.FedEM, "e_step", (fed.EStep,)),
        (fed.DFedEM, "topology", (fed.Topology,)),
        (fed.SurrogateOptimization, "surrogate", (fed.MoreauSurrogate, fed.MixtureSurrogate)),
    ]
    for made, key, classes in found:
        for given in classes:
            arguments = {"backbone": network(), "n_clients": 4, key: given}
            act = functools.partial(_make, made, arguments)
            yield Call(
                f"constructors/{key}, the class {given.__name__}", act, says=f"got the class {given.__name__}; give"
            )


def _make(kind: Any, arguments: dict[str, Any], _: Path) -> Any:
    return kind(**arguments)


def _public() -> list[tuple[str, Any]]:
    names = [name for name in fedem_lightning.__all__ if name not in (*WITHOUT_FILES, *NOT_MADE, *ABSTRACT)]
    found = [(name, getattr(fedem_lightning, name)) for name in names]
    found = [(name, kind) for name, kind in found if name not in ("load", "load_clients", "save_run")]
    found += [(name, getattr(callbacks, name)) for name in callbacks.__all__ if name != "MappedCheckpoints"]
    return found + [(name, getattr(tasks, name)) for name in ("Classification", "Regression")]


def _arguments(name: str, kind: Any) -> dict[str, Any]:
    of_algorithms: dict[str, Any] = {"backbone": network(), "n_clients": 4}
    is_algorithm = isinstance(kind, type) and issubclass(kind, OF_ALL)
    return (of_algorithms if is_algorithm else {}) | NEEDED.get(name, {}) | SMALL.get(name, {})


def _parameters(kind: Any) -> dict[str, Any]:
    """Those of the class alone; the algorithms share the others, which are tried with one of them."""
    known = dict(parameters(kind).known)
    if isinstance(kind, type) and issubclass(kind, OF_ALL) and kind is not fedem_lightning.FedAvg:
        shared = parameters(OF_ALL).known.keys() - {"n_components", "adaptation"}
        known = {key: setting for key, setting in known.items() if key not in shared}
    return {key: setting for key, setting in known.items() if key not in FREE and setting.hint is not Any}


def _wrong(hint: Any) -> list[Any]:
    """Values that an annotation does not allow, by what it allows."""
    kinds = {_kind(part) for part in _parts(hint)}
    chosen = next((kind for kind in (list, object, str, float, int, bool) if kind in kinds), object)
    values = list(WRONG[chosen])
    if str in kinds and chosen is not str:
        values = [value for value in values if not isinstance(value, str) or "Literal" in str(hint)]
    if float in kinds:
        values = [value for value in values if not _is_number(value)]
    if int in kinds and chosen is not int:
        values = [value for value in values if not isinstance(value, int) or isinstance(value, bool)]
    if list in kinds and chosen is not list:
        values = [value for value in values if not isinstance(value, list)]
    if "function" in kinds:
        values = [value for value in values if not callable(value)]
    if nn.Module in [typing.get_origin(part) or part for part in _parts(hint)]:
        values = [value for value in values if not isinstance(value, nn.Module)]
    if type(None) in kinds:
        values = [value for value in values if value is not None]
    if bool in kinds:
        values = [value for value in values if not isinstance(value, bool)]
    return values


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value == value and value > 0


def _parts(hint: Any) -> list[Any]:
    if typing.get_origin(hint) is typing.Annotated:
        return _parts(typing.get_args(hint)[0])
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return [part for one in typing.get_args(hint) for part in _parts(one)]
    return [hint]


def _kind(part: Any) -> Any:
    origin = typing.get_origin(part) or part
    if origin is typing.Literal:
        return type(typing.get_args(part)[0])
    if origin in (bool, int, float, str, type(None)):
        return origin
    if origin is Path:
        return str
    if origin is collections.abc.Callable:
        return "function"
    return list if inspect.isclass(origin) and issubclass(origin, collections.abc.Sequence) else object


def _shown(value: Any) -> str:
    text = re.sub(r" at 0x\w+", "", f"{type(value).__name__} {value!r}")
    return " ".join(text.split())[:40]
