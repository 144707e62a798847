"""A composed configuration is checked before data are read: the run's own keys, and the arguments of all it will make.

What a setting may be is said by the annotations of the constructor that takes it, a user's own class included. Parts
that cost nothing, such as optimisers and an adaptation, are made once, so that their constructors speak early, too.
"""

import pkgutil
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Annotated, Any, Literal

from annotated_types import MinLen
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf, open_dict

from fedem_lightning.run.commands import user_message
from fedem_lightning.settings.check import AllowedValues, parameters
from fedem_lightning.settings.errors import UserError, given, meant, one_line, require
from fedem_lightning.settings.keys import GROUPS, HANDED, LOOKS, NAMED, NEEDED, flatten, shipped
from fedem_lightning.settings.ranges import TRAINER, Initialization, Positive, PositiveInt, Seed, Weights
from fedem_lightning.settings.signatures import signature

_OWN: dict[str, Any] = {
    "fidelity": Literal["paper", "reference"],
    "scores": Literal["own", "global"],
    "seed": Seed,
    "data_dir": str,
    "run_dir": Annotated[str, MinLen(1), "the name of a folder"] | float | None,  # 3 is a number
    "ckpt_path": str | None,
    "case": str | None,  # of an experiment with several,
    "cases": Sequence[str] | Mapping[str, Mapping[str, Any]] | None,  # which its file lists
    "mixing_weights": Weights,
    "n_components": PositiveInt | None,
    "initialization": Initialization,
    "personalize_steps": PositiveInt,
    "default_lr": Positive,
    "learning_rates": Mapping[str, Any],
    "method_settings": Mapping[str, Mapping[str, Any]],
    "rates_chosen_for": str | None,
    "local_training": Mapping[str, Any],
}
_OTHER_VALUES = {"trainer": TRAINER, "algorithm": {"batch_size": PositiveInt | Literal["auto"]}}
"""What a configuration may give other than what the annotations of the class say."""
_MAY_MISS = ("run_dir", "n_components")
_CHEAP = ("algorithm.", "adaptation", "aggregation", "faults", "compression", "engine", "network.")
"""What stands under these keys is made for a try."""


def check_configuration(config: DictConfig, typed: Collection[str] | None = None) -> None:
    """Checks what the run reads, and the arguments of everything that it will make; UserError: the first wrong key.

    With the keys that the user has `typed` it takes no time: it imports no class and makes nothing, and leaves to the
    next call, which has none, what only another package's class or a constructor can say.
    """
    values: dict[str, Any] = OmegaConf.to_container(config, resolve=True)  # type: ignore[assignment]
    values |= {key: None for key in _MAY_MISS if values.get(key) == "???"}
    missing = [key for key, value in flatten(values).items() if value == "???"]
    require(not missing, f"{''.join(missing[:1])}: a value is missing")
    for key, hint in _OWN.items():
        AllowedValues(hint).check(key, values.get(key))
    case, cases = values.get("case"), values.get("cases") or [None]
    require(case in cases, f"case: expected {', '.join(map(str, cases))}, got {case}")
    written = OmegaConf.to_yaml(config, resolve=False)
    known = _reads(f"{written}{shipped('algorithm')}{shipped('adaptation')}")
    for key, value in flatten({part: values[part] for part in ("learning_rates", "method_settings")}).items():
        require(key in known, f"{key}: no such key{meant(key, known)}")
        if key.startswith("learning_rates."):
            AllowedValues(Positive | None).check(key, value)
    for key in values.keys() - _OWN.keys() - {*GROUPS}:
        read = re.search(rf"[{{,:] *{re.escape(str(key))}\b", written)
        require(read is not None, f"{key}: nothing reads this key{meant(key, [*_OWN, *GROUPS, 'experiment'])}")
    for group in GROUPS:
        value = values.get(group)
        if group in NAMED:
            AllowedValues(Mapping[str, Mapping[str, Any] | None] | None).check(group, value)
            parts = {f"{group}.{name}": part for name, part in (value or {}).items() if part is not None}
        else:
            parts = {group: value} if value or group in NEEDED else {}
        for key, part in parts.items():
            AllowedValues(Mapping[str, Any]).check(key, part)
            _check_part(key, {"_target_": None, **part}, typed)


def keys_typed(overrides: Sequence[str]) -> set[str]:
    """The keys of the words that a user has typed."""
    return {word.lstrip("+").partition("=")[0] for word in overrides}


