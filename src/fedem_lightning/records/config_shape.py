"""The form of a run's configuration file, looked at before it is read: a small file may grow without limit."""

from pathlib import Path

import yaml

from fedem_lightning.errors import require

_MOST_BYTES, _MOST_DEPTH = 1_000_000, 50
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def text_of(path: Path) -> str:
    """The text of a configuration file, whose form was checked by its events; nothing is built from them.

    Raises:
        UserError: it is larger than 1 MB, nested more than 50 deep, or has aliases, which no run writes.
        OSError, UnicodeError, yaml.YAMLError: it is unreadable, or no YAML.

    """
    name = ".hydra/config.yaml"
    require(path.stat().st_size <= _MOST_BYTES, f"broken: {name} is larger than 1 MB")
    text, depth = path.read_text(), 0
    for event in yaml.parse(text, Loader=_Loader):
        require(not isinstance(event, yaml.AliasEvent), f"broken: {name} has aliases, which no run writes")
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        require(depth <= _MOST_DEPTH, f"broken: {name} is nested too deeply")
    return text
