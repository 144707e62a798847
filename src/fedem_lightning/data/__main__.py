"""`python -m fedem_lightning.data`: list, download, convert and describe data sets."""

import argparse
import sys
from pathlib import Path

from hydra import compose, initialize_config_dir
from hydra.utils import instantiate
from rich.console import Console
from rich.table import Table

from fedem_lightning.cli import CONFIG_DIR, user_message
from fedem_lightning.data.datamodule import FederatedDataModule
from fedem_lightning.data.describe import draw, print_description
from fedem_lightning.data.formats.npz import write_npz
from fedem_lightning.data.sources import SOURCES, fetch, read
from fedem_lightning.errors import UserError, require


def main(arguments: list[str] | None = None) -> None:
    """Entry point; exit code 2 and one line for a user's mistake."""
    chosen = _parser().parse_args(arguments)
    try:
        chosen.run(chosen)
    except Exception as error:
        message = user_message(error)
        if message is None:
            raise
        print(f"error: {message}", file=sys.stderr)
        sys.exit(2)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m fedem_lightning.data", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    command = commands.add_parser("list", help="the known data sets, and which are already here")
    command.set_defaults(run=_list)
    command = commands.add_parser("download", help="download a data set into data_dir")
    command.add_argument("name", choices=SOURCES)
    command.set_defaults(run=_download)
    command = commands.add_parser("convert", help="read a file or folder and write it as one .npz that can be mapped")
    command.add_argument("name", choices=SOURCES)
    command.add_argument("path", type=Path)
    command.add_argument("out", type=Path)
    command.set_defaults(run=_convert)
    command = commands.add_parser("describe", help="clients, samples, classes, heterogeneity of a federation")
    command.add_argument("dataset", help="a configuration of the group `dataset`, e.g. cifar10")
    command.add_argument("overrides", nargs="*", help="as for training, e.g. dataset.alpha=0.1 seed=1")
    command.add_argument("--figure", type=Path, help="also draw samples by client and class, as PNG")
    command.set_defaults(run=_describe)
    return parser


def _data_dir() -> Path:
    with initialize_config_dir(str(CONFIG_DIR), version_base="1.3"):
        return Path(compose("config").data_dir).expanduser()


def _list(chosen: argparse.Namespace) -> None:
    folder = _data_dir()
    table = Table(title=f"data_dir: {folder}")
    for column in ("name", "what", "classes", "download", "here"):
        table.add_column(column, no_wrap=column == "name", overflow="fold")
    for name, source in SOURCES.items():
        here = (folder / f"{name}.npz").exists() or (folder / name).exists()
        origin = "torchvision" if source.hub is None else source.hub
        classes = str(source.n_classes or "characters")
        table.add_row(name, source.about, classes, f"{source.size} ({origin})", "yes" if here else "no")
    Console().print(table)


def _download(chosen: argparse.Namespace) -> None:
    target = _data_dir() / f"{chosen.name}.npz"
    if target.exists():
        print(f"already there: {target}")
    else:
        print(f"written: {fetch(chosen.name, _data_dir())}")


def _convert(chosen: argparse.Namespace) -> None:
    require(chosen.out.suffix == ".npz", f"out: expected a name that ends in .npz, got {chosen.out}")
    require(not chosen.out.exists(), f"out: {chosen.out} is already there and will not be written over")
    require(chosen.path.exists(), f"dataset.path: no file or folder {chosen.path}")
    arrays = read(chosen.name, chosen.path)
    missing = [array for array in SOURCES[chosen.name].arrays if array not in arrays]
    require(not missing, f"dataset.path: {chosen.path} lacks {', '.join(missing)}, which {chosen.name} needs")
    write_npz(chosen.out, arrays)
    print(f"written: {chosen.out} ({', '.join(f'{k} {v.dtype} {list(v.shape)}' for k, v in arrays.items())})")


def _describe(chosen: argparse.Namespace) -> None:
    if chosen.figure is not None and chosen.figure.exists():
        raise UserError(f"--figure: {chosen.figure} is already there and will not be written over")
    with initialize_config_dir(str(CONFIG_DIR), version_base="1.3"):
        config = compose("config", [f"dataset={chosen.dataset}", *chosen.overrides])
    data: FederatedDataModule = instantiate(config.dataset)
    print_description(data.federation)
    if chosen.figure is not None:
        draw(data.federation, chosen.figure)
        print(f"drawn: {chosen.figure}")


if __name__ == "__main__":
    main()
