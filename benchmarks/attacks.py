"""Methods, faulty clients and aggregations: the honest clients' test accuracy, cell by cell (docs/robustness.md).

    python benchmarks/attacks.py --json attacks.json --femnist femnist.npz --jobs 2 > attacks.md

Cells that the JSON file already has are skipped, so a call that was stopped continues.
"""

import argparse
import functools
import json
import sys
import warnings
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

import pytorch_lightning as pl
import torch
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from common import bare_parser, make_trainer, print_header, print_row
from fedem_lightning import FederatedDataModule, SendNaN
from fedem_lightning.evaluate.summaries import summarize_table
from fedem_lightning.run import cli  # noqa: F401  (it registers the resolvers)
from fedem_lightning.run.building import build_model
from fedem_lightning.settings.keys import CONFIG_DIR

METHODS = ("fedavg", "fedem", "hypcluster", "user_centric")
RULES = ("mean", "norm_clipping", "median", "trimmed_mean", "multi_krum")
ATTACKS = ("sign_flip", "scaling", "label_flip")
SHARES = (0.1, 0.2)
STREAMS = "algorithm.n_streams=4"  # of user_centric; with one for each client a median takes as many sorts


class Cell(NamedTuple):
    """One run."""

    data: str
    method: str
    attack: str  # "none" without faults
    share: float
    rule: str
    seed: int

    @property
    def name(self) -> str:
        """The cell's name in the JSON file."""
        return " ".join(map(str, self))


def cells(options: argparse.Namespace) -> Iterator[Cell]:
    """All cells, the mean without faults first."""
    faulty = [(attack, share) for attack in options.attacks for share in options.shares]
    for seed in options.seeds:
        for data in options.data:
            for attack, share in [("none", 0.0), *faulty]:
                for method in options.methods:
                    for rule in options.rules:
                        yield Cell(data, method, attack, share, rule, seed)


def overrides(cell: Cell, options: argparse.Namespace) -> list[str]:
    """The command line's words for a cell."""
    if cell.data == "femnist":
        words = ["+experiment=femnist_mlp", f"dataset.path={options.femnist}", f"dataset.n_clients={options.writers}"]
        words += ["learning_rates.hypcluster=0.06", "learning_rates.user_centric=0.06"]
    else:
        words = [f"dataset.n_clients={options.clients}", f"dataset.test_size={options.test_size}"]
        words += ["learning_rates.hypcluster=1.0", "learning_rates.user_centric=1.0"]
    words += [f"algorithm={cell.method}", f"aggregation={cell.rule}", f"seed={cell.seed}"]
    words += [STREAMS] if cell.method == "user_centric" else []
    if cell.rule == "trimmed_mean":
        words.append("aggregation.trim=0.2")
    if cell.attack != "none":
        words += [f"faults={cell.attack}", f"faults.share={cell.share}"]
    return words


def run(cell: Cell, options: argparse.Namespace) -> dict[str, Any]:
    """Trains one cell; the weighted test accuracy over its honest clients, or why there is none.

    Without faults it has the accuracy over the clients that are honest under each share, for comparison.
    """
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    with initialize_config_dir(str(CONFIG_DIR), version_base="1.3"):
        config = compose("config", overrides(cell, options))
    try:
        found = _accuracy(config, cell, options)
    except ValueError as error:  # a user error: training diverged
        found = {"accuracy": {}, "stopped": str(error)}
    return {**cell._asdict(), **found}


def _accuracy(config: DictConfig, cell: Cell, options: argparse.Namespace) -> dict[str, Any]:
    pl.seed_everything(cell.seed, verbose=False)
    data = _data(OmegaConf.to_yaml(config.dataset, resolve=True))
    model = build_model(config, data)
    rounds = options.femnist_rounds if cell.data == "femnist" else options.rounds
    trainer = make_trainer(rounds, torch.device("cpu"))
    trainer.fit(model, data)
    trainer.test(model, data, verbose=False)
    everybody = data.federation.clients()
    found = {}
    for share in [cell.share] if cell.share else [0.0, *options.shares]:
        faulty = torch.isin(everybody, SendNaN(share).faulty(everybody, cell.seed, 0)).numpy()
        honest = model.clients[~faulty]
        found[str(share)] = summarize_table(honest, "test")["accuracy"]["weighted"]
    return {"accuracy": found, "rejected": model.statistics.rejections.total}


