"""What all commands share: one line for a mistake or an error that nobody foresaw; and the main one's help."""

import argparse
import io
import os
import pkgutil
import re
import sys
import textwrap
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from fedem_lightning.settings.errors import UserError, one_line, require
from fedem_lightning.settings.keys import CONFIG_DIR, choices
from fedem_lightning.settings.startup import is_worker_rank

_MADE = re.compile(
    r"Error in call to target '(?P<target>[^']+)'(?:.*^full_key: (?P<key>\S+))?", re.DOTALL | re.MULTILINE
)
"""Hydra's message where a constructor fails."""


class Parser(argparse.ArgumentParser):
    """An `ArgumentParser` that raises a `UserError` for wrong arguments."""

    def error(self, message: str) -> NoReturn:
        """Raises the error as one line, as for every mistake of the user."""
        raise UserError(f"{message}; {self.prog} --help explains")


def check_folder(folder: Path, names: Sequence[str], force: bool) -> None:
    """Raises UserError if --out is a file, or holds one of the files that would be written over without --force."""
    require(folder.is_dir() or not folder.exists(), f"--out: {folder} is no folder")
    there = ", ".join(name for name in names if (folder / name).exists())
    require(force or not there, f"--out: {folder} already holds {there}; choose another folder, or add --force")


def warning_line(message: Warning | str, *_: Any, **__: Any) -> str:
    """A warning on one line, as `warnings.formatwarning`."""
    return f"warning: {' '.join(str(message).split())}\n"


@contextmanager
def one_line_for_mistakes() -> Iterator[None]:
    """Exits with one line: with code 2 for a user's mistake, with code 1 after Ctrl-C or an error nobody foresaw.

    A warning is one line, too. HYDRA_FULL_ERROR=1 shows the trace, as for a run.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # paths may have bytes that are no text
    before, warnings.formatwarning = warnings.formatwarning, warning_line
    try:
        yield
        sys.stdout.flush()  # on a full disk this fails, and Python's own exit would tell nobody
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        sys.exit(1)
    except Exception as error:
        end(error, full=os.environ.get("HYDRA_FULL_ERROR") == "1")
    finally:
        warnings.formatwarning = before


def usage() -> str:
    """The help text of the main command, with the choices of each group."""
    import yaml  # which other commands do not wait for

    entries = yaml.safe_load((CONFIG_DIR / "config.yaml").read_text(encoding="utf-8"))["defaults"]
    defaults = {group: choice for entry in entries if isinstance(entry, dict) for group, choice in entry.items()}
    offered, lines = choices(), []
    for group in sorted(offered, key=lambda g: (g not in defaults, g)):
        begin = f"  {f'{group} [{defaults[group]}]' if group in defaults else f'+{group}':<25} "
        names = ", ".join(offered[group])
        lines.append(
            textwrap.fill(names, 118, initial_indent=begin, subsequent_indent=" " * 28, break_on_hyphens=False)
        )
    docs = CONFIG_DIR.parent / "docs"
    where = f"{CONFIG_DIR.parent / 'README.md'}, {docs}" if docs.is_dir() else "README.md and docs/ of the repository"
    return (CONFIG_DIR / "help.txt").read_text(encoding="utf-8").format(groups="\n".join(lines), docs=where)


class Unexpected(Exception):
    """An error that is no mistake of the user's, as the line that says so."""


def end(error: BaseException, full: bool = False) -> NoReturn:
    """Exits with one line: with code 2 for the user's mistake, with 1 after an error that nobody foresaw."""
    if isinstance(error, BrokenPipeError):  # as of `| head -1`: nobody reads the output any more
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.exit(1)
    message = user_message(error)
    if is_worker_rank() and message is not None:  # the first one says it
        sys.exit(2)
    if full:
        traceback.print_exception(error)
    print(f"error: {message or unexpected(error)}", file=sys.stderr)
    sys.exit(2 if message else 1)


def user_message(error: BaseException, key: str = "") -> str | None:
    """One line for a mistake of the user's, about the part that was made of `key`; None if the error is not one."""
    from hydra.errors import HydraException, InstantiationException  # slow
    from omegaconf.errors import OmegaConfBaseException

    made: re.Match[str] | None = None
    result: BaseException | None = error
    while result is not None:
        if isinstance(result, InstantiationException):
            made = _MADE.match(str(result)) or made
        # Lightning's own error, by name: this may be called before Lightning is loaded
        if isinstance(result, UserError) or type(result).__name__ == "MisconfigurationException":
            return _with_key(one_line(result), made, key) if made else one_line(result)
        if isinstance(result, OSError):
            line = result.strerror or one_line(result)
            name = result.filename is not None and one_line(result.filename)[:500]
            return f"{name}: the system refuses it ({line})" if name else one_line(result)
        if isinstance(result, OmegaConfBaseException):
            line = str(result).partition("\n")[0]
            return f"{result.full_key}: {line}" if result.full_key else one_line(line)
        if made and isinstance(result, TypeError | ValueError | ImportError | AttributeError | MemoryError):
            return f"{made['key'] or key}: {one_line(result)[:1000]}"
        if isinstance(result, HydraException) and result.__cause__ is None:
            return one_line(result)
        result = result.__cause__
    return None


def _with_key(message: str, made: re.Match[str], key: str) -> str:
    """A constructor's message names its arguments; a command names the keys that they have in its configuration."""
    from fedem_lightning.settings.check import parameters  # slow, and loaded by whoever makes anything

    names = "|".join(parameters(pkgutil.resolve_name(made["target"])).known)
    message = re.sub(rf"^(?:[A-Z]\w*\.)?({names})(?=[:.,=])", rf"{made['key'] or key}.\1", message)
    return re.sub(rf"(?<=[ (])({names})(?==)", rf"{made['key'] or key}.\1", message)


def unexpected(error: BaseException) -> Unexpected:
    """Any other error, as one line."""
    if isinstance(error, Unexpected):
        return error
    cause = error
    while type(cause).__name__ == "InstantiationException" and cause.__cause__ is not None:
        cause = cause.__cause__
    line = f"{type(cause).__name__}: {one_line(cause)[:300]}".removesuffix(": ")
    return Unexpected(f"{line}; HYDRA_FULL_ERROR=1 shows the trace")
