"""A misuse from Python, how it must end, and what is held against it."""

import contextlib
import signal
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from lightning_fabric.utilities.exceptions import MisconfigurationException

from fedem_lightning import UserError

HANG_SECONDS = 20
LONGEST_LINE = 1500


@dataclass(frozen=True)
class Call:
    """One call.

    Args:
        name: what is wrong, "room/...".
        act: the call, in an empty folder of its own.
        says: what the line of its error must contain; None: the call must work.
        warns: what a warning must contain.
        right: whether what a call returned is right; None: whatever it returned.
        or_says: it may also be refused, by a line that contains this.
        python: whether it may also end in Python's own TypeError: an argument is unknown or missing.

    """

    name: str
    act: Callable[[Path], Any]
    says: str | None = None
    warns: str | None = None
    right: Callable[[Any], bool] | None = None
    or_says: str | None = None
    python: bool = False


class Outcome(NamedTuple):
    """How a call ended."""

    seconds: float
    returned: Any
    error: BaseException | None
    warned: list[str]
    left: list[str]  # files and folders that the call made


class Hang(BaseException):
    """The call took too long."""


def meet(call: Call, folder: Path) -> Outcome:
    """Makes the call."""
    start, returned, error = time.monotonic(), None, None
    previous = signal.signal(signal.SIGALRM, _stop)
    signal.alarm(HANG_SECONDS)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            with contextlib.chdir(folder):
                returned = call.act(folder)
        except (Exception, Hang, SystemExit) as problem:
            error = problem
        finally:
            signal.alarm(0)
            signal.signal(signal.SIGALRM, previous)
    warned = [str(warning.message) for warning in caught if _is_ours(str(warning.filename))]
    left = sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))
    return Outcome(time.monotonic() - start, returned, error, warned, left)


def faults(call: Call, outcome: Outcome) -> list[str]:
    """What is held against the call; empty: it ended well."""
    error, line = outcome.error, str(outcome.error)
    if isinstance(error, Hang):
        return ["hang"]
    if call.python and isinstance(error, TypeError):
        return []
    if error is not None and not (isinstance(error, UserError | MisconfigurationException) or lightnings_own(error)):
        return [f"bare {type(error).__name__}"]
    if error is not None:
        says = call.says if call.or_says is None else call.or_says
        if says is None:
            return ["refused"]
        found = ["not one line"] * (len(line.splitlines()) != 1 or len(line) > LONGEST_LINE)
        found += ["another line"] * (says.lower() not in line.lower())
        return found + ["left " + ", ".join(outcome.left[:3])] * bool(outcome.left)
    if call.says is not None:
        return ["accepted"]
    found = ["wrong result"] * (call.right is not None and not call.right(outcome.returned))
    silent = call.warns is not None and not any(call.warns in text for text in outcome.warned)
    return found + ["silent"] * silent


def lightnings_own(error: BaseException) -> bool:
    """Whether Lightning itself says what is wrong with an argument of its Trainer."""
    frames = list(traceback.walk_tb(error.__traceback__))
    where = frames[-1][0].f_code.co_filename if frames else ""
    of_lightning = "/pytorch_lightning/" in where or "/lightning_fabric/" in where
    return of_lightning and isinstance(error, TypeError | ValueError | RuntimeError) and bool(str(error))


def _is_ours(filename: str) -> bool:
    return "fedem_lightning" in filename or "wrong_inputs" in filename


def _stop(*_: object) -> None:
    raise Hang
