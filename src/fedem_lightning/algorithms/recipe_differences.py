"""What two recipes of an algorithm differ in: the one of a checkpoint, and that of the run that would go on from it."""

import functools
import inspect
import pkgutil
import warnings
from typing import Any

import pytorch_lightning as pl
import torch

from fedem_lightning.aggregation import make_aggregation
from fedem_lightning.client_optimizers import ClientSGD
from fedem_lightning.records.recipes import recipe
from fedem_lightning.settings.check import parameters
from fedem_lightning.settings.keys import BY_NAME, handed_by_run

_SCORING = ("scored_clients", *(f"personalize_{name}" for name in ("fraction", "steps", "tolerance", "seen")))
NOT_TRAINED = ("engine", "adaptation", *(f"algorithm.{name}" for name in _SCORING))
"""Keys on which training does not depend, up to the last bits: a run may go on from a checkpoint with others."""
_GROUPS = tuple(name for name in handed_by_run("algorithm") if name in BY_NAME)
"""Arguments of an algorithm that are keys of their own in a configuration."""
_MOST = 4
"""Differences that a line names."""


def recipe_differences(before: dict[str, Any], now: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """The keys of a configuration in which two recipes differ, with both values, without `NOT_TRAINED`.

    Args:
        before: of a checkpoint; {}: an older one, which has none. It is compared, and nothing in it is made.
        now: of this run's algorithm, of the same class.

    """
    if not before:
        return {}
    found: dict[str, tuple[Any, Any]] = {}
    for name in sorted((before.keys() | now.keys()) - {"_target_", "n_clients"}):
        key = {"networks": "network"}.get(name, name if name in _GROUPS else f"algorithm.{name}")
        if key not in NOT_TRAINED:
            default = _defaults(now).get(name)
            a, b = (_chosen(name, part.get(name, default)) for part in (before, now))
            _compare(key, a, b, found)
    return found


def differences_line(found: dict[str, tuple[Any, Any]]) -> str:
    """The differences as a part of a line."""
    named = [f"{key} was {before}, now it is {now}" for key, (before, now) in list(found.items())[:_MOST]]
    return "; ".join(named) + (f"; and {len(found) - _MOST} more" if len(found) > _MOST else "")


def warn_of_other_settings(before: dict[str, Any], now: dict[str, Any], trainer: pl.Trainer | None) -> None:
    """Warns where a fit goes on from a checkpoint of other settings; in Python a lower rate, say, may be meant.

    Args:
        before, now: see `recipe_differences`.
        trainer: of the fit; None: the model is loaded outside of one.

    """
    if trainer is None or trainer.state.fn != "fit" or not trainer.is_global_zero:
        return
    found = recipe_differences(before, now)
    if found:
        warnings.warn(f"ckpt_path: the fit goes on with other settings: {differences_line(found)}", stacklevel=2)


def _compare(key: str, before: Any, now: Any, found: dict[str, tuple[Any, Any]]) -> None:
    """Adds what differs at a key, or below it where both are made by the same class."""
    if before == now:
        return
    if not (isinstance(before, dict) and isinstance(now, dict)) or before.get("_target_") != now.get("_target_"):
        found[key] = (_name(before), _name(now))
        return
    defaults = _defaults(now)
    remade = now.get("config") and now["config"] == before.get("config") and now.get("path") is None  # from a file
    for name in sorted((before.keys() | now.keys()) - {"pretrained"} - ({"path"} if remade else set())):
        _compare(f"{key}.{name}", before.get(name, defaults.get(name)), now.get(name, defaults.get(name)), found)


def _defaults(now: dict[str, Any]) -> dict[str, Any]:
    """The default arguments of what this run's recipe makes."""
    if not isinstance(now.get("_target_"), str):
        return {}
    try:
        known = parameters(pkgutil.resolve_name(now["_target_"])).known
    except Exception:  # a class of the user's own, from where it cannot be imported
        return {}
    return {name: recipe(part.default) for name, part in known.items() if part.default is not inspect.Parameter.empty}


def _chosen(name: str, value: Any) -> Any:
    """An argument of an algorithm; None stands for what the algorithm then takes."""
    if name == "client_optimizer" and value is None:
        return recipe(ClientSGD())
    if name == "server_optimizer" and value is None:
        return recipe(functools.partial(torch.optim.SGD, lr=1.0))
    if name == "aggregation" and (value is None or isinstance(value, str)):
        return recipe(make_aggregation(value))
    return {} if name == "networks" and value is None else value


def _name(value: Any) -> Any:
    """A part by its class."""
    made_by = value.get("_target_") if isinstance(value, dict) else None
    return str(made_by).rpartition(".")[2] if made_by else value