@functools.cache
def _data(config: str) -> FederatedDataModule:
    """The data set of a configuration; a process reads each once."""
    data: FederatedDataModule = instantiate(OmegaConf.create(config))
    return data


def measure(options: argparse.Namespace, known: dict[str, Any]) -> None:
    """Runs the cells that are missing, and saves each at once."""
    missing = [cell for cell in cells(options) if cell.name not in known]
    with ProcessPoolExecutor(options.jobs) as pool:
        waiting = [pool.submit(run, cell, options) for cell in missing]
        for number, done in enumerate(as_completed(waiting), start=1):
            result = done.result()
            cell = Cell(*(result[name] for name in Cell._fields))
            known[cell.name] = result
            if options.json:
                temporary = options.json.with_suffix(".tmp")
                temporary.write_text(json.dumps({"settings": settings(options), "cells": known}, indent=1) + "\n")
                temporary.replace(options.json)
            score = f"{100 * result['accuracy'][str(cell.share)]:.1f}" if result["accuracy"] else result["stopped"]
            print(f"{number}/{len(missing)} {cell.name}: {score}", file=sys.stderr, flush=True)


def tables(options: argparse.Namespace, known: dict[str, Any]) -> None:
    """Prints a Markdown table for each data set."""
    for data in options.data:
        title = f"{data}: test accuracy of the honest clients in %, weighted by training samples"
        print_header(title, "method", "faulty clients", *(rule.replace("_", " ") for rule in options.rules))
        faulty = [(attack, share) for attack in options.attacks for share in options.shares]
        for method in options.methods:
            for attack, share in [("none", 0.0), *faulty]:
                who = "none" if attack == "none" else f"{share:.0%} {attack.replace('_', ' ')}"
                row = [Cell(data, method, attack, share, rule, 0) for rule in options.rules]
                print_row(method, who, *(shown(cell, options.seeds, known) for cell in row))


def shown(cell: Cell, seeds: list[int], known: dict[str, Any]) -> str:
    """A cell of the table: the mean over seeds, and in brackets the difference from the same clients without faults.

    "stopped" if a run diverged, "-" if one is missing.
    """
    runs = [known.get(cell._replace(seed=seed).name) for seed in seeds]
    clean = [known.get(cell._replace(attack="none", share=0.0, seed=seed).name) for seed in seeds]
    if any(run is None for run in runs):
        return "-"
    scores = [100 * run["accuracy"][str(cell.share)] for run in runs if run is not None and run["accuracy"]]
    if len(scores) < len(runs):
        return "stopped"
    if cell.attack == "none" or not all(run is not None and run["accuracy"] for run in clean):
        return f"{mean(scores):.1f}"
    without = [100 * run["accuracy"][str(cell.share)] for run in clean if run is not None]
    return f"{mean(scores):.1f} ({mean(scores) - mean(without):+.1f})"


def settings(options: argparse.Namespace) -> dict[str, Any]:
    """What all cells of a file share."""
    sizes = ("clients", "test_size", "rounds", "writers", "femnist_rounds")
    return {name: getattr(options, name) for name in sizes} | {"shares": list(options.shares)}


def main() -> None:
    """Measures, then prints the tables."""
    parser = bare_parser(__doc__)
    parser.add_argument("--femnist", type=Path, metavar="FILE", help="default: the synthetic mixture alone")
    for name, known in (("methods", METHODS), ("rules", RULES), ("attacks", ATTACKS)):
        parser.add_argument(f"--{name}", nargs="+", choices=known, default=known)
    parser.add_argument("--shares", nargs="+", type=float, default=SHARES, help="of faulty clients")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--clients", type=int, default=60, help="of the synthetic mixture")
    parser.add_argument("--test-size", type=int, default=1000, help="test samples of a synthetic client")
    parser.add_argument("--rounds", type=int, default=60, help="of the synthetic mixture")
    parser.add_argument("--writers", type=int, default=30)
    parser.add_argument("--femnist-rounds", type=int, default=40)
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    options = parser.parse_args()
    options.data = ("synthetic", "femnist") if options.femnist else ("synthetic",)
    saved = json.loads(options.json.read_text()) if options.json and options.json.is_file() else {}
    if saved and saved["settings"] != settings(options):
        parser.error(f"--json: {options.json} has other sizes: {saved['settings']}")
    known = saved.get("cells", {})
    measure(options, known)
    tables(options, known)


if __name__ == "__main__":
    main()