def _reads(text: str) -> list[str]:
    """The rates and settings of methods that a configuration's interpolations read."""
    return re.findall(r"\b(?:learning_rates|method_settings)\.[\w.]+", text)


def _check_part(key: str, part: dict[str, Any], typed: Collection[str] | None) -> None:
    """Checks the arguments of what a part of a configuration makes; makes it, too, if it costs nothing."""
    path, handed = part["_target_"], HANDED.get(key, ())
    takes = parameters(_target(f"{key}._target_", path)) if typed is None else signature(str(path))
    known = takes.known | {name: AllowedValues(hint) for name, hint in _OTHER_VALUES.get(key, {}).items()}
    for name, value in part.items():
        place = f"{key}.{name}"
        if name.startswith("_") or (key == "backbone" and value is None) or place in LOOKS:
            continue  # a null of the backbone's is for the data to say
        taken = name not in handed and (takes.open or name in known)
        taken = taken or (typed is not None and place not in typed)  # `own_targets` may remove what is not typed
        kind = str(path).rpartition(".")[2]
        require(taken, f"{place}: {kind} takes no such argument{meant(name, known.keys() - {*handed})}")
        if not _check_within(place, value, typed) and name in known:
            known[name].check(place, value)
    if typed is None and key.startswith(_CHEAP):
        try:
            made = instantiate(part)
            if part.get("_partial_") and "optimizer" in key:
                import torch  # slow

                made([torch.nn.Parameter(torch.zeros(1))])  # torch's annotations say no ranges
        except Exception as error:  # of any class
            raise UserError(user_message(error, key) or f"{key}: {one_line(error)}") from error


def _check_within(path: str, value: Any, typed: Collection[str] | None) -> bool:
    """Checks the parts in a value; whether there are any."""
    if isinstance(value, dict) and "_target_" in value:
        _check_part(path, value, typed)
        return True
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return any([_check_within(f"{path}.{name}", part, typed) for name, part in inner])


def _target(key: str, path: Any) -> Callable[..., Any]:
    """What a path names; UserError if it cannot be imported, or not be called."""
    require(isinstance(path, str), f"{key}: expected MODULE.NAME of a class or a function, got {given(path)}")
    try:
        result: Callable[..., Any] = pkgutil.resolve_name(path)
    except Exception as error:  # importing somebody's module may fail in any way
        raise UserError(f"{key}: cannot import {path} ({one_line(error)})") from error
    require(callable(result), f"{key}: expected a class or a function, {path} is none")
    return result


def own_targets(config: DictConfig, overrides: Sequence[str]) -> dict[str, str]:
    """Prepares for classes of the user's own, such as `backbone._target_=mine.Net`, in place of those of the choices.

    Keys of the choice that the class does not take are removed, unless the user has typed them; so are the default's
    local steps where somebody has set `algorithm.local_epochs`. Rates that were chosen for SGD do not count for another
    optimiser: its rate is one that the user has typed, or its default. It returns {"backbone": "Net"}, the name that
    replaces the choice's; {}: the network is a choice.
    """
    from fedem_lightning.local.optimizers import ClientOptimizer, ClientSGD  # PyTorch

    typed = keys_typed(overrides)
    steps, passes = "algorithm.local_steps", "algorithm.local_epochs"
    sets_passes = passes in typed or OmegaConf.select(config, passes) not in (None, 1)
    if sets_passes and not typed & {steps, "local_training.local_steps"}:
        config.local_training.local_steps = None
    for key in ("backbone", "algorithm.client_optimizer", "adaptation.client_optimizer"):
        options = OmegaConf.select(config, key)
        try:
            kind = pkgutil.resolve_name(str(options["_target_"]))
            takes = parameters(kind)
        except Exception:  # there is none; or importing fails, which `check_configuration` says
            continue
        other = isinstance(kind, type) and issubclass(kind, ClientOptimizer) and kind is not ClientSGD
        if takes.open or not (other or f"{key}._target_" in typed):
            continue
        with open_dict(config):
            for name in [str(name) for name in options if not str(name).startswith("_")]:
                if name not in takes.known and f"{key}.{name}" not in typed:
                    del options[name]
        rate = _reads(str(OmegaConf.to_container(options, resolve=False).get("lr")))  # type: ignore[union-attr]
        if other and rate and not typed & {*rate} and "lr" in takes.known:
            options.lr = takes.known["lr"].default
    own_network = "backbone._target_" in typed
    return {"backbone": str(config.backbone._target_).rpartition(".")[2]} if own_network else {}
