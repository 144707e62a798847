"""How a message shows a value that was given."""

import numbers
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_WRITTEN = (type(None), numbers.Number, str, bytes, Path, Sequence, Mapping)
_LONGEST = 80
"""Characters of a given value that a message shows."""


def given(value: Any) -> str:
    """A value as a configuration writes it, on one line, cut if it is long; what no text can make by its class."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if not isinstance(value, _WRITTEN):
        return f"an object of class {type(value).__name__}"
    text = {"None": "null", "True": "true", "False": "false"}.get(repr(value), repr(value))
    text = " ".join(text.split())
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
