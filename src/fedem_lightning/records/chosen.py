"""Settings that were chosen for a data set and a network, as a configuration holds them.

A setting that somebody has to choose for the data, such as `learning_rates.fedem`, is looked up in three places: under
its own key, where the user sets it; under `chosen_for.DATA/NETWORK`, where data sets and experiments bring what was
chosen for these data with this network; else it has a default that does not depend on the data.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

Select = Callable[[str], Any]
"""From a dotted key to its resolved value; None if there is none."""


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
