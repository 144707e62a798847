"""`python -m fedem_lightning.data`: download data sets."""

import argparse
from pathlib import Path

from fedem_lightning.data.sources import SOURCES, fetch, kept_copy
from fedem_lightning.run.commands import Parser, one_line_for_mistakes
from fedem_lightning.settings.errors import require


def main(arguments: list[str] | None = None) -> None:
    """Entry point of the command; a user's mistake ends it with one line and exit code 2."""
    with one_line_for_mistakes():
        _download(_parser().parse_args(arguments))


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="python -m fedem_lightning.data", description="Downloads data sets.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    download = commands.add_parser("download", help="download a data set into data_dir")
    download.add_argument("name", choices=SOURCES)
    download.add_argument("overrides", nargs="*", help="as for training, e.g. data_dir=/data")
    return parser


def _download(chosen: argparse.Namespace) -> None:
    from fedem_lightning.run.command_line import composed  # slow

    data_dir = composed(chosen.overrides).data_dir
    require(isinstance(data_dir, str), f"data_dir: expected text, got {data_dir}")
    folder = Path(data_dir).expanduser()
    here = kept_copy(chosen.name, folder)
    print(f"written: {fetch(chosen.name, folder)}" if here is None else f"already there: {here}")


if __name__ == "__main__":
    main()
