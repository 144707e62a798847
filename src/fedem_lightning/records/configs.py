"""Configurations of runs, also of foreign ones: read without calling anything, and without the environment.

A setting that somebody has to choose for the data, such as `learning_rates.fedem`, is looked up in three places: under
its own key, where the user sets it; under `chosen_for.DATA/NETWORK`, where data sets and experiments bring what was
chosen for these data with this network; else it has a default that does not depend on the data.
"""

import os
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from omegaconf._utils import get_yaml_loader

from fedem_lightning.errors import UserError, require
from fedem_lightning.records.files import regular

Select = Callable[[str], Any]
"""From a dotted key to its resolved value; None if there is none."""
_DATA_DIR = re.compile(r"\$\{oc\.env:FEDEM_LIGHTNING_DATA,[^${}]*\}")
"""What `data_dir` is unless the user sets it."""
_MOST_BYTES, _MOST_DEPTH = 1_000_000, 50
_MOST_STEPS, _MOST_LETTERS = 50_000, 10_000
_LONGEST = 1000
"""Letters of a text whose interpolations are resolved."""
_ONE = re.compile(r"\$\{((?:[^${}]|\$(?!\{)|\$\{(?:[^{}]|\{[^{}]*\})*\})*)\}")
"""An interpolation, with others inside it up to two deep."""


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """The quick loader, with OmegaConf's rules for numbers and dates: 1e-3 is a number."""


_Loader.yaml_implicit_resolvers = get_yaml_loader().yaml_implicit_resolvers


def read_yaml(path: Path) -> dict[str, Any]:
    """A run's configuration as it is written. Its form is checked first: a small file may grow without limit.

    Raises:
        UserError: it is unreadable, larger than 1 MB, nested more than 50 deep, or has aliases, which no run writes.

    """
    name = ".hydra/config.yaml"
    try:
        require(regular(path).stat().st_size <= _MOST_BYTES, f"broken: {name} is larger than 1 MB")
        text, depth = path.read_text(), 0
        for event in yaml.parse(text, Loader=_Loader):
            require(not isinstance(event, yaml.AliasEvent), f"broken: {name} has aliases, which no run writes")
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            require(depth <= _MOST_DEPTH, f"broken: {name} is nested too deeply")
        tree = yaml.load(text, Loader=_Loader)
        require(isinstance(tree, dict), f"broken: {name} has no keys")
    except UserError:
        raise
    except Exception as error:  # no file, no text, no YAML, ...
        raise UserError(f"broken: {name} is unreadable ({type(error).__name__})") from error
    return dict(tree)


def resolved(tree: dict[Any, Any]) -> dict[str, Any]:
    """A configuration with the values that its interpolations mean.

    Those of its own keys and the resolvers of this package's configurations are known. Any other stays as it is
    written, such as `${oc.env:X}`.

    Raises:
        UserError: the values would grow too many.

    """
    try:
        found: dict[str, Any] = _Resolver(tree).whole(tree, ())
    except RecursionError:
        raise UserError("broken: .hydra/config.yaml has values that hold themselves") from None
    return found


def with_data_dir(tree: dict[str, Any]) -> dict[str, Any]:
    """The configuration with this machine's folder of data sets, if it names no other."""
    folder = os.environ.get("FEDEM_LIGHTNING_DATA", "~/.cache/fedem-lightning")
    return tree | {"data_dir": folder} if _DATA_DIR.fullmatch(str(tree.get("data_dir"))) else tree


def read_tree(path: Path) -> dict[str, Any]:
    """A run's configuration as nested dictionaries, resolved with its own seed and this machine's folder of data sets.

    Raises:
        UserError: see `read_yaml` and `resolved`.

    """
    return resolved(with_data_dir(read_yaml(path)))


def flatten(tree: Any, prefix: str = "") -> dict[str, Any]:
    """Nested dictionaries as one, with dotted keys."""
    if not isinstance(tree, dict):
        return {prefix: tree}
    flat = {}
    for key, part in tree.items():
        flat.update(flatten(part, f"{prefix}.{key}" if prefix else str(key)))
    return flat


