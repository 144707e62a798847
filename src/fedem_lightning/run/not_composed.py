"""What Hydra does not compose, in one line: what the user may have meant, or why Hydra refuses it."""

import re
from contextlib import suppress
from pathlib import Path

from hydra import compose, initialize_config_dir
from hydra._internal.utils import get_args_parser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException, MissingConfigException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from fedem_lightning.errors import UserError, one_line
from fedem_lightning.run.command_line import (
    OF_ONE,
    check_added,
    dotted_keys,
    no_choice,
    no_key,
    parsed,
    read_override,
    with_options,
)
from fedem_lightning.run.failures import user_message
from fedem_lightning.settings.keys import BY_NAME
from fedem_lightning.settings.shipped import CONFIG_DIR, choices

_UNKNOWN = re.compile(r"Could not (?:override|delete from config\.) '([^']+)'")  # in Hydra's messages


def composed(words: list[str]) -> DictConfig:
    """The configuration that these overrides make, for a command that does not run it.

    Raises:
        UserError: an override cannot be read, or means nothing.

    """
    for word in words:
        read_override(word)
    try:
        with initialize_config_dir(str(CONFIG_DIR), version_base="1.3"):
            return compose("config", words)
    except Exception as error:  # such as dataset=null
        raise not_composed(error, words) from error


def not_composed(error: Exception, words: list[str]) -> UserError:
    """The line for whatever Hydra raises before a run begins: what the user may have meant, or why Hydra refuses it."""
    names_nothing = isinstance(error, OSError) and error.filename is None  # Hydra's, on a file of a number
    line = _meant(error, words) or (None if names_nothing else user_message(error)) or _hydras(error, words)
    found = UserError(line)
    found.__cause__ = error  # HYDRA_FULL_ERROR=1 shows it
    return found


def _meant(error: Exception, words: list[str]) -> str | None:
    """What the user probably wanted; None if the error is not about a name."""
    if isinstance(error, MissingConfigException):
        group, _, choice = (error.missing_cfg_file or "").rpartition("/")
        if (group, choice) == ("hydra/sweeper", "optuna"):
            return 'hydra/sweeper=optuna: not installed; pip install "fedem-lightning[optuna]"'
        return no_choice(group, choice, error.options) if error.options else None
    replaced = re.match(r"Error merging override \+*([^=\n]+)=(.*)", str(error))
    if replaced and "Cannot merge" in str(error.__cause__):
        what = "a list" if "object_type=list" in str(error.__cause__) else "keys with values"
        return f"{replaced.group(1)}: expected {what}, got {replaced.group(2)}"
    options = get_args_parser().parse_known_args(words)[0]
    if refused := re.match("(Ambiguous value for argument)|Sweep parameters", str(error)):
        several = next(override for override in map(parsed, options.overrides) if override.is_sweep_override())
        key, values = several.key_or_group, several.get_value_string()
        listed = f" (a list is {key}=[{values}])" if refused[1] and key not in OF_ONE else ""  # no list of a range
        return f"{key}: several values need -m, which makes a run of each: -m {key}={values}{listed}"
    found = _UNKNOWN.search(str(error))
    typed = [parsed(word) for word in options.overrides] if found else []
    given = next((override for override in typed if found and override.key_or_group == found.group(1)), None)
    if given is None:
        return None
    key, groups = given.key_or_group, choices(CONFIG_DIR)
    if key in groups:
        there, choice = f"{key}: the configuration has no default for this group, so add it", _first(given)
        return f"{there}: +{given.input_line}" if choice in groups[key] else no_choice(key, choice, groups[key], "+")
    hidden = given.is_delete() or key.startswith("hydra.")
    chosen = [f"{'+' * o.is_add()}{o.key_or_group}={_first(o)}" for o in typed if o is not given and not o.is_delete()]
    chosen = [line for line in chosen if "." not in line.partition("=")[0] or "._target_=" in line]
    new = [] if hidden else [f"++{key}={_first(given)}"]
    for lines in ([*chosen, *new], new):  # the second: with the defaults, if something else is wrong as well
        with suppress(HydraException, OmegaConfBaseException):
            config = with_options(lines, options, hydras=key.startswith("hydra."))
            if any(line.startswith("backbone._target_=") for line in lines):
                from fedem_lightning.run.own_targets import own_backbone  # torch, which takes seconds

                own_backbone(config, lines)  # without keys of the choice that it replaces
            break
    else:
        return None
    if hidden:
        keys = list(dotted_keys(OmegaConf.to_container(config)))
        null = f"{key}: it is null already, which Hydra cannot remove; leave ~{key} out"
        return null if key in keys else no_key(key, keys)
    try:
        check_added(config, [f"+{given.input_line}"])
    except UserError as wrong:
        return str(wrong)
    return _refusal(config, key) or f"{key}: the configuration does not list it, so add it: +{given.input_line}"


def _refusal(config: DictConfig, key: str) -> str | None:
    """What the run would say of a key that was added, so that nobody is advised what is then refused."""
    part = key.partition(".")[0]
    if part not in BY_NAME or "." not in key:
        return None
    from fedem_lightning.run.building import build_trainer, quieten_lightning  # Lightning, which takes seconds
    from fedem_lightning.run.gate import check_group, check_own

    quieten_lightning()
    try:
        check_own(config)
        check_group(part, OmegaConf.to_container(config[part], resolve=True))
        if part == "trainer":
            build_trainer(config, Path(), [], devices=1, precision="32-true")
    except Exception as error:  # whatever a target makes of it
        return user_message(error)
    return None


def _hydras(error: Exception, words: list[str]) -> str:
    """Hydra's reason, with the user's file that cannot be read, or the words on which it may depend."""
    folder = get_args_parser().parse_known_args(words)[0].config_dir
    for path in sorted(Path(folder).rglob("*.yaml")) if folder else ():
        try:
            OmegaConf.load(path)
        except Exception as wrong:  # no text, no YAML, a number, ...
            return f"{path}: expected a file of keys with values ({one_line(wrong)})"
    hydras = [word for word in words if word.lstrip("+~").startswith(("hydra", "-"))]
    typed = ", ".join(hydras or words) or "the configuration"
    said = one_line(error)
    reason = said if " " in said else f"{type(error).__name__} {said}".strip()
    return f"{typed}: Hydra cannot use this ({reason})"


def _first(override: Override) -> str:
    """The value, or a sweep's first."""
    line = str(override.input_line).partition("=")[2]
    return next(override.sweep_string_iterator()) if override.is_sweep_override() else line
