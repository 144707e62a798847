"""Options that the commands on trained models share, and checks that need no heavy import."""

import argparse
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from fedem_lightning.errors import require
from fedem_lightning.run.commands import Parser, one_line_for_mistakes
from fedem_lightning.startup.process import loading

TABLES = (".csv", ".tsv", ".parquet")
"""Endings of the tables that the commands read."""
TABLES_OF_A_RUN = ("clients.parquet", "metrics.csv")
MODEL = "model.safetensors"
"""The model of a client of its own, in its folder: in one for each run."""
STATE = "state.safetensors"
"""Beside it: what the client goes on from."""


def parser_of(command: str, description: str, run: str) -> Parser:
    """A parser with what all these commands take: RUN, which `run` explains, --force and --trust."""
    parser = Parser(prog=f"python -m fedem_lightning.{command}", description=description)
    parser.add_argument("run", type=Path, metavar="RUN", help=run)
    parser.add_argument("--force", action="store_true", help="write over earlier files")
    several = "a package of yours that RUN's model needs; can be given several times"
    parser.add_argument("--trust", action="append", default=[], metavar="PACKAGE", help=several)
    return parser


def run_command(
    parser: Parser, arguments: Sequence[str] | None, check: Callable[[argparse.Namespace], None], work: str
) -> Any:
    """Checks a command's arguments, then calls `work`, MODULE.FUNCTION of this room; one line for a user's mistake.

    The modules take seconds to import, which --help should not.
    """
    with one_line_for_mistakes():
        chosen = parser.parse_args(arguments)
        check(chosen)
        module, _, function = work.partition(".")
        with loading():
            found = import_module(f"fedem_lightning.serving.{module}")
        return getattr(found, function)(chosen)


def add_data_options(parser: argparse.ArgumentParser) -> None:
    """Adds what says how DATA is read."""
    group = parser.add_argument_group("DATA", "an .npz with x, client and optional y, split, names; or a table")
    group.add_argument("--client", metavar="NAME", help="all rows belong to this client; DATA then names no clients")
    group.add_argument(
        "--client-column", metavar="COLUMN", help="of a table; default: that of the training table, else client"
    )
    group.add_argument(
        "--label-column", metavar="COLUMN", help="of a table; default: that of the training table, else y"
    )


def check_run(path: Path) -> None:
    """Raises UserError if there is no such run or file."""
    require(path.exists(), f"{path}: no such run or file")


def check_rows_file(path: Path) -> None:
    """Raises UserError unless DATA is a file of a known kind."""
    require(path.is_file(), f"DATA: no file {path}")
    known = path.suffix.lower() in (".npz", *TABLES)
    require(known, f"DATA: expected a file that ends in .npz, {', '.join(TABLES)}, got {path.name}")


def clients_file(path: Path) -> Path | None:
    """The file of clients' models that a path means: itself, or that in the folder of a client of its own.

    Args:
        path: a file; a run's folder; or the folder of a client of its own, or the one for a run in it.

    Returns:
        None: the path means a run or a checkpoint.

    Raises:
        UserError: the client has models of several runs, or has no model yet.

    """
    if path.suffix == ".safetensors":
        return path
    if not path.is_dir() or (path / "checkpoints").is_dir():
        return None
    if (path / MODEL).is_file():
        return path / MODEL
    found = [file for file in path.glob(f"*/{MODEL}") if not (file.parent / "checkpoints").is_dir()]
    newest = max(found, key=lambda file: file.stat().st_mtime, default=None)
    several = f"{path}: models of {len(found)} runs, expected one of them; the newest: {newest and newest.parent}"
    require(len(found) < 2, several)
    waits = any(path.glob(STATE)) or any(path.glob(f"*/{STATE}"))
    require(
        newest is not None or not waits,
        f"{path}: this client has no model yet; it keeps the newest one whenever the server asks for its scores",
    )
    return newest


def check_out(path: Path, endings: tuple[str, ...], force: bool, inputs: tuple[Path, ...] = ()) -> None:
    """Raises UserError unless a file may be written: its ending is known, and nothing would be lost."""
    require(path.suffix in endings, f"--out: expected a name that ends in {' or '.join(endings)}, got {path}")
    require(not path.is_dir(), f"--out: {path} is a folder")
    for read in inputs:
        parts = [read, *(read / name for name in TABLES_OF_A_RUN)] if read.is_dir() else [read]
        require(not any(same(path, part) for part in parts), f"--out: {path} is what the command reads")
    require(force or not path.exists(), f"--out: {path} is already there; choose another name, or add --force")


def same(path: Path, other: Path) -> bool:
    """Whether two paths lead to one file or folder, through links, `..`, or letters that the system takes for equal."""
    if path.exists() and other.exists():
        return path.samefile(other)
    return path.resolve() == other.resolve()


def check_folder(option: str, folder: Path, names: tuple[str, ...], force: bool) -> None:
    """Raises UserError if `folder` is a file, or already holds one of the files `names`."""
    require(folder.is_dir() or not folder.exists(), f"{option}: {folder} is no folder")
    there = [name for name in names if (folder / name).exists()]
    held = f"{option}: {folder} already holds {', '.join(there)}; choose another folder, or add --force"
    require(force or not there, held)
