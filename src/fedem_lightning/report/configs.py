"""Configurations of runs, also of foreign ones: read without calling anything, and without the environment."""

import os
import re
from pathlib import Path
from typing import Any

import yaml
from omegaconf._utils import get_yaml_loader

from fedem_lightning.errors import UserError, require
from fedem_lightning.records.chosen import find_chosen
from fedem_lightning.records.config_shape import text_of

_NEUTRAL = {"seed": 0, "data_dir": "", "run_dir": None}
"""Values set in a configuration before it is resolved, so that values derived from them (dataset.seed) agree too."""
_MOST_STEPS, _MOST_LETTERS = 50_000, 10_000
_ONE = re.compile(r"\$\{((?:[^${}]|\$(?!\{)|\$\{(?:[^{}]|\{[^{}]*\})*\})*)\}")
"""An interpolation, with others inside it up to two deep."""


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """The quick loader, with OmegaConf's rules for numbers and dates: 1e-3 is a number."""


_Loader.yaml_implicit_resolvers = get_yaml_loader().yaml_implicit_resolvers


def read_config(path: Path) -> dict[str, Any]:
    """A run's configuration, resolved as if its seed were 0, with dotted keys.

    Interpolations of keys and those of this package's own configurations (`oc.select`, `first`, `by_fidelity`,
    `chosen`) are resolved. Any other, such as `${oc.env:X}`, stays as it is written.

    Raises:
        UserError: the configuration is unreadable, larger than 1 MB, nested more than 50 deep, or has aliases.

    """
    return _resolver(path, _NEUTRAL).flat()


def read_tree(path: Path) -> dict[str, Any]:
    """A run's configuration as nested dictionaries, resolved as `read_config` does, with its own seed.

    Data that the run kept in the default place are looked for where this machine keeps them.
    """
    read = _resolver(path, {})
    if str(read.tree.get("data_dir", "")).startswith("${oc.env:FEDEM_LIGHTNING_DATA,"):
        read.tree["data_dir"] = os.environ.get("FEDEM_LIGHTNING_DATA", "~/.cache/fedem-lightning")
    return read.nested()


def _resolver(path: Path, changed: dict[str, Any]) -> "_Resolver":
    try:
        tree = yaml.load(text_of(path), Loader=_Loader)
        require(isinstance(tree, dict), "broken: .hydra/config.yaml has no keys")
    except UserError:
        raise
    except Exception as error:  # no text, no YAML, a list instead of keys, ...
        raise UserError(f"broken: .hydra/config.yaml is unreadable ({type(error).__name__})") from error
    return _Resolver(tree | changed)


class _Resolver:
    """Resolves the interpolations of one configuration, in a limited number of steps."""

    def __init__(self, tree: dict[Any, Any]) -> None:
        self.tree, self.steps = tree, 0

    def flat(self) -> dict[str, Any]:
        """All values by dotted key."""
        found: dict[str, Any] = {}
        self._flatten(self.tree, (), found)
        return found

    def nested(self) -> dict[str, Any]:
        """The tree with its values resolved."""
        return {str(key): self._nest(part, (str(key),)) for key, part in self.tree.items()}

    def _nest(self, value: Any, path: tuple[str, ...]) -> Any:
        value = self._resolved(value, path)
        if isinstance(value, dict):
            return {str(key): self._nest(part, (*path, str(key))) for key, part in value.items()}
        return [self._nest(part, path) for part in value] if isinstance(value, list) else value

    def _flatten(self, value: Any, path: tuple[str, ...], found: dict[str, Any]) -> None:
        value = self._resolved(value, path)
        if not isinstance(value, dict):
            found[".".join(path)] = [self._resolved(v, path) for v in value] if isinstance(value, list) else value
            return
        for key, part in value.items():
            self._flatten(part, (*path, str(key)), found)

    def _resolved(self, value: Any, path: tuple[str, ...]) -> Any:
        """A value without interpolations that this class knows; others stay as they are written."""
        self.steps += 1
        require(self.steps <= _MOST_STEPS, "broken: .hydra/config.yaml has too many values")
        if not isinstance(value, str) or "${" not in value:
            return value
        whole = _ONE.fullmatch(value)
        try:
            found = self._meant(whole[1], path) if whole else _ONE.sub(lambda m: str(self._meant(m[1], path)), value)
            return value if isinstance(found, str) and len(found) > _MOST_LETTERS else found
        except (LookupError, RecursionError):
            return value

    def _meant(self, inner: str, path: tuple[str, ...]) -> Any:
        """The value of the interpolation ${inner}; LookupError: it is not known here."""
        name, given, rest = inner.partition(":")
        if not given:
            return self._at(inner.strip(), path)
        values = [part.strip() for part in re.split(r",(?![^{]*\})", rest)]
        if name == "oc.select" and len(values) == 2:
            try:
                return self._at(values[0], path)
            except LookupError:
                return self._argument(values[1], path)
        if name == "chosen" and len(values) > 1:
            return self._argument(values[-1], path) if (v := self._chosen(values[:-1])) is None else v
        if name == "by_fidelity" and len(values) == 2:
            return self._argument(values[self.tree.get("fidelity") == "reference"], path)
        if name == "first":
            return next((v for part in values if (v := self._argument(part, path)) is not None), None)
        raise LookupError(name)

    def _chosen(self, keys: list[str]) -> Any:
        def select(key: str) -> Any:
            try:
                return self._at(key, ())
            except LookupError:
                return None

        return find_chosen(select, keys, None).value

    def _argument(self, text: str, path: tuple[str, ...]) -> Any:
        return self._resolved(text, path) if "${" in text else yaml.load(text, Loader=_Loader)

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
