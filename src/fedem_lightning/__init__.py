"""fedem-lightning: personalised federated learning in simulation, with FedEM at its core."""

from typing import Any as _Any

import lazy_loader as _lazy

from fedem_lightning.settings.startup import quieten_lightning as _quieten_lightning

_quieten_lightning()
_get, __dir__, __all__ = _lazy.attach_stub(__name__, __file__)  # what __init__.pyi lists


def __getattr__(name: str) -> _Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("fedem-lightning")
    return _get(name)
