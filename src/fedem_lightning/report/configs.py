"""The configuration of a run as reports read it."""

from pathlib import Path
from typing import Any

from fedem_lightning.records.configs import flatten, read_yaml, resolved, with_data_dir

_NEUTRAL = {"seed": 0, "data_dir": "", "run_dir": None}
"""Values set in a configuration before it is resolved, so that values derived from them (dataset.seed) agree too."""


def read_config(path: Path) -> dict[str, Any]:
    """A run's configuration with dotted keys, resolved as if its seed were 0.

    Raises:
        UserError: see `read_yaml` and `resolved`.

    """
    return flatten(resolved(read_yaml(path) | _NEUTRAL))


def read_tree(path: Path) -> dict[str, Any]:
    """A run's configuration as nested dictionaries, resolved with its own seed and this machine's folder of data sets.

    Raises:
        UserError: see `read_yaml` and `resolved`.

    """
    return resolved(with_data_dir(read_yaml(path)))
