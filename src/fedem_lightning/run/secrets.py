"""Keys and passwords that a user types: what a run writes or prints has `HIDDEN` in their place."""

import re
from collections.abc import Sequence
from typing import Any

HIDDEN = "HIDDEN"
_NAME = r"(?:api_?key|token|password|passwd|secret|credentials?)"
_KEY = re.compile(rf"(?:^|_){_NAME}$", re.IGNORECASE)
_INSIDE = re.compile(rf"""(?P<key>\b\w*{_NAME}['"]?\s*[:=]\s*)(?:'[^']*'|"[^"]*"|[^\s,}}\])]+)""", re.IGNORECASE)
"""A secret in the value of another key, such as {api_key: X}."""
_LOGIN = re.compile(r"(?<=://)[^/@\s]+(?=@)")
"""User and password in an address."""


def is_secret(key: str) -> bool:
    """Whether the value of a dotted key is a secret, by the key's last part."""
    return _KEY.search(key.rpartition(".")[2]) is not None


def hide_in_overrides(overrides: Sequence[str]) -> list[str]:
    """Overrides as typed, without secrets."""
    hidden = []
    for override in overrides:
        key, equals, value = override.partition("=")
        hidden.append(f"{key}={HIDDEN}" if equals and is_secret(key) else f"{key}{equals}{hide_in_text(value)}")
    return hidden


def hide_in_tree(value: Any, key: str = "") -> Any:
    """A configuration as plain containers, without secrets; interpolations stay, for they name no value."""
    if isinstance(value, dict):
        return {name: hide_in_tree(part, str(name)) for name, part in value.items()}
    if isinstance(value, list):
        return [hide_in_tree(part, key) for part in value]
    if value is None or not is_secret(key):
        return hide_in_text(value) if isinstance(value, str) else value
    return value if isinstance(value, str) and re.fullmatch(r"\$\{oc\.env:\w+\}", value) else HIDDEN


def hide_in_text(text: str) -> str:
    """Any text without values that stand beside the name of a secret, and without logins in addresses."""
    return _LOGIN.sub(HIDDEN, _INSIDE.sub(lambda found: found["key"] + HIDDEN, text))
