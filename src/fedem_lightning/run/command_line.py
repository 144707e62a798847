"""Mistakes on the command line, in one line with the nearest name: Hydra would print a trace, or let them pass."""

import difflib
import re
from argparse import Namespace
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NoReturn

from hydra import compose, initialize_config_dir
from hydra._internal.utils import get_args_parser
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, Override, QuotedString, RangeSweep
from hydra.errors import HydraException
from hydra.utils import get_object
from omegaconf import DictConfig, OmegaConf

from fedem_lightning.errors import UserError, one_line, require
from fedem_lightning.settings.keys import BY_NAME, KEYS, handed_by_run
from fedem_lightning.settings.shipped import CONFIG_DIR, choices

_NEEDED = {key.name for key in KEYS if key.needed}
OF_ONE = {key.name for key in KEYS if key.single}
_WITH_KEYS = {key.name for key in KEYS if key.kind in ("one", "optional", "named")}
"""Groups of which GROUP={KEY: VALUE} sets keys; one without a default has none."""
_LONGEST_KEY = 200
"""Characters: Hydra looks for a file of the key's name, and file systems take up to 255 bytes."""


def check_command_line(words: list[str], config_dir: Path) -> None:
    """Looks at what the user typed.

    Args:
        words: of the command line.
        config_dir: of the package.

    Raises:
        UserError: an option that does not exist, an override that cannot be read, or one that the run cannot do with.

    """
    parser = get_args_parser()
    parser.error = _refuse  # type: ignore[method-assign]
    given, unknown = parser.parse_known_args(words)
    for word in unknown:
        option = next((other for other in words if other.startswith("-")), "")
        between = "=" in word and not word.startswith("-") and option
        require(not between, f"{option}: options stand before all KEY=VALUE, or after them; see --help")
        near = difflib.get_close_matches(word.partition("=")[0], [*parser._option_string_actions, "--version"], n=1)
        hint = f"did you mean {near[0]}?" if near else "see --help"
        raise UserError(f"{word}: no such option; {hint}")
    groups = choices(config_dir) | (choices(Path(given.config_dir)) if given.config_dir else {})
    for override in map(read_override, given.overrides):
        key, value = override.key_or_group, override.value()
        needed = key in _NEEDED or key.endswith("._target_")
        require(not (override.is_delete() and needed), f"{key}: it cannot be removed, the run needs it")
        endless = isinstance(value, RangeSweep) and value.step == 0
        require(not endless, f"{override.input_line}: the step of a range is not 0")
        if key not in groups or override.is_delete():
            continue
        swept = value.list if isinstance(value, ChoiceSweep) else [] if override.is_sweep_override() else [value]
        for name in swept:
            named = isinstance(name, str | QuotedString | list) and name != ""
            named = named or (isinstance(name, dict) and key in _WITH_KEYS)
            require(named, no_choice(key, "null" if name is None else str(name), groups[key]))
        single = f"{override.input_line}: expected one choice; -m {key}=A,B makes a run of each"
        require(not (isinstance(value, list) and key in OF_ONE), single)
    if given.package is not None or given.config_name is not None:
        _check_flags(given)


def check_added(config: DictConfig, overrides: list[str]) -> None:
    """Looks at what the user adds with `+`, which Hydra lets pass whatever its name.

    Raises:
        UserError: the target takes no such argument, nothing reads the key, or its name is nearly that of another.

    """
    for override in map(parsed, overrides):
        key = override.key_or_group
        part, (parent, _, name) = key.partition(".")[0], key.rpartition(".")
        node = OmegaConf.select(config, parent) if parent else config
        added = override.is_add() or override.is_force_add()
        if not added or key in BY_NAME or not isinstance(node, DictConfig) or name not in node or name.startswith("_"):
            continue  # the last two: a group, or a target of the user's own
        own = key if part in BY_NAME else part
        others = [other for other in dotted_keys(OmegaConf.to_container(config)) if f"{other}.".find(f"{own}.") != 0]
        takes = name not in handed_by_run(parent) and _takes(node._target_, name) if "_target_" in node else None
        if takes is not None:
            wrong = not takes
        elif part not in BY_NAME:  # only interpolations can read it
            wrong = re.search(rf"[{{,:] *{re.escape(part)}\b", OmegaConf.to_yaml(config, resolve=False)) is None
        else:  # who reads the keys of other parts is not known
            siblings = [other.rpartition(".")[2] for other in others if other.rpartition(".")[0] == parent]
            known = parent == "local_training" or "_target_" in node
            wrong = known and bool(difflib.get_close_matches(name, siblings, cutoff=0.8))
        require(not wrong, no_key(key, others))


def _check_flags(given: Namespace) -> None:
    """Looks for what --package and --config-name name, which Hydra would miss in the middle of its work."""
    try:
        config = with_options(given.overrides, given)
    except Exception:  # Hydra says so itself
        return
    missing = next((key for key in sorted(_NEEDED) if "." not in key and key not in config), None)
    require(missing is None, f"--config-name: it lacks {missing}; begin the file with defaults: [config]")
    there = given.package in (None, "_global_") or OmegaConf.select(config, given.package) is not None
    require(there, f"--package {given.package}: the configuration has no such key")


