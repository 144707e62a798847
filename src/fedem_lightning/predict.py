"""`python -m fedem_lightning.predict RUN DATA --out FILE`: every row's prediction by its client's model."""

import argparse
from pathlib import Path

from fedem_lightning.run.commands import Parser, one_line_for_mistakes
from fedem_lightning.serving.options import add_data_options, check_out, check_rows_file, check_run
from fedem_lightning.startup.process import loading


def main(arguments: list[str] | None = None) -> None:
    """Entry point of the command; a user's mistake ends it with one line and exit code 2."""
    with one_line_for_mistakes():
        chosen = _parser().parse_args(arguments)
        check_run(chosen.run)
        check_rows_file(chosen.data)
        check_out(chosen.out, (".parquet", ".csv"), chosen.force, (chosen.run, chosen.data))
        with loading():
            from fedem_lightning.serving.clients_on_rows import run_predict  # takes seconds, which --help should not
        run_predict(chosen)


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="python -m fedem_lightning.predict",
        description="Predicts every row of DATA with the model of its client. The file has the rows in their order, "
        "with the columns client, class and p_CLASS, or client and mean in a regression.",
    )
    parser.add_argument(
        "run",
        type=Path,
        metavar="RUN",
        help="a run's or a client's folder, a .ckpt file, or clients' models (.safetensors)",
    )
    parser.add_argument("data", type=Path, metavar="DATA", help="the rows: .npz, .csv, .tsv or .parquet")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="a .parquet or .csv file")
    parser.add_argument("--force", action="store_true", help="write over an earlier file")
    parser.add_argument(
        "--trust", action="append", default=[], metavar="PACKAGE", help="a package of yours that RUN's model needs"
    )
    add_data_options(parser)
    return parser


if __name__ == "__main__":
    main()
