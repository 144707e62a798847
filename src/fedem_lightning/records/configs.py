"""Configurations of runs, also of foreign ones: read without calling anything, and without the environment.

A setting that somebody has to choose for the data, such as `learning_rates.fedem`, is looked up in three places: under
its own key, where the user sets it; under `chosen_for.DATA/NETWORK`, where data sets and experiments bring what was
chosen for these data with this network; else it has a default that does not depend on the data.
"""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf._utils import get_yaml_loader
from omegaconf.basecontainer import BaseContainer
from omegaconf.errors import OmegaConfBaseException

from fedem_lightning.errors import UserError, require
from fedem_lightning.records.files import regular

Select = Callable[[str], Any]
"""From a dotted key to its resolved value; None if there is none."""


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """The quick loader, with OmegaConf's rules for numbers and dates: 1e-3 is a number."""


_Loader.yaml_implicit_resolvers = get_yaml_loader().yaml_implicit_resolvers


def read_yaml(path: Path) -> dict[str, Any]:
    """A run's configuration as it is written; UserError if it is unreadable."""
    try:
        tree = yaml.load(regular(path).read_text(), Loader=_Loader)
    except Exception as error:  # no file, no text, no YAML, ...
        raise UserError(f"broken: .hydra/config.yaml is unreadable ({type(error).__name__})") from error
    require(isinstance(tree, dict), "broken: .hydra/config.yaml has no keys")
    return dict(tree)


def resolved(tree: dict[Any, Any]) -> dict[str, Any]:
    """A configuration with the values that its interpolations mean.

    Those of its own keys and the resolvers of this package's configurations are known. Any other stays as it is
    written, such as `${oc.env:X}`, and so does a value that is made of it.
    """
    everything = BaseContainer._resolvers
    BaseContainer._resolvers = {name: everything[name] for name in ("oc.select", *RESOLVERS)}
    try:
        return _whole(OmegaConf.create(tree), tree)
    except (OmegaConfBaseException, RecursionError) as error:
        raise UserError(f"broken: .hydra/config.yaml is no configuration ({type(error).__name__})") from error
    finally:
        BaseContainer._resolvers = everything


def _whole(node: Any, written: Any) -> Any:
    """A node's resolved value; what cannot be resolved is as it is written."""
    if isinstance(node, DictConfig):
        return {str(key): _part(node, key, written) for key in node}
    return [_part(node, i, written) for i in range(len(node))] if isinstance(node, ListConfig) else node


def _part(node: Any, key: Any, written: Any) -> Any:
    below = written[key] if isinstance(written, dict | list) else None
    try:
        return _whole(node[key], below)
    except OmegaConfBaseException:
        return below


class Found(NamedTuple):
    """The value of a setting, and where it was found: "own", "chosen_for" or "default"."""

    value: Any
    place: str


def data_and_network(select: Select) -> str:
    """What settings are chosen for: the data's name, if they have one, or class, and the network's class.

    For example Digits/MLP, cifar10/LeNet5, and with a class of the user's own cifar10/my_module_MyNet.
    """
    data = select("dataset.name") or select("dataset._target_")
    names = (str(path).removeprefix("fedem_lightning.") for path in (data, select("backbone._target_")))
    return "/".join(name.replace(".", "_") for name in names)  # a key of the configuration has no dots


def find_chosen(select: Select, keys: list[str], default: Any) -> Found:
    """The first of some settings that is set or was chosen for the data and the network; else the default."""
    these = data_and_network(select)
    for key in keys:
        for place, where in (("own", key), ("chosen_for", f"chosen_for.{these}.{key}")):
            value = select(where)
            if value is not None:
                return Found(value, place)
    return Found(default, "default")


def _chosen(*keys_and_default: Any, _root_: DictConfig) -> Any:
    *keys, default = keys_and_default
    return find_chosen(functools.partial(OmegaConf.select, _root_), keys, default).value


def _by_fidelity(paper: Any, reference: Any, _root_: DictConfig) -> Any:
    require(_root_.fidelity in ("paper", "reference"), f"fidelity: expected paper or reference, got {_root_.fidelity}")
    return reference if _root_.fidelity == "reference" else paper


RESOLVERS: dict[str, Callable[..., Any]] = {
    "chosen": _chosen,
    "by_fidelity": _by_fidelity,
    "first": lambda *values: next((v for v in values if v is not None), None),
    "tenth": lambda number: max(1, number // 10) if isinstance(number, int) else 1,
}
"""Of this package's configurations."""
for _name, _call in RESOLVERS.items():
    OmegaConf.register_new_resolver(_name, _call, replace=True)
