"""`python -m fedem_lightning.report DIR...`: compare finished runs with one another and with the papers."""

import argparse
from pathlib import Path

from fedem_lightning.run.commands import Parser, one_line_for_mistakes
from fedem_lightning.startup.process import loading


def main(arguments: list[str] | None = None) -> None:
    """Entry point of the command; a user's mistake ends it with one line and exit code 2.

    Args:
        arguments: arguments of the command; None: those of the process.

    """
    with one_line_for_mistakes():
        chosen = _parser().parse_args(arguments)
        with loading():
            from fedem_lightning.report.command import make_report  # takes seconds, which --help should not
        make_report(chosen)


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="python -m fedem_lightning.report",
        description="Compares finished runs with one another and with the papers.",
    )
    parser.add_argument("folders", nargs="+", metavar="DIR", help="a run's folder, or any folder above runs")
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="also write the tables as Markdown, CSV and LaTeX, and figures there"
    )
    parser.add_argument("--force", action="store_true", help="with --out: write over an earlier report")
    parser.add_argument(
        "--table", metavar="NAME", help="the paper's table to compare with, e.g. fedem-table-7; default: what fits"
    )
    equal = parser.add_mutually_exclusive_group()
    equal.add_argument(
        "--equal-communication",
        action="store_true",
        help="compare at the megabytes that the cheapest method used, not after the last round",
    )
    equal.add_argument(
        "--equal-time", metavar="NETWORK", help="compare at the simulated time that the cheapest method used"
    )
    parser.add_argument(
        "--choose",
        metavar="KEY",
        help="adds rows in which every client takes the value of KEY with its lowest validation loss, "
        "e.g. algorithm.n_components",
    )
    parser.add_argument(
        "--compare", nargs=2, metavar=("A", "B"), help="also compare two rows client by client; labels, or algorithms"
    )
    parser.add_argument(
        "--recommend", action="store_true", help="also say which method and which M to take, by validation scores"
    )
    parser.add_argument(
        "--main", metavar="METHOD", help="the algorithm that the headline is about; figures draw its lines wide"
    )
    parser.add_argument(
        "--target",
        type=float,
        metavar="SCORE",
        help="count rounds, megabytes and seconds until this test score, in the tables' unit; default: FedAvg's last",
    )
    parser.add_argument(
        "--labels", nargs="+", metavar="ROW=NAME", help="names of your own for rows in tables and figures"
    )
    parser.add_argument(
        "--style", choices=["paper"], help="with --out: figures also as PDF for print, 3.25 and 6.75 inches wide"
    )
    parser.add_argument("--watch", action="store_true", help="draw the table again and again while a sweep runs")
    parser.add_argument("--every", type=float, default=10.0, metavar="SECONDS", help="with --watch: how often (10)")
    return parser


if __name__ == "__main__":
    main()
