"""`python -m fedem_lightning.data`: download and describe data sets."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import OmegaConf

from fedem_lightning.data.sources import SOURCES, fetch, kept_copy
from fedem_lightning.run.commands import Parser, one_line_for_mistakes
from fedem_lightning.settings.errors import require
from fedem_lightning.settings.startup import loading

if TYPE_CHECKING:
    import numpy as np

    from fedem_lightning.data.federation import Federation

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


def _download(chosen: argparse.Namespace) -> None:
    from fedem_lightning.run.command_line import composed

    data_dir = composed(chosen.overrides).data_dir
    require(isinstance(data_dir, str), f"data_dir: expected text, got {data_dir}")
    folder = Path(data_dir).expanduser()
    here = kept_copy(chosen.name, folder)
    print(f"written: {fetch(chosen.name, folder)}" if here is None else f"already there: {here}")


def _describe(chosen: argparse.Namespace) -> None:
    from hydra.utils import instantiate
    from rich.console import Console
    from rich.table import Table

    from fedem_lightning.run.command_line import composed
    from fedem_lightning.run.gate import check_group, keys_typed

    config = composed([f"dataset={chosen.dataset}", *chosen.overrides])
    options = OmegaConf.to_container(config.dataset, resolve=True)
    check_group("dataset", options, keys_typed(chosen.overrides))
    with loading():
        from fedem_lightning.data.arrays import printable
    check_group("dataset", options)
    table = Table(show_header=False)
    for name, value in describe(instantiate(config.dataset).federation).items():
        table.add_row(name.replace("_", " "), printable(repr(value) if name == "vocabulary" else str(value)))
    Console(markup=False, emoji=False).print(table)


def label_counts(federation: "Federation") -> "np.ndarray | None":
    """Samples of each class of each client, int64 [T, Y]; None where a sample has no class of its own."""
    import numpy as np

    n_classes = getattr(federation.task, "n_classes", None)
    if n_classes is None or federation.task.n_targets > 1:
        return None
    counts = np.zeros((federation.n_clients, n_classes), dtype=np.int64)
    for split in federation.splits.values():
        client = np.repeat(np.arange(len(counts)), split.counts().numpy())
        np.add.at(counts, (client, federation.samples.labels(split.index).numpy()), 1)
    return counts


def describe(federation: "Federation") -> dict[str, Any]:
    """Statistics of a federation as plain numbers; docs/data.md defines them."""
    import numpy as np

    sizes = np.stack([split.counts().numpy() for split in federation.splits.values()])  # [split, T]
    counts, total = label_counts(federation), sizes.sum(axis=0)
    facts: dict[str, Any] = {
        "clients": federation.n_clients,
        "seen": int(federation.seen.sum()),
        "samples": int(total.sum()),
        **{f"{name} samples": int(n) for name, n in zip(federation.splits, sizes.sum(axis=1), strict=True)},
        "sample shape": federation.in_shape,
        "samples a client": f"{total.min()} to {total.max()}, median {int(np.median(total))}",
    }
    if counts is not None:
        own = counts / np.maximum(1, counts.sum(axis=1, keepdims=True))  # label shares of each client [T, Y]
        pooled = counts.sum(axis=0) / max(1, counts.sum())
        distance = np.abs(own - pooled).sum(axis=1) / 2  # total variation, [T]
        facts["classes"] = f"{int((counts.sum(axis=0) > 0).sum())} of {counts.shape[1]} occur"
        facts["classes a client"] = f"{np.count_nonzero(counts, axis=1).mean():.1f} on average"
        meaning = "total variation between a client's labels and all, weighted by samples: 0 alike, 1 disjoint"
        facts["heterogeneity"] = f"{np.average(distance, weights=total):.3f} ({meaning})"
    return {**facts, **federation.notes, "digest": federation.digest()}


if __name__ == "__main__":
    main()
