"""Errors in the user's input: the command line shows one readable line without a traceback, and exits with code 2."""

import difflib
import numbers
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

_REMOVED = ("Cc", "Cf", "Zl", "Zp")  # control and format characters (some turn the direction of writing), line ends

_WRITTEN = (type(None), numbers.Number, str, bytes, Path, Sequence, Mapping)
_LONGEST = 80  # characters of a given value that a message shows


class UserError(ValueError):
    """A mistake in a configuration, a file or an array. The message names it and says what was expected."""


class NoUpdateLeft(UserError):
    """All updates of a round were rejected; the model is as it was before the round."""


class Diverged(UserError):
    """The training has diverged: a mean of finite updates is not finite."""


class Interrupted(BaseException):
    """The run was stopped by a signal; the message says how to continue it.

    It is no `Exception`, as KeyboardInterrupt is none, so that code that catches every `Exception` does not catch it.
    """


def require(condition: bool, message: str) -> None:
    """Raises UserError(message) unless `condition` holds."""
    if not condition:
        raise UserError(message)


@contextmanager
def of_a_file(line: str) -> Iterator[None]:
    """Within it any error is one of a file's content, of whatever kind: a UserError, `said` and the reason."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise UserError(f"{line} ({reason})") from error


def one_line(text: Any) -> str:
    """A text on one line, without control characters; bytes that are no text (of a folder's name) become "?"."""
    letters = (
        "?" if "\ud800" <= c <= "\udfff" else " " if unicodedata.category(c) in _REMOVED else c for c in str(text)
    )
    return " ".join("".join(letters).split())


def imported(package: str, extra: str, key: str) -> Any:
    """A package that an extra brings; UserError with the command that installs it, which begins with `key`."""
    try:
        return import_module(package)
    except ImportError as error:
        raise UserError(f"{key}: {package} is not installed; {installs(extra)}") from error


def installs(extra: str) -> str:
    """The command that installs an extra; the package is on no index."""
    return f'in the clone of fedem-lightning: pip install -e ".[{extra}]"'


def meant(name: object, there: Iterable[object]) -> str:
    """The end of a line about an unknown name: the nearest of those that are there, if one is near."""
    near = difflib.get_close_matches(str(name), [str(one) for one in there], n=1)
    return f"; did you mean {near[0]}?" if near else ""


def given(value: Any) -> str:
    """A value as a configuration writes it, on one line, cut if it is long; what no text can make by its class."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if not isinstance(value, _WRITTEN):
        return f"an object of class {type(value).__name__}"
    text = {"None": "null", "True": "true", "False": "false"}.get(repr(value), repr(value))
    text = " ".join(text.split())
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
