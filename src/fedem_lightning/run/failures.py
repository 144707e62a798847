"""What a command says when it cannot go on: one line. A trace that nobody foresaw goes into a file."""

import os
import pkgutil
import re
import tempfile
import traceback
from pathlib import Path

from hydra.errors import HydraException, InstantiationException
from omegaconf.errors import InterpolationResolutionError, OmegaConfBaseException

from fedem_lightning.errors import UserError, one_line
from fedem_lightning.records.files import replacing
from fedem_lightning.settings.keys import handed_by_run
from fedem_lightning.startup.process import is_worker_rank

_LONGEST = 300
"""Characters of an error's message that are shown."""
_LONGEST_LINE = 1000
"""Characters of the line for a mistake of the user's, which may quote what was typed."""
TRACE = "error.txt"
_MADE = re.compile(r"Error in call to target '(?P<target>[^']+)'.*^full_key: (?P<key>\S+)", re.DOTALL | re.MULTILINE)
"""Hydra's message where a constructor fails."""


class Unexpected(Exception):
    """An error that is no mistake of the user's, as the line that says so."""


def user_message(error: BaseException) -> str | None:
    """One line for a mistake of the user's; None if the error is not one."""
    line = _line_for(error)
    half = _LONGEST_LINE // 2
    return line if line is None or len(line) <= _LONGEST_LINE else f"{line[:half]} ... {line[-half:]}"


def _line_for(error: BaseException) -> str | None:
    chain = [error]
    while (cause := chain[-1].__cause__) is not None:
        chain.append(cause)
    for around, found in zip([error, *chain], chain, strict=False):
        if isinstance(found, UserError) or type(found).__name__ == "MisconfigurationException":
            # the latter is Lightning's, by name: an error may come before Lightning is loaded
            return _with_keys(one_line(found), around)
    for found in chain:
        if isinstance(found, OSError):
            return _of_the_system(found)
        if isinstance(found, InterpolationResolutionError):
            return _of_a_key(found)
    if isinstance(error, InstantiationException):
        wrong_call = error.__cause__ is None or isinstance(
            error.__cause__, (TypeError, ValueError, ImportError, AttributeError, HydraException)
        )
        return one_line(error) if wrong_call else None
    return one_line(error) if isinstance(error, (HydraException, OmegaConfBaseException)) else None


def _of_the_system(error: OSError) -> str:
    """What the system refuses: a name that is too long, a file that may not be read, a full disk."""
    if error.filename is None:
        return one_line(error)
    return f"{one_line(error.filename)[:_LONGEST]}: the system refuses it ({error.strerror or type(error).__name__})"


def _of_a_key(error: InterpolationResolutionError) -> str:
    """OmegaConf's message on an interpolation, which names the key that has it in a further line, or not at all."""
    said = str(error).partition("\n")[0]
    written = f"={one_line(error.child_node)}" if error.child_node is not None else ""
    return f"{error.full_key}{written}: {said}" if error.full_key else one_line(said)


def _with_keys(message: str, around: BaseException) -> str:
    """A constructor's message names its arguments; a command names the keys that they have in its configuration."""
    made = _MADE.match(str(around)) if isinstance(around, InstantiationException) else None
    if made is None:
        return message
    from fedem_lightning.settings.check import parameters  # slow, and loaded by whoever makes anything

    known = parameters(pkgutil.resolve_name(made["target"])).known.keys() - handed_by_run(made["key"])
    names = "|".join(known)
    return re.sub(rf"^(?:{names})(?=[:.,=])|(?<=[ (])(?:{names})(?==)", rf"{made['key']}.\g<0>", message)


def unexpected(error: BaseException, folder: Path | None = None) -> Unexpected:
    """Saves the trace of any other error, and says where it is.

    Args:
        error: what was raised.
        folder: of the run; the trace is saved there once the run has begun there, else in the temporary directory.

    """
    if isinstance(error, Unexpected):
        return error
    cause = error
    while isinstance(cause, InstantiationException) and cause.__cause__ is not None:
        cause = cause.__cause__
    said = f"{type(cause).__name__}: {one_line(cause)[:_LONGEST]}".removesuffix(": ")
    trace = "".join(traceback.format_exception(error))
    begun = folder is not None and (folder / ".hydra").is_dir()
    places = [folder / (f"error-{os.getpid()}.txt" if is_worker_rank() else TRACE)] if folder and begun else []
    for place in [*places, None]:
        try:
            return Unexpected(f"{said}; full trace: {_save(trace, place)}")
        except (OSError, UserError):  # such as a full disk, which may be the error itself
            continue
    return Unexpected(said)


def _save(trace: str, place: Path | None) -> Path:
    shown = trace.encode("utf-8", errors="backslashreplace")
    if place is None:
        handle, name = tempfile.mkstemp(prefix="fedem-lightning-", suffix=f"-{TRACE}")
        with os.fdopen(handle, "wb") as file:
            file.write(shown)
        return Path(name)
    with replacing(place) as temporary:
        temporary.write_bytes(shown)
    return place
