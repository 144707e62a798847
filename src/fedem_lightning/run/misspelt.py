"""What a misspelt override may have meant: the nearest key or choice, said in one line."""

import difflib
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException, MissingConfigException
from hydra.utils import get_object
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from fedem_lightning.errors import UserError
from fedem_lightning.settings.keys import BY_NAME, handed_by_run
from fedem_lightning.settings.shipped import CONFIG_DIR, choices

_UNKNOWN = re.compile(r"Could not (?:override|delete from config\.) '([^']+)'")  # in Hydra's messages


def likely_meant(
    error: HydraException, overrides: list[str], config_dir: Path | None = None, config_name: str = "config"
) -> UserError | None:
    """What the user probably wanted; None if the error is not about a name.

    Args:
        error: from composing the configuration.
        overrides: what the user typed.
        config_dir: a folder with more configurations (--config-dir).
        config_name: the primary configuration (--config-name).

    """
    if isinstance(error, MissingConfigException):
        group, _, choice = (error.missing_cfg_file or "").rpartition("/")
        if (group, choice) == ("hydra/sweeper", "optuna"):
            return UserError('hydra/sweeper=optuna: not installed; pip install "fedem-lightning[optuna]"')
        return UserError(no_choice(group, choice, error.options)) if error.options else None
    replaced = re.match(r"Error merging override \+*([^=\n]+)=(.*)", str(error))
    if replaced and "Cannot merge" in str(error.__cause__):
        what = "a list" if "object_type=list" in str(error.__cause__) else "keys with values"
        return UserError(f"{replaced.group(1)}: expected {what}, got {replaced.group(2)}")
    found = _UNKNOWN.search(str(error))
    if found is None or "Did you mean" in str(error):
        return None
    key = found.group(1)
    given = next((o for o in _parsed(overrides) if o.key_or_group == key), None)
    groups = choices(CONFIG_DIR)
    if key in groups:
        choice = _first(given) if given else ""
        if given and choice in groups[key]:
            return UserError(f"{key}: the configuration has no default for this group, so add it: +{given.input_line}")
        return UserError(no_choice(key, choice, groups[key], f"+{key}="))
    config = _composed(overrides, key, config_dir, config_name)
    return None if config is None else UserError(_no_key(key, given, config))


def check_added(config: DictConfig, overrides: list[str]) -> None:
    """Looks at what the user adds with `+`, which Hydra lets pass whatever its name.

    Raises:
        UserError: the target takes no such argument, nothing reads the key, or its name is nearly that of another.

    """
    for override in _parsed(overrides):
        parent, _, name = override.key_or_group.rpartition(".")
        node = OmegaConf.select(config, parent) if parent else config
        added = override.is_add() or override.is_force_add()
        if not added or not isinstance(node, DictConfig) or name not in node or name.startswith("_"):
            continue  # the last two: a group, or a target of the user's own
        others = [key for key in _keys(OmegaConf.to_container(config)) if key != override.key_or_group]
        if override.key_or_group in BY_NAME:
            continue
        if "_target_" in node:
            wrong = name in handed_by_run(parent) or _takes(node._target_, name) is False
        elif parent:  # who reads the keys of other parts is not known
            siblings = [key.rpartition(".")[2] for key in others if key.rpartition(".")[0] == parent]
            wrong = parent == "local_training" and bool(difflib.get_close_matches(name, siblings, cutoff=0.8))
        else:  # only interpolations can read it
            wrong = re.search(rf"[{{,:] *{re.escape(name)}\b", OmegaConf.to_yaml(config, resolve=False)) is None
        if wrong:
            raise UserError(_no_key(override.key_or_group, None, config, others))


def check_added_names(config: DictConfig, part: str) -> None:
    """Looks for misspelt names in a part of the configuration whose keys anybody may add to.

    Raises:
        UserError: a name that the package has not there, that no choice has and nothing reads, but that is nearly one.

    """
    shipped = [str(name) for name in OmegaConf.select(OmegaConf.load(CONFIG_DIR / "settings.yaml"), part)]
    added = [str(name) for name in config[part] if name not in shipped]
    if not added:
        return
    groups = [names for folder in (CONFIG_DIR, *users_config_dirs()) for names in choices(folder).values()]
    chosen, read = {name for names in groups for name in names}, OmegaConf.to_yaml(config, resolve=False)
    for name in added:
        near = difflib.get_close_matches(name, shipped, n=1, cutoff=0.75)
        if near and name not in chosen and f"{part}.{name}" not in read:
            raise UserError(f"{part}.{name}: nothing reads it; did you mean {near[0]}?")


def users_config_dirs() -> list[Path]:
    """Folders with configurations that the user has added."""
    sources = HydraConfig.get().runtime.config_sources if HydraConfig.initialized() else ()
    return [Path(s.path) for s in sources if s.schema == "file" and Path(s.path) != CONFIG_DIR]


def check_shadowed(config_dirs: Iterable[Path]) -> None:
    """Looks for files of the user's that Hydra would not read, because the package has some of the same names.

    Raises:
        UserError: there is one, and it says something else.

    """
    for folder in config_dirs:
        for own in sorted(folder.rglob("*.yaml")):
            ours = CONFIG_DIR / own.relative_to(folder)
            if ours.is_file() and own.read_bytes() != ours.read_bytes():
                name = own.relative_to(folder)
                raise UserError(f"{own}: the package has {name} too, and would use that; give yours another name")


def _parsed(overrides: list[str]) -> list[Override]:
    return OverridesParser.create().parse_overrides(overrides)


