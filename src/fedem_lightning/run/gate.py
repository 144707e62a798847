"""The gate: a composed configuration is checked before anything is built, loaded or written.

What a setting may be is said by the annotations of the constructor that takes it, a user's own class included. The
keys that the run itself reads are in `settings/keys.py`.
"""

import difflib
import functools
import inspect
import pkgutil
from collections.abc import Callable
from typing import Annotated, Any, Literal, get_args, get_origin

import pytorch_lightning as pl
import torch
from omegaconf import DictConfig, OmegaConf

from fedem_lightning.algorithms import FederatedAlgorithm
from fedem_lightning.algorithms.trainer_options import TRAINER
from fedem_lightning.client_optimizers import ClientSGD
from fedem_lightning.errors import UserError, one_line, require
from fedem_lightning.run.command_line import users_config_dirs
from fedem_lightning.settings.check import AllowedValues, Parameters, parameters
from fedem_lightning.settings.expected import given, takes_objects
from fedem_lightning.settings.keys import BY_NAME, KEYS, Key, handed_by_run
from fedem_lightning.settings.ranges import Positive
from fedem_lightning.settings.shipped import CONFIG_DIR, choices, shipped

_OWN, _NEEDED = ([key for key in KEYS if key.kind == kind] for kind in ("own", "one"))
FLAGS = {"_partial_": bool, "_recursive_": bool, "_convert_": Literal["none", "partial", "object", "all"]}
"""What Hydra reads beside a target."""


def check_configuration(config: DictConfig) -> None:
    """Checks what the run reads, and the arguments of everything that it will build.

    Raises:
        UserError: the first key with a value that cannot be: the key, what is expected, and what was given.

    """
    check_own(config)
    needed, own = ([key.name for key in keys] for keys in (_NEEDED, _OWN))
    for group in (*needed, *(str(key) for key in config if key not in (*needed, *own))):
        check_group(group, _value(config, group))


def check_group(group: str, value: Any) -> None:
    """Checks what a configuration has under one of its keys, without interpolations; see `check_configuration`."""
    if group == "aggregation" and isinstance(value, dict):
        value = {"_target_": "fedem_lightning.Mean"} | value
    kind = BY_NAME[group].kind if group in BY_NAME else "part"
    if kind == "named":
        _require_keys(group, value or {})
        for name, part in (value or {}).items():
            if part is not None:
                _require_keys(f"{group}.{name}", part)
                _check_made(f"{group}.{name}", part, _made_by(group))
    elif kind == "one" or (kind == "optional" and value):
        _require_keys(group, value)
        _check_made(group, value, _made_by(group))
    else:
        _check_within(group, value)


def _made_by(group: str) -> tuple[type, ...]:
    """The classes that a group's choices make."""
    return tuple(pkgutil.resolve_name(path) for path in BY_NAME[group].takes)


def _setting(key: Key) -> AllowedValues:
    """What a value may be."""
    hint = pkgutil.resolve_name(key.takes) if isinstance(key.takes, str) else key.takes
    return AllowedValues(hint | None if key.null else hint)


def check_own(config: DictConfig) -> None:
    """Checks the keys of settings.yaml; see `check_configuration`."""
    for own in _OWN:
        _setting(own).check(own.name, _value(config, own.name))
    known = parameters(FederatedAlgorithm).known | parameters(ClientSGD).known
    for name, value in _value(config, "local_training").items():
        if name in known:
            known[name].check(f"local_training.{name}", value)
    rates, chosen = {"learning_rates": _value(config, "learning_rates")}, _value(config, "chosen_for") or {}
    rates |= {f"chosen_for.{these}.learning_rates": part.get("learning_rates", {}) for these, part in chosen.items()}
    for key, part in rates.items():
        for name, rate in part.items():
            if rate is not None:
                AllowedValues(Positive).check(f"{key}.{name}", rate)
    for part in ("learning_rates", "method_settings"):
        _check_added_names(config, part)
    listed_of, ours = shipped(".")["settings"]["method_settings"], choices(CONFIG_DIR)["algorithm"]
    for method, settings in _value(config, "method_settings").items():
        for name, value in settings.items():  # also of methods that the run does not use
            key, listed = f"method_settings.{method}.{name}", name in listed_of.get(method, {})
            one = not (listed and isinstance(value, dict | list))
            require(one, f"{key}: expected a number, text or null, got {given(value)}")
            free = listed or method not in ours or key in OmegaConf.to_yaml(config, resolve=False)
            instead = f"expected {' or '.join(listed_of[method])}" if method in listed_of else f"use algorithm.{name}"
            require(free, f"{key}: nothing reads it; {instead}")


def _check_added_names(config: DictConfig, part: str) -> None:
    """Looks for misspelt names in a part of the configuration whose keys anybody may add to.

    Raises:
        UserError: a name that the package has not there, that no choice has and nothing reads, but that is nearly one.

    """
    ours = [str(name) for name in shipped(".")["settings"][part]]
    added = [str(name) for name in config[part] if name not in ours]
    if not added:
        return
    groups = [names for folder in (CONFIG_DIR, *users_config_dirs()) for names in choices(folder).values()]
    chosen, read = {name for names in groups for name in names}, OmegaConf.to_yaml(config, resolve=False)
    for name in added:
        near = difflib.get_close_matches(name, ours, n=1, cutoff=0.75)
        if near and name not in chosen and f"{part}.{name}" not in read:
            raise UserError(f"{part}.{name}: nothing reads it; did you mean {near[0]}?")


