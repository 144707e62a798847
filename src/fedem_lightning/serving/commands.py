"""The commands on trained models, and their options."""

import argparse
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from fedem_lightning.run.commands import Parser, one_line_for_mistakes
from fedem_lightning.settings.errors import require
from fedem_lightning.settings.startup import loading

RUN = "a run's folder, a .ckpt file, or clients' models (.safetensors)"


def main_of(command: str) -> Callable[..., None]:
    """The entry point of a command; a user's mistake ends it with one line and exit code 2.

    The work is a function of a module of this room, which takes seconds to import: --help and a wrong option do not.
    """
    place = "exporting" if command == "export" else "predicting"

    def main(arguments: list[str] | None = None) -> None:
        with one_line_for_mistakes():
            parser = Parser(prog=f"python -m fedem_lightning.{command}")
            _OPTIONS[command](parser)
            parser.add_argument("--force", action="store_true", help="write over earlier files")
            several = "a package of yours that RUN's model needs; can be given several times"
            parser.add_argument("--trust", action="append", default=[], metavar="PACKAGE", help=several)
            chosen = parser.parse_args(arguments)
            with loading():
                module = import_module(f"fedem_lightning.serving.{place}")
            getattr(module, command)(chosen)

    return main


def _run_and_data(parser: argparse.ArgumentParser, run: str, data: str) -> None:
    parser.add_argument("run", type=Path, metavar="RUN", help=run)
    parser.add_argument("data", type=Path, metavar="DATA", help=f"{data}: .npz, .csv or .parquet")
    forms = "an .npz with x, client and optional y, split, names; or a table with the columns of the training table"
    parser.add_argument_group("DATA", f"{forms}, of vectors with client, y and split")


def _personalize(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Models for clients that did not train, from their samples. Training rows (all rows, if DATA has no split) "
        "give the models."
    )
    _run_and_data(parser, "a run's folder, or a .ckpt file", "samples of the clients")
    out = "the clients' models, a .safetensors file"
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help=out)


def _predict(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Predicts every row of DATA with the model of its client. The file has the rows in their order, with the "
        "columns client, class and p_CLASS, or client and mean in a regression."
    )
    _run_and_data(parser, RUN, "the rows")
    parser.add_argument("--out", type=Path, metavar="FILE", help="a .parquet or .csv file; default: prints CSV")


def _evaluate(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Scores the test rows of DATA (all rows, if DATA has no split) with the models of the clients that trained, or "
        "of a file."
    )
    _run_and_data(parser, RUN, "labelled rows")
    files = "also write evaluation.json and clients.csv there"
    parser.add_argument("--out", type=Path, metavar="DIR", help=files)


def _export(parser: argparse.ArgumentParser) -> None:
    parser.description = "Trained models as files for other programs, which need neither this package nor Lightning."
    parser.add_argument("run", type=Path, metavar="RUN", help=RUN)
    whom = parser.add_mutually_exclusive_group(required=True)
    whom.add_argument("--client", metavar="NAME", help="the model of this client")
    whom.add_argument("--all", action="store_true", help="the models of all clients that trained")
    formats = "safetensors: the weights, in one file; onnx: a .onnx file for each client"
    parser.add_argument("--format", required=True, choices=("safetensors", "onnx"), help=formats)
    out = "a folder (default: exported)"
    parser.add_argument("--out", type=Path, default=Path("exported"), metavar="DIR", help=out)


def check_out(chosen: argparse.Namespace, *endings: str) -> None:
    """Raises UserError unless the file --out may be written: its ending is known, and nothing would be lost."""
    path: Path = chosen.out
    fits = path.suffix in endings and not path.is_dir()
    require(fits, f"--out: expected the name of a file that ends in {' or '.join(endings)}, got {path}")
    read = [part for part in (chosen.run, chosen.data) if path.exists() and part.exists() and path.samefile(part)]
    require(not read, f"--out: {path} is what the command reads")
    require(chosen.force or not path.exists(), f"--out: {path} is already there; choose another name, or add --force")


_OPTIONS = {"personalize": _personalize, "predict": _predict, "evaluate": _evaluate, "export": _export}
