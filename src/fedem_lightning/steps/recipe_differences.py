"""What two recipes of an algorithm differ in: the one of a checkpoint, and that of the run that would go on from it."""

import inspect
from typing import Any

from fedem_lightning.records.recipes import recipe
from fedem_lightning.records.remaking import without_gone
from fedem_lightning.settings.check import parameters
from fedem_lightning.settings.keys import flatten

NOT_TRAINED = (
    *("_target_", "n_clients", "engine", "adaptation", "scored_clients"),
    *(f"personalize_{name}" for name in ("fraction", "steps")),
)
"""Arguments on which training does not depend, up to the last bits, or which are compared elsewhere."""
_GROUPS = ("backbone", "aggregation", "compression", "faults", "networks", "seed")
"""Arguments of an algorithm that are keys of their own in a configuration."""


def recipe_difference(before: dict[str, Any], now: dict[str, Any], kind: Any) -> str | None:
    """The first key in which two recipes of a class's algorithms differ, with both values; None: they are the same.

    `before` is that of a checkpoint ({}: an older one, which has none); nothing in it is made.
    """
    if not before:
        return None
    known = {name: part.default for name, part in parameters(kind).known.items()}
    defaults = recipe({name: value for name, value in known.items() if value is not inspect.Parameter.empty})
    a, b = (
        flatten({k: v for k, v in (defaults | r).items() if k not in NOT_TRAINED}) for r in (without_gone(before), now)
    )
    for key in sorted(a.keys() | b.keys()):
        remade = key in ("backbone.pretrained", "backbone.body.pretrained")  # from a file, which has the weights
        if a.get(key) != b.get(key) and not remade:
            name = key if key.split(".")[0] in _GROUPS else f"algorithm.{key}"
            return f"{name} was {a.get(key)}, now it is {b.get(key)}"
    return None
