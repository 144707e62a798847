"""`python -m fedem_lightning.report DIR...`: compare finished runs with one another and with the papers."""

import argparse
from pathlib import Path

from fedem_lightning.run.commands import Parser, one_line_for_mistakes
from fedem_lightning.settings.startup import loading


def main(arguments: list[str] | None = None) -> None:
    """Entry point of the command; a user's mistake ends it with one line and exit code 2."""
    with one_line_for_mistakes():
        chosen = parser().parse_args(arguments)
        with loading():
            from fedem_lightning.report.command import make_report  # takes seconds, which --help should not

        make_report(chosen)


def parser() -> argparse.ArgumentParser:
    """The command's options."""
    options = Parser(
        prog="python -m fedem_lightning.report",
        description="Compares finished runs with one another and with the papers.",
    )
    options.add_argument("folders", nargs="+", metavar="DIR", help="a run's folder, or any folder above runs")
    options.add_argument(
        "--out", type=Path, metavar="DIR", help="also write a page, the table with all columns, and figures there"
    )
    options.add_argument("--force", action="store_true", help="with --out: write over an earlier report")
    return options


if __name__ == "__main__":
    main()