def short(key: str, config: Iterable[str]) -> str:
    """The shortest ending of a dotted key that no other key of `config` has."""
    parts, others = key.split("."), [f".{other}" for other in config if other != key]
    endings = (".".join(parts[-n:]) for n in range(1, len(parts)))
    return next((ending for ending in endings if not any(other.endswith(f".{ending}") for other in others)), key)


def tenth(number: Any) -> int:
    """A tenth of a whole number, at least 1."""
    return max(1, number // 10) if isinstance(number, int) else 1


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


class _Resolver:
    """Resolves the interpolations of one configuration, in a limited number of steps."""

    def __init__(self, tree: dict[Any, Any]) -> None:
        self.tree, self.steps = tree, 0

    def whole(self, value: Any, path: tuple[str, ...]) -> Any:
        """A value and everything in it."""
        value = self._resolved(value, path)
        if isinstance(value, dict):
            return {str(key): self.whole(part, (*path, str(key))) for key, part in value.items()}
        return [self.whole(part, path) for part in value] if isinstance(value, list) else value

    def _count(self, steps: int) -> None:
        self.steps += steps
        require(self.steps <= _MOST_STEPS, "broken: .hydra/config.yaml has too many values")

    def _resolved(self, value: Any, path: tuple[str, ...]) -> Any:
        """A value without interpolations that this class knows; others stay as they are written."""
        self._count(1)
        if not isinstance(value, str) or "${" not in value or len(value) > _LONGEST:
            return value
        self._count(len(value) // 50)
        whole = _ONE.fullmatch(value)
        try:
            found = (
                self._meant(whole[1], path)
                if whole
                else _ONE.sub(lambda m: str(_scalar(self._meant(m[1], path))), value)
            )
        except (LookupError, RecursionError, yaml.YAMLError):
            return value
        length = len(found) if isinstance(found, str) else 0
        self._count(length // 100)
        return value if length > _MOST_LETTERS else found

    def _meant(self, inner: str, path: tuple[str, ...]) -> Any:
        """The value of the interpolation ${inner}; LookupError: it is not known here."""
        name, given, rest = inner.partition(":")
        if not given:
            return self._at(inner.strip(), path)
        values = _arguments(rest)
        if name == "oc.select" and len(values) == 2:
            try:
                return self._at(values[0], path)
            except LookupError:
                return self._argument(values[1], path)
        if name == "chosen" and len(values) > 1:
            found = find_chosen(self._known, values[:-1], None).value
            return self._argument(values[-1], path) if found is None else found
        if name == "by_fidelity" and len(values) == 2:
            return self._argument(values[self.tree.get("fidelity") == "reference"], path)
        if name == "first":
            return next((v for part in values if (v := self._argument(part, path)) is not None), None)
        if name == "tenth" and len(values) == 1:
            return tenth(self._argument(values[0], path))
        raise LookupError(name)

    def _known(self, key: str) -> Any:
        with suppress(LookupError):
            return self._at(key, ())
        return None

    def _argument(self, text: str, path: tuple[str, ...]) -> Any:
        self._count(5)
        return self._resolved(text, path) if "${" in text else _scalar(yaml.load(text, Loader=_Loader))

    def _at(self, key: str, path: tuple[str, ...]) -> Any:
        """The resolved value of a key; `.key` lies beside the value at `path`, `..key` one level above."""
        dots = len(key) - len(key.lstrip("."))
        where = [*path[: len(path) - dots], *key[dots:].split(".")] if dots else key.split(".")
        value: Any = self.tree
        for i, part in enumerate(where):
            value = self._resolved(value, tuple(where[:i]))
            if not isinstance(value, dict) or part not in value:
                raise LookupError(key)
            value = value[part]
        return self._resolved(value, tuple(where))


def _scalar(value: Any) -> Any:
    """The value; LookupError: it is a list or has keys, which aliases could make larger than its text."""
    if isinstance(value, dict | list):
        raise LookupError
    return value


def _arguments(text: str) -> list[str]:
    """What stands between the commas of a resolver's arguments, without those within braces."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter == "{") - (letter == "}")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts]
