"""`python -m fedem_lightning.data`: download and describe data sets."""

import argparse
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from fedem_lightning.data.sources import SOURCES, fetch, kept_copy
from fedem_lightning.errors import require
from fedem_lightning.run.commands import Parser, one_line_for_mistakes

# Modules that are slow to import are imported by the command that uses them.


def main(arguments: list[str] | None = None) -> None:
    """Entry point of the command; a user's mistake ends it with one line and exit code 2."""
    with one_line_for_mistakes():
        chosen, more = _parser().parse_known_args(arguments)
        options = [argument for argument in more if argument.startswith("-")]
        require(not options, f"unknown option {', '.join(options)}")
        chosen.overrides.extend(more)  # overrides that follow an option
        chosen.run(chosen)


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="python -m fedem_lightning.data", description="Downloads and describes data sets.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    download = commands.add_parser("download", help="download a data set into data_dir")
    download.set_defaults(run=_download)
    download.add_argument("name", choices=SOURCES)
    download.add_argument("overrides", nargs="*", help="as for training, e.g. data_dir=/data")
    describe = commands.add_parser("describe", help="clients, samples, classes, heterogeneity of a federation")
    describe.set_defaults(run=_describe)
    describe.add_argument("dataset", help="a configuration of the group `dataset`, e.g. cifar10")
    describe.add_argument("overrides", nargs="*", help="as for training, e.g. dataset.alpha=1")
    return parser


def _compose(overrides: list[str]) -> DictConfig:
    from fedem_lightning.records import configs as configs  # it hands Hydra what stands in no file of its own
    from fedem_lightning.run.command_line import composed

    return composed(overrides)


def _download(chosen: argparse.Namespace) -> None:
    data_dir = _compose(chosen.overrides).data_dir
    require(isinstance(data_dir, str), f"data_dir: expected text, got {data_dir}")
    folder = Path(data_dir).expanduser()
    here = kept_copy(chosen.name, folder)
    print(f"written: {fetch(chosen.name, folder)}" if here is None else f"already there: {here}")


def _describe(chosen: argparse.Namespace) -> None:
    config = _compose([f"dataset={chosen.dataset}", *chosen.overrides])
    from hydra.utils import instantiate

    from fedem_lightning.data.describe import print_description
    from fedem_lightning.run.gate import check_group

    check_group("dataset", OmegaConf.to_container(config.dataset, resolve=True))
    print_description(instantiate(config.dataset).federation)


if __name__ == "__main__":
    main()