def no_choice(group: str, choice: str, options: Iterable[str], before: str = "") -> str:
    """One line on a choice that does not exist; `before` stands before the one that may be meant."""
    near = difflib.get_close_matches(choice, list(options), n=1)
    there_are = f"there are {', '.join(sorted(options))}; choices of your own need --config-dir"
    hint = f"did you mean {before}{near[0]}?" if near else there_are
    return f"{group}={choice}: no such choice; {hint}"


def _no_key(key: str, given: Override | None, config: DictConfig, keys: list[str] | None = None) -> str:
    """One line on a key that does not exist; `given` is the override, where a `+` may be all that it lacks."""
    parent, _, name = key.rpartition(".")
    target, takes = None, None
    if given is not None and not given.is_delete() and name not in handed_by_run(parent):
        node = OmegaConf.select(config, parent) if parent else None
        target = node.get("_target_") if isinstance(node, DictConfig) else None
        takes = _takes(target, name) if target else None
    short = str(target).rpartition(".")[2]
    if given is not None and takes:
        lacking = f"{key}: the configuration does not list it, but {short} takes it: +{given.input_line}"
        return _refusal(config, key, given) or lacking
    if keys is None:
        keys = list(_keys(OmegaConf.to_container(config)))
    if key in keys:
        return f"{key}: it is null already, which Hydra cannot remove; leave ~{key} out"
    keys = [k for k in keys if k.startswith("hydra") == key.startswith("hydra")]
    near = nearest_keys(key, keys + [f"+{g}" for g in choices(CONFIG_DIR) if g not in keys and "/" not in g])
    hint = f"did you mean {' or '.join(near)}?" if near else "--cfg job shows those there are"
    if given is not None and target and takes is None and not near:
        hint = f"if {short} takes it, add it with +{given.input_line}"
    return f"{key}: no such key; {hint}"


def _refusal(config: DictConfig, key: str, given: Override) -> str | None:
    """What the run would say of a key that is to be added, so that nobody is advised what is then refused."""
    from fedem_lightning.run.building import (  # Lightning is loaded when this is needed
        build_callbacks,
        build_trainer,
        quieten_lightning,
    )
    from fedem_lightning.run.failures import user_message
    from fedem_lightning.run.gate import check_group

    quieten_lightning()
    group, here = key.partition(".")[0], Path()
    try:
        OmegaConf.update(config, key, _parsed([f"{key}={_first(given)}"])[0].value(), force_add=True)
        check_group(group, OmegaConf.to_container(config[group], resolve=True))
        if group == "trainer":
            build_trainer(config, here, build_callbacks(config, here), devices=1)
    except Exception as error:  # whatever a target makes of it
        return user_message(error)
    return None


def nearest_keys(key: str, keys: list[str]) -> list[str]:
    """The keys that `key` may have meant, three at most: of the same name elsewhere, else the one spelt most alike."""
    by_name = [(k.rpartition(".")[2], k) for k in keys if not k.rpartition(".")[2].startswith("_")]
    parent, _, name = key.rpartition(".")
    found = [k for other, k in by_name if other in (name, _initials(name))]
    if not found and parent in keys:  # not elsewhere: fedavg has no n_component, and dataset.n_components is another
        beside = {other: k for other, k in by_name if k.rpartition(".")[0] == parent}
        found = [beside[other] for other in difflib.get_close_matches(name, beside, n=1)]
    elif not found:
        found = difflib.get_close_matches(key, keys, n=1, cutoff=0.7)
        spelt = difflib.get_close_matches(name, [other for other, _ in by_name], n=1, cutoff=0.75)
        found = found or [k for other, k in by_name if other in spelt]
    part = key.partition(".")[0]
    return ([k for k in found if k.partition(".")[0] == part] or found)[:3]


def _initials(name: str) -> str:
    """learning_rate is lr."""
    return "".join(word[:1] for word in name.split("_")) if "_" in name else name


def _keys(tree: Any, prefix: str = "") -> Iterator[str]:
    """All dotted keys, those of parts as well."""
    for name, part in tree.items() if isinstance(tree, dict) else ():
        yield f"{prefix}{name}"
        yield from _keys(part, f"{prefix}{name}.")


def _composed(overrides: list[str], wrong: str, config_dir: Path | None, config_name: str) -> DictConfig | None:
    """The configuration of the chosen groups, without keys' values; None if that fails too."""
    kept = [o for o in _parsed(overrides) if o.key_or_group != wrong and "." not in o.key_or_group]
    lines = [f"{'+' * o.is_add()}{o.key_or_group}={_first(o)}" for o in kept if not o.is_delete()]
    if config_dir is not None:
        lines.append(f"hydra.searchpath=[file://{config_dir.absolute()}]")
    with initialize_config_dir(str(CONFIG_DIR), version_base="1.3"):
        for chosen in (lines, []):  # the second: with the defaults, if something else is wrong as well
            try:
                return compose(config_name, chosen, return_hydra_config=True)
            except (HydraException, OmegaConfBaseException):
                continue
    return None


def _first(override: Override) -> str:
    """The value, or a sweep's first."""
    line = str(override.input_line).partition("=")[2]
    return next(override.sweep_string_iterator()) if override.is_sweep_override() else line


def _takes(path: str, name: str) -> bool | None:
    """Whether a target takes this argument; None where it hands arguments on to something unknown."""
    from fedem_lightning.settings.check import parameters  # pydantic, which a misspelt group does not wait for

    try:
        known, is_open = parameters(get_object(path))
    except Exception:  # importing somebody's module may fail in any way; the run then says how
        return None
    return True if name in known else None if is_open else False
