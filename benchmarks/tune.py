"""The same number of trials for every method, scored on validation samples: a CSV file with a row for each trial.

    python benchmarks/tune.py baselines_synthetic --csv docs/lab_notes/tuning/baselines_synthetic.csv
        --methods fedavg fedem [--words WORD ...]
    python benchmarks/tune.py femnist_mlp --csv trials.csv --methods fedem --settings "algorithm.warmup_rounds=60" ""

Each method has as many trials as there are `--rates`: learning rates, or half of them by two values of its most
important key; or a trial for each of the settings given, which are words of the command line. `--words` are words for
all trials, such as dataset.path=femnist.npz. Trials that the file already has are skipped. At last the best trial of
each method is printed; `--best` prints only.
"""

import argparse
import itertools
import time
import warnings
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import pandas as pd
import pytorch_lightning as pl
import torch
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate

from fedem_lightning.evaluation.summaries import summarize_table
from fedem_lightning.run import cli  # noqa: F401  (it registers the resolvers)
from fedem_lightning.run.building import build_model
from fedem_lightning.run.devices import environment
from fedem_lightning.settings.shipped import CONFIG_DIR

RATES = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
KEYS: dict[str, dict[str, tuple[Any, ...]]] = {
    "clustered": {"eps1,eps2": ("0.4,1.6", "auto,auto")},
    "ditto": {"penalty": (0.1, 1.0)},
    "fedala": {"weights_lr": (1.0, 10.0)},
    "fedavg_plus": {"adaptation.client_optimizer.lr": ()},
    "fedbabu": {"adaptation.client_optimizer.lr": ()},
    "fedproto": {"penalty": (0.1, 1.0)},
    "fedprox": {"mu": (0.1, 1.0)},
    "fedrep": {"head_epochs": (1, 5)},
    "per_fedavg": {"inner_lr": ()},
    "apfl": {"alpha": (0.25, 0.75)},
    "pfedme": {"penalty,outer_lr": ("1.0,0.9", "0.1,9.0")},
}
"""Of methods whose learning rate is not all: two values of their most important key.

Such a method tries N / 2 of the N rates, from the second on, with each value. A key without values is itself a learning
rate; its two values come from the rates.
"""


def trials(method: str, rates: Sequence[float]) -> list[dict[str, Any]]:
    """The settings that are tried: {key: value}."""
    half = len(rates) // 2
    more = {key: values or (rates[half - 2], rates[half]) for key, values in KEYS.get(method, {}).items()}
    own = rates[1 : half + 1] if more else rates
    grid = [dict(zip(("lr", *more), values, strict=True)) for values in itertools.product(own, *more.values())]
    assert len(grid) == len(rates)
    return grid


def words(trial: dict[str, Any]) -> list[str]:
    """The trial as words of the command line."""
    found = []
    for keys, values in trial.items():
        for key, value in zip(keys.split(","), str(values).split(","), strict=True):
            name = {"lr": "client_optimizer.lr"}.get(key, key)
            found.append(f"{name if name.startswith('adaptation.') else f'algorithm.{name}'}={value}")
    return found


def run(experiment: str, method: str, setting: str, its_words: list[str], seed: int) -> dict[str, Any]:
    """Trains once; the weighted accuracy on validation samples, NaN if training diverged."""
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    start = time.perf_counter()
    with initialize_config_dir(str(CONFIG_DIR), version_base="1.3"):
        config = compose("config", [f"+experiment={experiment}", f"algorithm={method}", f"seed={seed}", *its_words])
    pl.seed_everything(seed, verbose=False)
    data = instantiate(config.dataset)
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
    rounds = config.trainer.max_epochs
    trainer = pl.Trainer(max_epochs=rounds, accelerator="cpu", devices=1, limit_val_batches=0, logger=False, **quiet)
    try:
        model = build_model(config, data)
        trainer.fit(model, data)
        trainer.test(model, data, verbose=False)
        score = summarize_table(model.clients, "val")["accuracy"]["weighted"]
    except ValueError:  # a user error: training diverged
        score = float("nan")
    seconds = round(time.perf_counter() - start, 1)
    return {
        "method": method,
        "setting": setting,
        "seed": seed,
        "rounds": rounds,
        "validation": score,
        "seconds": seconds,
    }


def settings(method: str, options: argparse.Namespace) -> dict[str, list[str]]:
    """The words of each trial, by what stands in the file."""
    if options.settings is not None:
        return {setting or "default": setting.split() for setting in options.settings}
    grid = trials(method, options.rates)
    return {" ".join(f"{key}={value}" for key, value in trial.items()): words(trial) for trial in grid}


def best(table: pd.DataFrame) -> pd.DataFrame:
    """Each method's best setting: the highest mean over its seeds."""
    means = table.groupby(["method", "setting"], as_index=False)["validation"].mean()
    return means.sort_values("validation", ascending=False).drop_duplicates("method").sort_values("method")


def main() -> None:
    """Runs the trials that are missing, then prints the best."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiment")
    parser.add_argument("--csv", type=Path, required=True)
    parser.add_argument("--methods", nargs="+", required=True)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--settings", nargs="+", help="in place of the method's own trials")
    parser.add_argument(
        "--rates", nargs="+", type=float, default=RATES, help="learning rates, an even number, ascending"
    )
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--best", action="store_true", help="run nothing")
    parser.add_argument("--words", nargs="+", default=[], help="more words of the command line")
    options = parser.parse_args()
    rows = pd.read_csv(options.csv).to_dict("records") if options.csv.is_file() else []
    known = {(row["method"], row["setting"], row["seed"]) for row in rows}
    wanted = [
        (method, setting, [*its_words, *options.words], seed)
        for method, seed in itertools.product(options.methods, options.seeds)
        for setting, its_words in settings(method, options).items()
        if (method, setting, seed) not in known and not options.best
    ]
    commit = environment(torch.device("cpu"))["commit"]
    with ProcessPoolExecutor(options.jobs) as pool:
        waiting = [pool.submit(run, options.experiment, *one) for one in wanted]
        for done in as_completed(waiting):
            rows.append(done.result() | {"commit": str(commit)[:7]})
            options.csv.parent.mkdir(parents=True, exist_ok=True)
            pd.DataFrame(rows).sort_values(["method", "seed", "setting"]).to_csv(options.csv, index=False)
    print(best(pd.DataFrame(rows)).to_string(index=False))


if __name__ == "__main__":
    main()