def with_options(lines: list[str], options: Namespace, hydras: bool = True) -> DictConfig:
    """The configuration that these overrides make of the one that the options name, with Hydra's own or without."""
    name, own = options.config_name or "config", Path(options.config_dir or CONFIG_DIR).absolute()
    home, other = (own, CONFIG_DIR) if (own / f"{name}.yaml").is_file() else (CONFIG_DIR, own)
    with initialize_config_dir(str(home), version_base="1.3"):
        return compose(name, [*lines, f"hydra.searchpath=[file://{other}]"], return_hydra_config=hydras)


def _refuse(message: str) -> NoReturn:
    raise UserError(message)


def parsed(word: str) -> Override:
    """An override, as Hydra reads it."""
    return OverridesParser.create().parse_override(word)


def read_override(word: str) -> Override:
    """An override of the user's.

    Raises:
        UserError: it cannot be read.

    """
    require("=" in word or word.startswith("~"), f"{word}: expected KEY=VALUE, +KEY=VALUE or ~KEY")
    require(not re.search("[\ud800-\udfff]", word), f"{word}: it has bytes that are no text (UTF-8)")
    try:
        override = parsed(word)
    except (HydraException, RecursionError, ValueError) as error:  # the last: a number of more than 4300 digits
        raise UserError(f"{word}: Hydra cannot read this ({one_line(error)})") from None
    key = override.key_or_group
    require(key not in ("", "hydra") and len(key) <= _LONGEST_KEY, f"{word}: expected KEY=VALUE, +KEY=VALUE or ~KEY")
    return override


def _takes(path: str, name: str) -> bool | None:
    """Whether a target takes this argument; None where it hands arguments on to something unknown."""
    from fedem_lightning.settings.check import parameters  # pydantic, which a misspelt group does not wait for

    try:
        known, is_open = parameters(get_object(path))
    except Exception:  # importing somebody's module may fail in any way; the run then says how
        return None
    return True if name in known else None if is_open else False


def no_choice(group: str, choice: str, options: Iterable[str], before: str = "") -> str:
    """One line on a choice that does not exist; before="+": the group has no default."""
    near = difflib.get_close_matches(choice, list(options), n=1)
    there_are = f"there are {', '.join(sorted(options))}; choices of your own need --config-dir"
    meant = f"{before}{group}={near[0]}" if before and near else "".join(near)
    return f"{group}={choice}: no such choice; " + (f"did you mean {meant}?" if near else there_are)


def no_key(key: str, keys: list[str]) -> str:
    """One line on a key that does not exist."""
    keys = [k for k in keys if k.startswith("hydra") == key.startswith("hydra")]
    near = nearest_keys(key, keys + [f"+{g}" for g in choices(CONFIG_DIR) if g not in keys and "/" not in g])
    return f"{key}: no such key; " + (
        f"did you mean {' or '.join(near)}?" if near else "--cfg job shows those there are"
    )


def nearest_keys(key: str, keys: list[str]) -> list[str]:
    """The keys that `key` may have meant, three at most: of the same name elsewhere, else the one spelt most alike."""
    parent, _, name = key.rpartition(".")
    names = {k: k.rpartition(".")[2] for k in keys if not k.rpartition(".")[2].startswith("_")}
    found = [k for k, other in names.items() if other in (name, _initials(name))]
    if not found:  # beside the key, if its part is there: fedavg has no n_component, dataset.n_components is another
        near = {k: other for k, other in names.items() if parent not in keys or k.rpartition(".")[0] == parent}
        spelt = difflib.get_close_matches(name, near.values(), n=1, cutoff=0.65)
        found = [k for k, other in near.items() if other in spelt]
    part = key.partition(".")[0]
    return ([k for k in found if k.partition(".")[0] == part] or found)[:3]


def _initials(name: str) -> str:
    """learning_rate is lr."""
    return "".join(word[:1] for word in name.split("_")) if "_" in name else name


def dotted_keys(tree: Any, prefix: str = "") -> Iterator[str]:
    """All dotted keys, those of parts as well."""
    for name, part in tree.items() if isinstance(tree, dict) else ():
        yield f"{prefix}{name}"
        yield from dotted_keys(part, f"{prefix}{name}.")


def check_shadowed() -> None:
    """Looks for files of the user's that Hydra would not read, because the package has some of the same names.

    Raises:
        UserError: there is one, and it says something else.

    """
    for folder in users_config_dirs():
        for own in sorted(folder.rglob("*.yaml")):
            name = own.relative_to(folder)
            ours = CONFIG_DIR / name
            if ours.is_file() and own.read_bytes() != ours.read_bytes():
                raise UserError(f"{own}: the package has {name} too, and would use that; give yours another name")


def users_config_dirs() -> list[Path]:
    """The folders of the user's own configurations (`--config-dir`)."""
    sources = HydraConfig.get().runtime.config_sources if HydraConfig.initialized() else ()
    return [Path(s.path) for s in sources if s.schema == "file" and Path(s.path) != CONFIG_DIR]
