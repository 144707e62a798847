"""`python -m fedem_lightning.evaluate RUN [DATA]`: the scores of a trained run, again or on other rows."""

import argparse
import sys
from pathlib import Path

from fedem_lightning.errors import require
from fedem_lightning.records.measures import SPLITS
from fedem_lightning.run.commands import Parser, one_line_for_mistakes
from fedem_lightning.serving.options import add_data_options, check_folder, check_rows_file, check_run
from fedem_lightning.startup.process import loading

FILES = ("evaluation.json", "clients.csv", "confusion.csv", "confusion.png", "clients.png")


def main(arguments: list[str] | None = None) -> None:
    """Entry point of the command.

    Exit code 2 and one line: a user's mistake. Exit code 1: the scores are not those of results.json, or not those that
    the client reported.
    """
    with one_line_for_mistakes():
        chosen = _parser().parse_args(arguments)
        _check(chosen)
        with loading():
            from fedem_lightning.serving.evaluating import run_evaluate  # takes seconds, which --help should not
        same = run_evaluate(chosen)
    if not same:
        sys.exit(1)


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="python -m fedem_lightning.evaluate",
        description="Without DATA: builds the run's data again, tests its newest checkpoint and compares the scores "
        "with results.json; in the folder of a client of its own, with what the client reported. With DATA: scores its "
        "rows with the models of the clients that trained, or of a file.",
    )
    parser.add_argument(
        "run",
        type=Path,
        metavar="RUN",
        help="a run's or a client's folder, a .ckpt file; with DATA also clients' models",
    )
    parser.add_argument("data", type=Path, nargs="?", metavar="DATA", help="labelled rows: .npz, .csv, .tsv, .parquet")
    parser.add_argument("--out", type=Path, metavar="DIR", help="also write tables, figures and evaluation.json there")
    parser.add_argument("--force", action="store_true", help="with --out: write over an earlier evaluation")
    parser.add_argument("--split", choices=SPLITS, help="what is scored (default: test; all of DATA without a split)")
    parser.add_argument(
        "--trust", action="append", default=[], metavar="PACKAGE", help="a package of yours that RUN's model needs"
    )
    add_data_options(parser)
    return parser


def _check(chosen: argparse.Namespace) -> None:
    check_run(chosen.run)
    if chosen.data is not None:
        check_rows_file(chosen.data)
    else:
        options = {name: getattr(chosen, name) for name in ("client", "client_column", "label_column")}
        wrong = [f"--{name.replace('_', '-')}" for name, given in options.items() if given is not None]
        require(not wrong, f"{', '.join(wrong)}: only with DATA")
        require(
            chosen.run.suffix != ".safetensors",
            f"DATA: give a file to score; {chosen.run.name} has no data set of its own",
        )
    if chosen.out is not None:
        check_folder("--out", chosen.out, FILES, chosen.force)


if __name__ == "__main__":
    main()
