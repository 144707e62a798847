"""Other classes than those for which a configuration was written, by one target or one choice on the command line."""

import pkgutil
import re
from collections.abc import Sequence
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict

from fedem_lightning.client_optimizers import ClientOptimizer, ClientSGD
from fedem_lightning.settings.check import parameters


def own_backbone(config: DictConfig, overrides: Sequence[str]) -> dict[str, str]:
    """Prepares for a network of the user's own, where the command line has `backbone._target_=mine.Net`.

    The keys of the choice that it replaces are for another class. Those that Net does not take are removed, unless the
    user has typed them: `check_configuration` then refuses them.

    Returns:
        {"backbone": "Net"}, the name that replaces the choice's; {}: the network is a choice.

    """
    typed = _typed(overrides)
    if "backbone._target_" not in typed:
        return {}
    path = str(config.backbone._target_)
    try:
        takes = parameters(pkgutil.resolve_name(path))
    except Exception:  # importing somebody's module may fail in any way; check_configuration says how
        return {}
    if not takes.open:
        _remove_others(config, "backbone", takes.known, typed)
    return {"backbone": path.rpartition(".")[2]}


def own_client_optimizers(config: DictConfig, overrides: Sequence[str]) -> None:
    """Prepares for clients with another optimiser than SGD, for which the files of methods are written.

    Of their keys those that the class does not take, such as momentum, are removed, unless the user has typed them:
    `check_configuration` then refuses them. The rates that were chosen for SGD do not count: the rate is the user's
    own, by `learning_rates` or as typed, or the class's default.
    """
    typed = _typed(overrides)
    for part in ("algorithm", "adaptation"):
        key = f"{part}.client_optimizer"
        options = OmegaConf.select(config, key)
        try:
            kind = pkgutil.resolve_name(str(options["_target_"]))
        except Exception:  # there is none; or importing fails, which check_configuration says
            continue
        if kind is ClientSGD or not (isinstance(kind, type) and issubclass(kind, ClientOptimizer)):
            continue
        takes = parameters(kind).known
        _remove_others(config, key, takes, typed)
        raw: Any = OmegaConf.to_container(options, resolve=False)
        rate = str(raw.get("lr"))
        if rate.startswith("${chosen:") and "lr" in takes:
            own = [f"${{{name}}}" for name in re.findall(r"learning_rates\.\w+", rate)]
            options.lr = f"${{first:{','.join([*own, str(takes['lr'].default)])}}}"


def _typed(overrides: Sequence[str]) -> set[str]:
    return {word.lstrip("+").partition("=")[0] for word in overrides}


def _remove_others(config: DictConfig, key: str, takes: Any, typed: set[str]) -> None:
    """Removes what lies under a key and is neither taken nor typed."""
    options = OmegaConf.select(config, key)
    with open_dict(config):
        for name in map(str, list(options)):
            if not (name.startswith("_") or name in takes or f"{key}.{name}" in typed):
                del options[name]
