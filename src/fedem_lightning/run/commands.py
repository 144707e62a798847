"""What all commands share: arguments, one line for a mistake, an output that may be closed; and the main one's help.

A broken pipe, as in `... | head -1`, does not end a command: it goes on, and prints no more. A disk that is
full ends it, because what it prints would be lost.
"""

import argparse
import errno
import io
import os
import sys
import textwrap
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from fedem_lightning.errors import UserError

_STDERR = 2
_EXAMPLES = """\
python -m fedem_lightning                                       FedEM on the synthetic mixture
python -m fedem_lightning algorithm=fedavg dataset=digits backbone=mlp trainer.max_epochs=50
python -m fedem_lightning algorithm=fedem adaptation=finetune   tune every client's models before they are scored
python -m fedem_lightning -m algorithm=fedem,fedavg,local seed=0,1,2       a sweep: nine runs
python -m fedem_lightning +experiment=femnist                   the data and settings of a paper
python -m fedem_lightning algorithm=fedem --cfg job             the whole configuration, and no run
python -m fedem_lightning dataset=npz dataset.path=mine.npz     your own data
python -m fedem_lightning dataset=table dataset.path=mine.csv dataset.label=y dataset.client=hospital     a table
python -m fedem_lightning +trainer.benchmark=true               an option of Lightning's Trainer that is not listed
python -m fedem_lightning run_dir=runs/a                        choose the run's folder
python -m fedem_lightning run_dir=runs/a ckpt_path=auto         continue it after Ctrl-C or a crash
python -m fedem_lightning.report runs                           runs side by side, and beside the papers' numbers
python -m fedem_lightning.evaluate clients.safetensors new.csv     scores of rows, calibration, confusion
python -m fedem_lightning.personalize runs/a new.csv --out clients.safetensors     models for new clients
python -m fedem_lightning.predict clients.safetensors new.csv --out p.csv          a prediction for every row
python -m fedem_lightning.export runs/a --all --format onnx     trained models as files for other programs
python -m fedem_lightning.data list                             known data sets; also download, convert, describe"""

_TEXT = """\
Personalised federated learning in simulation: FedEM and the methods it is compared with.

usage: python -m fedem_lightning [-m] [GROUP=CHOICE ...] [KEY=VALUE ...] [+KEY=VALUE ...] [~KEY ...]

  GROUP=CHOICE  takes another part, e.g. algorithm=fedavg
  KEY=VALUE     sets a key of the configuration, e.g. trainer.max_epochs=50
  +KEY=VALUE    adds a key that the configuration does not list; +GROUP=CHOICE a group without a default
  ~KEY          removes a key
  -m            runs every combination of values that are separated by commas

Groups, with their defaults in brackets:

{groups}

Examples:

{examples}

Other options:

  --cfg job          prints the configuration instead of running it
  --config-dir DIR   finds more choices in DIR, e.g. your own DIR/algorithm/mine.yaml
  --version          prints the version
  --hydra-help       explains the options of Hydra, which composes the configuration
  -sc install=bash   completes in your shell: eval "$(fedem-lightning -sc install=bash)"; also zsh, fish

Exit codes: 0 done, 2 what you gave is wrong (one line says what), 1 anything else.
Documentation: {docs}"""


class Parser(argparse.ArgumentParser):
    """An `ArgumentParser` that raises a `UserError` for wrong arguments."""

    def error(self, message: str) -> NoReturn:
        """Raises the error as one line, as for every mistake of the user."""
        raise UserError(f"{message}; {self.prog} --help explains")


@contextmanager
def one_line_for_mistakes() -> Iterator[None]:
    """Exits with one line: with code 2 for a user's mistake, with code 1 after Ctrl-C or an error nobody foresaw.

    A warning is one line, too. HYDRA_FULL_ERROR=1 shows the trace, as for a run.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # paths may have bytes that are no text
    survive_closed_output()
    before, warnings.formatwarning = warnings.formatwarning, lambda message, *_, **__: f"warning: {message}\n"
    try:
        require_working_directory()
        with printed():
            yield
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        sys.exit(1)
    except Exception as error:
        from fedem_lightning.run.failures import unexpected, user_message  # loads Hydra

        message = user_message(error)
        if os.environ.get("HYDRA_FULL_ERROR") == "1":
            traceback.print_exception(error)
        print(f"error: {message or unexpected(error)}", file=sys.stderr)
        sys.exit(2 if message else 1)
    finally:
        warnings.formatwarning = before


def require_working_directory() -> None:
    """Raises UserError if somebody has deleted it: PyTorch's libraries would end the process without a word of it."""
    try:
        os.getcwd()
    except FileNotFoundError:
        raise UserError("the working directory is gone; change to a folder that is there") from None


@contextmanager
def printed() -> Iterator[None]:
    """At its end stdout has been written, also where --help has ended the command.

    Raises:
        OSError: the disk is full; the exit code of Python, which notices it later, would tell nobody.

    """
    try:
        yield
    finally:
        if sys.stdout is not None:
            sys.stdout.flush()


def survive_closed_output() -> None:
    """From here on stdout and stderr may be closed by whoever reads them, or lose their terminal."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not getattr(sys, f"__{name}__") or not isinstance(stream, io.TextIOWrapper):
            continue  # there is none, or somebody captures it
        if isinstance(getattr(stream.buffer, "raw", stream.buffer), _Patient):
            continue
        stream.flush()
        raw = _Patient(stream.fileno(), "wb", closefd=False)
        buffer: Any = raw if isinstance(stream.buffer, io.FileIO) else io.BufferedWriter(raw)  # raw: of `python -u`
        kept = {option: getattr(stream, option) for option in ("encoding", "errors", "line_buffering", "write_through")}
        again = io.TextIOWrapper(buffer, **kept)
        setattr(sys, name, again)
        setattr(sys, f"__{name}__", again)


class _Patient(io.FileIO):
    """A file that becomes /dev/null when nobody reads it any more, or when it cannot be written."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            number = self.fileno()
            nothing = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nothing, number)
            os.close(nothing)
            if number != _STDERR and error.errno not in (errno.EPIPE, errno.EIO):
                raise OSError(error.errno, error.strerror, "stdout") from None  # once; nobody could hear of stderr
            return memoryview(data).nbytes


def usage(config_dir: Path) -> str:
    """The help text: usage, groups with their choices in `config_dir`, examples, and the place of the documentation."""
    from omegaconf import OmegaConf

    entries = OmegaConf.select(OmegaConf.load(config_dir / "config.yaml"), "defaults")
    defaults = {group: choice for entry in entries if not isinstance(entry, str) for group, choice in entry.items()}
    docs = config_dir.parent / "docs"
    here = f"{config_dir.parent / 'README.md'}, {docs}"
    where = here if docs.is_dir() else "README.md and docs/ of the repository"
    return _TEXT.format(groups=_groups(config_dir, defaults), examples=textwrap.indent(_EXAMPLES, "  "), docs=where)


def _groups(config_dir: Path, defaults: dict[str, str]) -> str:
    from fedem_lightning.settings.shipped import choices  # YAML, which other commands do not wait for

    offered = choices(config_dir)
    lines = []
    for group in sorted(offered, key=lambda g: (list(defaults).index(g) if g in defaults else len(defaults), g)):
        name = f"{group} [{defaults[group]}]" if group in defaults else f"+{group}"
        lines.append(
            textwrap.fill(
                ", ".join(offered[group]),
                width=118,
                initial_indent=f"  {name:<25} ",
                subsequent_indent=" " * 28,
                break_on_hyphens=False,
            )
        )
    return "\n".join(lines)
