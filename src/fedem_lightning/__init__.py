"""fedem-lightning: personalised federated learning in simulation, with FedEM at its core."""

from typing import Any as _Any

from fedem_lightning.startup import exports as _exports

__all__, _get, __dir__ = _exports(__name__, __file__)  # what __init__.pyi lists


def __getattr__(name: str) -> _Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("fedem-lightning")
    return _get(name)
