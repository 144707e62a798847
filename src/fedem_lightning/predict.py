"""`python -m fedem_lightning.predict RUN DATA --out FILE`: every row's prediction by its client's model."""

import argparse
from pathlib import Path

from fedem_lightning.run.commands import Parser
from fedem_lightning.serving.options import (
    add_data_options,
    check_out,
    check_rows_file,
    check_run,
    parser_of,
    run_command,
)


def main(arguments: list[str] | None = None) -> None:
    """Entry point of the command; a user's mistake ends it with one line and exit code 2."""
    run_command(_parser(), arguments, _check, "clients_on_rows.run_predict")


def _check(chosen: argparse.Namespace) -> None:
    check_run(chosen.run)
    check_rows_file(chosen.data)
    check_out(chosen.out, (".parquet", ".csv"), chosen.force, (chosen.run, chosen.data))


def _parser() -> Parser:
    parser = parser_of(
        "predict",
        "Predicts every row of DATA with the model of its client. The file has the rows in their order, with the "
        "columns client, class and p_CLASS, or client and mean in a regression.",
        run="a run's or a client's folder, a .ckpt file, or clients' models (.safetensors)",
    )
    parser.add_argument("data", type=Path, metavar="DATA", help="the rows: .npz, .csv, .tsv or .parquet")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="a .parquet or .csv file")
    add_data_options(parser)
    return parser


if __name__ == "__main__":
    main()
