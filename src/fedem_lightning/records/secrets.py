"""Keys and passwords that a user types: what a run writes or prints has `HIDDEN` in their place."""

import re
from collections.abc import Sequence
from typing import Any

HIDDEN = "HIDDEN"
_OWNERS = "access|account|api|auth|aws|azure|encryption|hf|hub|license|openai|private|secret|service|session|shared"
_OWNERS += "|signing|ssh|storage|subscription|wandb"
_NAMES = (
    rf"(?:{_OWNERS})[_-]?key|token|secrets?|passw(?:or)?ds?|passphrases?|pwd|auth|authorization|bearer|credentials?"
)
_KEY = re.compile(rf".*(?:{_NAMES}|tokens)", re.IGNORECASE | re.DOTALL)
_SWITCH = re.compile(r"\s*(?:true|false|null|none)?\s*", re.IGNORECASE)
_NUMBER = r"[-+]?\d[\d.e+-]{0,6}"
_COUNTS = re.compile(rf"[\[\s]*{_NUMBER}(?:[,\s]+{_NUMBER})*[\]\s]*")
_VARIABLE = re.compile(r"\$\{oc\.env:\w+\}")
"""Names a variable of the environment, and no value."""

_VALUE = r"""(?P<value>'(?:\\.|[^'\\])*'?|"(?:\\.|[^"\\])*"?|\[\s*[\[{].*|\{.*|\[[^\]]*\]?|\$\{[^}]*\}*"""
_VALUE += r"""|[^\s,;&}\])'"]+(?:,[^\s,;&}\]):='"]+(?=[\s,}\])]|$))*(?:(?:[ \t]+[^\s,;&}\]):='"]+)+(?=\s*[,}\])]))?)"""
"""A value in quotes, a list, keys, an interpolation, or words and further ones after commas."""
_ANY = re.IGNORECASE | re.DOTALL
_PAIRS = (
    re.compile(rf"""(?P<key>(?P<name>{_NAMES})['"]?\s*[:=]\s*){_VALUE}""", _ANY),
    re.compile(r"""(?P<key>(?P<name>tokens)['"]?\s*[:=]\s*)(?P<value>\[\s*[\[{].*|\[[^\]]*\]?)""", _ANY),
    re.compile(rf"""(?P<key>(?<![\w-])--?[\w-]{{0,40}}?(?P<name>{_NAMES})['"]?[ ,=]\s*){_VALUE}""", _ANY),
)
"""A secret in the value of another key, such as {api_key: X} or --password X."""
_HEADER = re.compile(r"""(?P<key>authorization['"]?\s*[:=]\s*['"]?|\bBearer\s+)[^'"\n,}\]]+""", re.IGNORECASE)
_SIGNED = rf"[\w.-]{{0,40}}(?:{_NAMES}|sig|signature|credential|keyid)|(?:[\w.-]{{0,40}}[_.-])?key"
_QUERY = re.compile(rf"""(?P<key>[?&](?:{_SIGNED})=)[^&\s'"#,}}\]]+""", re.IGNORECASE)
"""Of a signed address."""
_LOGIN = re.compile(r"(?<=://)[^/\s'\"?#]+(?=@)")
"""User and password in an address."""


def is_secret(key: str, value: Any = None) -> bool:
    """Whether the value of a dotted key is a secret, by the key's last part, or that above it.

    Args:
        key: dotted.
        value: its value, or the text of it. A switch or null is none; neither is a number of tokens.

    """
    *above, name = key.split(".")
    text = str(value)
    if value is not None and _SWITCH.fullmatch(text):
        return False
    if name.lower().endswith(("token", "tokens")) and (value is not None or name.lower().endswith("s")):
        return value is not None and _COUNTS.fullmatch(text) is None
    return any(_KEY.fullmatch(part) and (part == name or "token" not in part.lower()) for part in [*above, name])


def hide_in_overrides(overrides: Sequence[str]) -> list[str]:
    """Overrides as typed, without secrets."""
    hidden = []
    for override in overrides:
        key, equals, value = override.partition("=")
        hidden.append(f"{key}{equals}{hide_in_text(_shown(key, value))}")
    return hidden


def hide_in_tree(value: Any, key: str = "") -> Any:
    """A configuration as plain containers, without secrets; interpolations stay, for they name no value."""
    if isinstance(value, dict):
        return {name: hide_in_tree(part, f"{key}.{name}") for name, part in value.items()}
    if isinstance(value, list):
        options = ["", *(part if isinstance(part, str) and part.startswith("-") else "" for part in value)]
        return [hide_in_tree(part, option or key) for option, part in zip(options, value, strict=False)]
    if isinstance(value, str):
        return hide_in_text(_shown(key, value))
    return HIDDEN if value is not None and is_secret(key, value) else value


def hide_in_text(text: str) -> str:
    """Any text without values that stand beside the name of a secret, and without logins in addresses."""
    text = _HEADER.sub(lambda found: found["key"] + HIDDEN, _QUERY.sub(lambda found: found["key"] + HIDDEN, text))
    for pattern in _PAIRS:
        text = pattern.sub(lambda found: found["key"] + _shown(found["name"], found["value"]), text)
    return _LOGIN.sub(HIDDEN, text)


def _shown(key: str, value: str) -> str:
    """What is shown of a key's value: all of it if it is no secret, or if it names a variable alone."""
    return HIDDEN if is_secret(key, value) and not _VARIABLE.fullmatch(value) else value
