"""`python -m fedem_lightning.data`: list, download, convert and describe data sets."""

import argparse
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from fedem_lightning.data.sources import SOURCES, kept_copy
from fedem_lightning.errors import UserError, require
from fedem_lightning.records.files import write_arrays
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
    parser = Parser(
        prog="python -m fedem_lightning.data", description="Lists, downloads, converts and describes data sets."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    command = commands.add_parser("list", help="the known data sets, and which are already here")
    command.add_argument("overrides", nargs="*", help="e.g. data_dir=/data")
    command.set_defaults(run=_list)
    command = commands.add_parser("download", help="download a data set into data_dir")
    command.add_argument("name", choices=SOURCES)
    command.add_argument("overrides", nargs="*", help="e.g. data_dir=/data")
    command.set_defaults(run=_download)
    command = commands.add_parser("convert", help="read a file or folder and write it as one .npz that can be mapped")
    command.add_argument("name", choices=SOURCES)
    command.add_argument("path", type=Path)
    command.add_argument("out", type=Path)
    command.set_defaults(run=_convert, overrides=[])
    command = commands.add_parser("describe", help="clients, samples, classes, heterogeneity of a federation")
    command.add_argument("dataset", help="a configuration of the group `dataset`, e.g. cifar10")
    command.add_argument("overrides", nargs="*", help="as for training, e.g. dataset.alpha=0.1 seed=1")
    command.add_argument("--figure", type=Path, help="also draw samples by client and class, as PNG")
    command.set_defaults(run=_describe)
    return parser


def _compose(overrides: list[str]) -> DictConfig:
    from fedem_lightning.run.command_line import composed

    return composed(overrides)


def _data_dir(overrides: list[str]) -> Path:
    found = _compose(overrides).data_dir
    require(isinstance(found, str), f"data_dir: expected text, got {found}")
    return Path(found).expanduser()


def _list(chosen: argparse.Namespace) -> None:
    from rich.console import Console
    from rich.table import Table

    from fedem_lightning.data.names import printable

    folder = _data_dir(chosen.overrides)
    table = Table(title=printable(f"data_dir: {folder}"))
    for column in ("name", "what", "classes", "download", "here"):
        table.add_column(column, no_wrap=column == "name", overflow="fold")
    for name, source in SOURCES.items():
        here = kept_copy(name, folder) is not None
        origin = "torchvision" if source.hub is None else source.hub
        classes = str(source.n_classes or "characters")
        table.add_row(name, source.about, classes, f"{source.size} ({origin})", "yes" if here else "no")
    Console(markup=False, emoji=False).print(table)


def _download(chosen: argparse.Namespace) -> None:
    from fedem_lightning.data.sources import fetch

    folder = _data_dir(chosen.overrides)
    here = kept_copy(chosen.name, folder)
    print(f"written: {fetch(chosen.name, folder)}" if here is None else f"already there: {here}")


def _convert(chosen: argparse.Namespace) -> None:
    require(chosen.out.suffix == ".npz", f"out: expected a name that ends in .npz, got {chosen.out}")
    require(chosen.overrides == [], f"unexpected {' '.join(chosen.overrides)}")
    require(not chosen.out.exists(), f"out: {chosen.out} is already there and will not be written over")
    from fedem_lightning.data.sources import load_arrays

    arrays, _ = load_arrays(chosen.name, chosen.path, data_dir=chosen.out.parent)
    write_arrays(chosen.out, arrays, compressed=False)
    print(f"written: {chosen.out} ({', '.join(f'{k} {v.dtype} {list(v.shape)}' for k, v in arrays.items())})")


def _describe(chosen: argparse.Namespace) -> None:
    if chosen.figure is not None and chosen.figure.exists():
        raise UserError(f"--figure: {chosen.figure} is already there and will not be written over")
    require(chosen.figure is None or chosen.figure.suffix == ".png", f"--figure: expected a .png, got {chosen.figure}")
    config = _compose([f"dataset={chosen.dataset}", *chosen.overrides])
    from hydra.utils import instantiate

    from fedem_lightning.data.describe import draw_federation, print_description
    from fedem_lightning.run.gate import check_group

    check_group("dataset", OmegaConf.to_container(config.dataset, resolve=True))
    data = instantiate(config.dataset)
    print_description(data.federation)
    if chosen.figure is not None:
        draw_federation(data.federation, chosen.figure)
        print(f"drawn: {chosen.figure}")


if __name__ == "__main__":
    main()
