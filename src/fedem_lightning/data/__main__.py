"""`python -m fedem_lightning.data`: list, download, convert and describe data sets."""

import argparse
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from fedem_lightning.data.names import printable
from fedem_lightning.data.sources import SOURCES, fetch, kept_copy, load_arrays
from fedem_lightning.errors import require
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
    about = "Lists, downloads, converts and describes data sets."
    commands = (parser := Parser(prog="python -m fedem_lightning.data", description=about)).add_subparsers(
        required=True, metavar="COMMAND"
    )
    texts = {
        _list: "the known data sets, and which are already here",
        _download: "download a data set into data_dir",
        _convert: "read a file or folder and write it as one .npz",
        _describe: "clients, samples, classes, heterogeneity of a federation",
    }
    added = {run: commands.add_parser(run.__name__[1:], help=text) for run, text in texts.items()}
    for run, command in added.items():
        command.set_defaults(run=run)
    for run in (_download, _convert):
        added[run].add_argument("name", choices=SOURCES)
    added[_convert].add_argument("path", type=Path)
    added[_convert].add_argument("out", type=Path)
    added[_convert].set_defaults(overrides=[])
    added[_describe].add_argument("dataset", help="a configuration of the group `dataset`, e.g. cifar10")
    added[_describe].add_argument("--figure", type=Path, help="also draw samples by client and class, as PNG")
    for run, example in ((_list, "data_dir=/data"), (_download, "data_dir=/data"), (_describe, "dataset.alpha=1")):
        added[run].add_argument("overrides", nargs="*", help=f"as for training, e.g. {example}")
    return parser


def _compose(overrides: list[str]) -> DictConfig:
    from fedem_lightning.records import configs as configs  # it hands Hydra what stands in no file of its own
    from fedem_lightning.run.command_line import composed

    return composed(overrides)


def _data_dir(overrides: list[str]) -> Path:
    found = _compose(overrides).data_dir
    require(isinstance(found, str), f"data_dir: expected text, got {found}")
    return Path(found).expanduser()


def _list(chosen: argparse.Namespace) -> None:
    from rich.console import Console
    from rich.table import Table

    folder = _data_dir(chosen.overrides)
    table = Table(title=printable(f"data_dir: {folder}"))
    for column in ("name", "what", "classes", "download", "here"):
        table.add_column(column, no_wrap=column == "name", overflow="fold")
    for name, source in SOURCES.items():
        here = "no" if kept_copy(name, folder) is None else "yes"
        classes = str(source.n_classes or "characters")
        table.add_row(name, source.about, classes, f"{source.size} ({source.hub or 'torchvision'})", here)
    Console(markup=False, emoji=False).print(table)


def _download(chosen: argparse.Namespace) -> None:
    folder = _data_dir(chosen.overrides)
    here = kept_copy(chosen.name, folder)
    print(f"written: {fetch(chosen.name, folder)}" if here is None else f"already there: {here}")


def _convert(chosen: argparse.Namespace) -> None:
    require(chosen.out.suffix == ".npz", f"out: expected a name that ends in .npz, got {chosen.out}")
    require(chosen.overrides == [], f"unexpected {' '.join(chosen.overrides)}")
    require(not chosen.out.exists(), f"out: {chosen.out} is already there and will not be written over")
    arrays, _ = load_arrays(chosen.name, chosen.path, data_dir=chosen.out.parent)
    write_arrays(chosen.out, arrays, compressed=False)
    print(f"written: {chosen.out} ({', '.join(f'{k} {v.dtype} {list(v.shape)}' for k, v in arrays.items())})")


def _describe(chosen: argparse.Namespace) -> None:
    there = f"--figure: {chosen.figure} is already there and will not be written over"
    require(chosen.figure is None or not chosen.figure.exists(), there)
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
