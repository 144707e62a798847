"""Configurations of runs, also of foreign ones: read without calling anything, and without the environment."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml
from hydra.core.config_store import ConfigStore
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf._utils import get_yaml_loader
from omegaconf.basecontainer import BaseContainer
from omegaconf.errors import OmegaConfBaseException

from fedem_lightning.settings.errors import UserError, require
from fedem_lightning.settings.files import regular
from fedem_lightning.settings.keys import small_groups


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
        result: dict[str, Any] = _value([OmegaConf.create(tree)], 0, tree)
        return result
    except (OmegaConfBaseException, RecursionError) as error:
        raise UserError(f"broken: .hydra/config.yaml is no configuration ({type(error).__name__})") from error
    finally:
        BaseContainer._resolvers = everything


def _value(node: Any, key: Any, written: Any) -> Any:
    """What a key of a node means; what cannot be resolved is as it is written."""
    try:
        value = node[key]
    except OmegaConfBaseException:
        return written
    below: Any = written if isinstance(written, dict | list) else None
    if isinstance(value, DictConfig):
        return {str(name): _value(value, name, below and below[name]) for name in value}
    return [_value(value, i, below and below[i]) for i in range(len(value))] if isinstance(value, ListConfig) else value


def data_and_network(select: Callable[[str], Any]) -> str:
    """What learning rates are chosen for: the data's name, if they have one, or class, and the network's class.

    For example Digits/MLP, cifar10/LeNet5, and with a class of the user's own cifar10/my_module.MyNet.
    """
    data = select("dataset.name") or select("dataset._target_")
    names = (str(path).removeprefix("fedem_lightning.") for path in (data, select("backbone._target_")))
    return "/".join(names)


def _by_fidelity(paper: Any, reference: Any, _root_: DictConfig) -> Any:
    require(_root_.fidelity in ("paper", "reference"), f"fidelity: expected paper or reference, got {_root_.fidelity}")
    return reference if _root_.fidelity == "reference" else paper


def _by_case(*values: Any, _root_: DictConfig) -> Any:
    cases = [*_root_.cases]
    return values[cases.index(_root_.case) if _root_.case in cases else 0]  # `run/gate.py` refuses another case


def _tenth(number: Any, most: int | None = None) -> int:
    share = max(1, number // 10) if isinstance(number, int) else 1
    return share if most is None else min(share, most)


RESOLVERS: dict[str, Callable[..., Any]] = {
    "by_fidelity": _by_fidelity,
    "by_case": _by_case,
    "tenth": _tenth,
}
"""Of this package's configurations."""
for _name, _call in RESOLVERS.items():
    OmegaConf.register_new_resolver(_name, _call, replace=True)
for _group, _choices in small_groups().items():
    for _name, _node in _choices.items():
        ConfigStore.instance().store(group=_group, name=_name, node=OmegaConf.create(_node))
_MAPPINGS = ("learning_rates", "method_settings")
ConfigStore.instance().store(
    "keys_to_fill_in", OmegaConf.create({name: OmegaConf.create({}, flags={"struct": False}) for name in _MAPPINGS})
)
"""`learning_rates.fedem=0.3` needs no `+`: a configuration in YAML cannot say that a mapping takes further keys."""