def _value(config: DictConfig, key: str) -> Any:
    """A value without interpolations; None if the configuration lacks the key."""
    found = OmegaConf.select(config, key, throw_on_missing=True)
    return OmegaConf.to_container(found, resolve=True, throw_on_missing=True) if OmegaConf.is_config(found) else found


def _require_keys(key: str, value: Any) -> None:
    """Raises UserError unless a group, or a part of one, has keys."""
    if isinstance(value, dict) and (value or (key in BY_NAME and BY_NAME[key].kind == "named")):
        return
    offered = choices(CONFIG_DIR).get(key, [])
    what = f"one of {', '.join(offered)}" if offered else "keys with a _target_, or null"
    raise UserError(f"{key}: expected {what}, got {given(value)}")


def _check_made(key: str, part: dict[str, Any], kinds: tuple[type, ...]) -> None:
    """Checks a part that must make one of these."""
    require("_target_" in part, f"{key}._target_: it is missing; it says what is made")
    target = _target(key, part["_target_"])
    if isinstance(target, type) and not part.get("_partial_"):
        names = " or ".join(kind.__name__ for kind in kinds)
        require(issubclass(target, kinds), f"{key}._target_: expected a {names}, got {part['_target_']}")
    _check_part(key, part)


def _check_part(key: str, part: dict[str, Any]) -> None:
    """Checks the arguments of a target."""
    target = _target(key, part["_target_"])
    takes = _takes(target)
    handed = handed_by_run(key)
    for name, value in part.items():
        path = f"{key}.{name}"
        require(isinstance(name, str), f"{path}: expected the name of an argument")
        if name in FLAGS:
            AllowedValues(FLAGS[name]).check(path, value)
        elif name.startswith("_") or name in handed or (key == "backbone" and value is None):
            continue  # a null of the backbone's is for the data to say
        elif path in BY_NAME and BY_NAME[path].effect == "words":
            _setting(BY_NAME[path]).check(path, value)
        elif name in takes.known:
            _check_argument(path, value, takes.known[name])
        else:
            require(takes.open, f"{path}: {part['_target_'].rpartition('.')[2]} takes no such argument")
            _check_within(path, value)
    if part.get("_partial_") and isinstance(target, type) and issubclass(target, torch.optim.Optimizer):
        _try_optimizer(key, target, {name: value for name, value in part.items() if not name.startswith("_")})


def _check_argument(path: str, value: Any, setting: AllowedValues) -> None:
    if isinstance(value, dict) and "_target_" in value and takes_objects(setting.hint):
        _check_made(path, value, _classes(setting.hint))
    elif _has_parts(value) and takes_objects(setting.hint):
        _check_within(path, value)
    else:
        setting.check(path, value)


def _classes(hint: Any) -> tuple[type, ...]:
    """The classes of objects that an annotation allows; `object` if it names none."""
    bare = [get_args(kind)[0] if get_origin(kind) is Annotated else kind for kind in (hint, *get_args(hint))]
    named = [kind for kind in bare if inspect.isclass(kind) and kind is not Any]
    objects = [kind for kind in named if takes_objects(kind) and not getattr(kind, "_is_protocol", False)]
    return tuple(objects) or (object,)


def _check_within(path: str, value: Any) -> None:
    """Checks the parts in something whose own keys are not known."""
    if isinstance(value, dict) and "_target_" in value:
        _check_part(path, value)
    elif isinstance(value, dict | list):
        for name, inner in value.items() if isinstance(value, dict) else enumerate(value):
            _check_within(f"{path}.{name}", inner)


def _has_parts(value: Any) -> bool:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return (isinstance(value, dict) and "_target_" in value) or any(map(_has_parts, inner))


def _target(key: str, path: Any) -> Callable[..., Any]:
    """What a path names.

    Raises:
        UserError: it cannot be imported, or not be called.

    """
    require(path is not None, f"{key}._target_: expected MODULE.NAME of a class or a function, got null")
    AllowedValues(str).check(f"{key}._target_", path)
    try:
        found: Callable[..., Any] = pkgutil.resolve_name(path)
    except Exception as error:  # importing somebody's module may fail in any way
        raise UserError(f"{key}._target_: cannot import {given(path)} ({one_line(error)})") from error
    require(callable(found), f"{key}._target_: expected a class or a function, {path} is none")
    return found


def _takes(target: Callable[..., Any]) -> Parameters:
    """The parameters of a target, with what is known of them beside their annotations."""
    known, is_open = parameters(target)
    if isinstance(target, type) and issubclass(target, pl.Trainer):
        known = known | {name: AllowedValues(hint) for name, hint in TRAINER.items()}
    return Parameters(known, is_open)


def _try_optimizer(key: str, kind: Callable[..., Any], options: dict[str, Any]) -> None:
    """Makes an optimiser of one parameter: the annotations of torch say no ranges."""
    try:
        functools.partial(kind, **options)([torch.nn.Parameter(torch.zeros(1))])
    except Exception as error:  # of any class
        shown = ", ".join(f"{name}={given(value)}" for name, value in options.items())
        raise UserError(f"{key}: the optimiser refuses {shown or 'to have no options'} ({one_line(error)})") from error
