"""The methods that `compare` tries, and their trials: which settings of a method come next, by validation alone."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedem_lightning.settings.errors import meant, require
from fedem_lightning.settings.keys import choices, method_title, shipped

RATE = "algorithm.client_optimizer.lr"
_TUNING_RATE = "adaptation.client_optimizer.lr"
_GRID = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
_FIRST_RATES = (0.1, 0.03, 0.3)

Setting = dict[str, Any]
"""Values of keys of the configuration, as a trial has them."""


@dataclass(frozen=True)
class Candidate:
    """A method with the settings that are tried.

    `others` are values by key, the default first; `base` is the method whose best setting each trial begins with.
    """

    name: str
    title: str
    words: tuple[str, ...]  # that choose it on the command line
    others: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    base: str | None = None
    one_model: bool = False  # whether all clients get the same model


_COMPONENTS = {"n_components": (3, 2, 4, 5)}
_TUNING = {_TUNING_RATE: (0.1, 0.01, 0.03, 0.3), "adaptation.epochs": (1, 5)}


def default_candidates(linear: bool) -> list[Candidate]:
    """The methods of `compare` without `--methods`. Of a `linear` network clients keep the bias, else the head."""
    own = "own bias" if linear else "own head"
    head = ("algorithm.head=bias",) if linear else ()
    tuned = "adaptation=finetune"
    return [
        Candidate("local", "Local", ("algorithm=local",)),
        Candidate("fedavg", "FedAvg", ("algorithm=fedavg",), one_model=True),
        Candidate("fedavg_tuned", "FedAvg, fine-tuned", ("algorithm=fedavg", tuned), _TUNING, "fedavg"),
        Candidate("fedper", f"FedPer, {own}", ("algorithm=fedper", *head)),
        Candidate("hypcluster", "HypCluster", ("algorithm=hypcluster",), _COMPONENTS),
        Candidate("fedem", "FedEM", ("algorithm=fedem",), _COMPONENTS),
        Candidate("fedem_tuned", "FedEM, fine-tuned", ("algorithm=fedem", tuned), _TUNING, "fedem"),
    ]


def candidates(names: Sequence[str], linear: bool) -> list[Candidate]:
    """The named methods, with FedAvg and Local, to which the answer compares them; all defaults without a name.

    A name is one of the defaults', a shipped algorithm's, or the import path of a class of the user's own.
    """
    defaults = {candidate.name: candidate for candidate in default_candidates(linear)}
    if not names:
        return list(defaults.values())
    needed = {"local": None, "fedavg": None, **dict.fromkeys(names)}
    for name in list(needed):
        if name in defaults and (base := defaults[name].base):
            needed |= {base: None}
    order = sorted(needed, key=lambda name: name in defaults and defaults[name].base is not None)  # after their bases
    return [defaults.get(name) or _other(name, defaults) for name in order]


def _other(name: str, defaults: Iterable[str]) -> Candidate:
    """A shipped method that is not among the defaults, or a class by its import path."""
    if "." in name:
        return Candidate(name.rpartition(".")[2], name.rpartition(".")[2], (f"algorithm._target_={name}",))
    known = choices()["algorithm"]
    require(name in known, f"--methods: no method {name}{meant(name, [*known, *defaults])}")
    others = _COMPONENTS if "n_components" in shipped("algorithm")[name] else {}
    return Candidate(name, method_title(name, None), (f"algorithm={name}",), others)


def next_setting(candidate: Candidate, tried: Sequence[tuple[Setting, float]], start: Setting) -> Setting | None:
    """The setting of a method's next trial, from those tried with their validation errors (inf: it diverged).

    First come rates on a logarithmic grid, beyond its edge while the best one lies there; then the other keys, one
    after the other, with the best values so far; then rates between the best one and its neighbours. `start` is empty,
    or the best setting so far of the candidate's base, which each trial takes over. None: nothing is left.
    """
    best, error = min(tried, key=lambda trial: trial[1]) if tried else ({}, math.inf)
    best = {**(best or {key: values[0] for key, values in candidate.others.items()}), **start}
    seen = [setting for setting, _ in tried]
    if candidate.base is None:
        rates = sorted(setting[RATE] for setting in seen)
        new = _rate_of_grid(rates, rates[0] if math.isinf(error) and rates else best.get(RATE))
        if new is not None:
            return {**best, RATE: new}
    for key, values in candidate.others.items():
        for value in values:
            setting = {**best, key: value}
            if setting not in seen and not any(one[key] == value for one in seen):
                return setting
    if candidate.base is not None and best not in seen:
        return best  # the base has found a better setting since
    finer = (
        best[RATE] * 10 ** (sign * odd / 2**depth)
        for depth in range(2, 8)
        for odd in range(1, 2 ** (depth - 1), 2)
        for sign in (-1, 1)
    )
    return next((one for rate in finer if (one := {**best, RATE: float(f"{rate:.2g}")}) not in seen), None)


def _rate_of_grid(rates: Sequence[float], best: float | None) -> float | None:
    """The next rate of the grid: one of the first ones, or one beyond an edge at which the best one lies."""
    first = next((rate for rate in _FIRST_RATES if rate not in rates), None)
    if first is not None or best not in (rates[0], rates[-1]) or best not in _GRID:
        return first
    place = _GRID.index(best) + (1 if best == rates[-1] else -1)
    return _GRID[place] if 0 <= place < len(_GRID) else None


def in_words(setting: Setting) -> str:
    """A setting for readers: "rate 0.1, components 3"."""
    names = {
        RATE: "rate",
        _TUNING_RATE: "tuning rate",
        "adaptation.epochs": "tuning epochs",
        "n_components": "components",
    }
    return ", ".join(f"{names.get(key, key)} {value:g}" for key, value in setting.items())
