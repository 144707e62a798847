"""What a command says when it cannot go on: one line. A trace that nobody foresaw goes into a file."""

import os
import pkgutil
import re
import sys
import tempfile
import traceback
from pathlib import Path
from typing import NoReturn

from hydra.errors import HydraException, InstantiationException
from omegaconf.errors import OmegaConfBaseException

from fedem_lightning.errors import UserError, one_line
from fedem_lightning.startup import is_worker_rank

_LONGEST = 1000  # characters of a line
TRACE = "error.txt"
_MADE = re.compile(
    r"Error in call to target '(?P<target>[^']+)'(?:.*^full_key: (?P<key>\S+))?", re.DOTALL | re.MULTILINE
)
"""Hydra's message where a constructor fails."""


class Unexpected(Exception):
    """An error that is no mistake of the user's, as the line that says so."""


def end(error: BaseException, folder: Path | None = None, full: bool = False) -> NoReturn:
    """Exits with one line: with code 2 for the user's mistake, with 1 after an error that nobody foresaw."""
    if isinstance(error, BrokenPipeError):  # as of `| head -1`: nobody reads the output any more
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.exit(1)
    message = user_message(error)
    if is_worker_rank() and message is not None:  # the first one says it
        sys.exit(2)
    if full:
        traceback.print_exception(error)
    print(f"error: {message or unexpected(error, folder)}", file=sys.stderr)
    sys.exit(2 if message else 1)


def user_message(error: BaseException, key: str = "") -> str | None:
    """One line for a mistake of the user's, about the part that was made of `key`; None if the error is not one."""
    chain: list[BaseException] = [error]
    while (cause := chain[-1].__cause__) is not None:
        chain.append(cause)
    calls = [_MADE.match(str(part)) for part in chain if isinstance(part, InstantiationException)]
    made = [call for call in calls if call is not None]
    line = None
    for found in chain:
        # Lightning's own error, by name: this may be called before Lightning is loaded
        if isinstance(found, UserError) or type(found).__name__ == "MisconfigurationException":
            line = _with_key(one_line(found), made[-1], key) if made else one_line(found)
        elif isinstance(found, OSError):
            name = f"{one_line(found.filename)}: the system refuses it " if found.filename is not None else ""
            line = f"{name}({found.strerror or one_line(found)})" if name else one_line(found)
        elif isinstance(found, OmegaConfBaseException):
            said = str(found).partition("\n")[0]
            line = f"{found.full_key}: {said}" if found.full_key else one_line(said)
        elif made and isinstance(found, TypeError | ValueError | ImportError | AttributeError | MemoryError):
            line = f"{made[-1]['key'] or key}: {one_line(found)}"
        elif isinstance(found, HydraException) and found.__cause__ is None:
            line = one_line(found)
        if line is not None:
            return line if len(line) <= _LONGEST else f"{line[: _LONGEST // 2]} ... {line[-_LONGEST // 2 :]}"
    return None


def _with_key(message: str, made: re.Match[str], key: str) -> str:
    """A constructor's message names its arguments; a command names the keys that they have in its configuration."""
    from fedem_lightning.settings.check import parameters  # slow, and loaded by whoever makes anything

    names = "|".join(parameters(pkgutil.resolve_name(made["target"])).known)
    message = re.sub(rf"^(?:[A-Z]\w*\.)?({names})(?=[:.,=])", rf"{made['key'] or key}.\1", message)
    return re.sub(rf"(?<=[ (])({names})(?==)", rf"{made['key'] or key}.\1", message)


def unexpected(error: BaseException, folder: Path | None = None) -> Unexpected:
    """Saves the trace of any other error, in the run's folder once the run has begun there, and says where it is."""
    if isinstance(error, Unexpected):
        return error
    cause = error
    while isinstance(cause, InstantiationException) and cause.__cause__ is not None:
        cause = cause.__cause__
    said = f"{type(cause).__name__}: {one_line(cause)[:300]}".removesuffix(": ")
    begun = folder is not None and (folder / ".hydra").is_dir() and not is_worker_rank()
    try:
        place = folder / TRACE if begun and folder else Path(tempfile.mkdtemp(prefix="fedem-lightning-")) / TRACE
        place.write_text("".join(traceback.format_exception(error)), encoding="utf-8", errors="backslashreplace")
    except OSError:  # such as a full disk, which may be the error itself
        return Unexpected(said)
    return Unexpected(f"{said}; full trace: {place}")
