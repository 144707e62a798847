"""The scores of docs/reproduction/baselines.md and real_data.md from the runs of a sweep: one Markdown row a method.

    python benchmarks/tables.py runs/cifar10 [--against fedem fedavg_ensemble]
    python benchmarks/tables.py runs/cifar10 --round 10
    python benchmarks/tables.py runs/cifar10_unseen --unseen
    python benchmarks/tables.py runs/privacy --by aggregation.epsilon aggregation.cohort

Columns: test accuracy weighted by training samples and bottom decile (mean and standard deviation over the seeds, no
deviation with one seed), the share of clients that are worse off than with Local and with FedAvg, megabytes a client.
`--against A B ...` compares A with each B, client by client: the mean difference over seeds, its 95 % interval and p
over the clients. Both are about other clients with the same trained models, not about other seeds. `--round N` takes
scores and megabytes of an evaluated round, in place of the last. `--unseen` scores the clients that did not
train. `--by` prints a row for each method and value of the given words of the command line: accuracy, decile,
megabytes up.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml

from fedem_lightning.evaluation.mean_tests import mean_tests
from fedem_lightning.settings.shipped import method_title

Tables = dict[tuple[str, int], pd.DataFrame]
"""The clients' tables, by method and seed."""


def at_round(run: Path, number: int) -> dict[str, float]:
    """Scores and megabytes of an evaluated round."""
    evaluated = pd.read_csv(run / "metrics.csv").dropna(subset=["test/accuracy"]).set_index("round")
    if number not in evaluated.index:
        raise ValueError(f"{run}: round {number} was not evaluated, but {', '.join(map(str, evaluated.index))}")
    metrics = evaluated.loc[number]
    return {
        "accuracy": 100 * metrics["test/accuracy"],
        "decile": 100 * metrics["test/accuracy_bottom_decile"],
        "up": metrics.up_megabytes,
        "megabytes": metrics.up_megabytes + metrics.down_megabytes,
    }


def at_end(results: dict[str, Any], unseen: bool) -> dict[str, float]:
    """Scores of the trained models, on seen or unseen clients, and megabytes of the run."""
    score, sent = (results["unseen"] if unseen else results)["test"]["accuracy"], results["communication"]
    return {
        "accuracy": 100 * score["weighted"],
        "decile": 100 * score["bottom_decile"],
        "up": sent["up_bytes"] / 1e6,
        "megabytes": (sent["up_bytes"] + sent["down_bytes"]) / 1e6,
    }


def read(
    folder: Path, by: Sequence[str] = (), *, unseen: bool = False, round_: int | None = None
) -> tuple[pd.DataFrame, Tables]:
    """A row for each run below a folder, and the scores of its clients; with a column for each word in `by`."""
    rows, clients, population = [], Tables(), "unseen" if unseen else "seen"
    for path in sorted(folder.rglob("results.json")):
        found = json.loads(path.read_text())
        words = dict(w.split("=", 1) for w in yaml.safe_load((path.parent / ".hydra" / "overrides.yaml").read_text()))
        method = words.get("algorithm", found["algorithm"])
        if round_ is None:  # clients' scores are those of the last round
            table = pd.read_parquet(path.parent / "clients.parquet").set_index("id")
            clients[method, found["seed"]] = table[(table["population"] == population) & table["test_accuracy"].notna()]
        if unseen and found["unseen"] is None:
            raise ValueError(f"{path.parent}: all clients trained; it needs dataset.unseen_fraction")
        scores = at_end(found, unseen) if round_ is None else at_round(path.parent, round_)
        row = {"method": method, "seed": found["seed"], "minutes": found["seconds"]["total"] / 60, **scores}
        rows.append(row | {"n_clients": found["n_clients"]} | {word: words.get(word, "") for word in by})
    if not rows:
        raise ValueError(f"{folder}: no results.json in it")
    runs = pd.DataFrame(rows)
    runs[["up", "megabytes"]] = runs[["up", "megabytes"]].div(runs.n_clients, axis=0)  # of a client
    return runs, clients


def worse_than(clients: Tables, method: str, other: str) -> str:
    """The share of clients whose accuracy is below that which `other` gives them, mean over the seeds."""
    seeds = [seed for name, seed in clients if name == method and (other, seed) in clients]
    if method == other or not seeds:
        return ""
    columns = [(clients[method, seed].test_accuracy, clients[other, seed].test_accuracy) for seed in seeds]
    return f"{100 * np.mean([(own < theirs).mean() for own, theirs in columns]):.0f} %"


def difference(clients: Tables, method: str, other: str) -> tuple[float, float, float, float]:
    """The mean difference of two methods over seeds, in points, its 95 % interval, and p, over the clients.

    A client is tested once with its differences of all seeds. A weighted mean is tested as the mean of m + T w_t (g_t -
    m) / sum w, where client t has the difference g_t and the weight w_t. Where a partition makes new clients for each
    seed, clients that only share a name are joined.
    """
    gains, sizes = {}, {}
    for seed in [seed for name, seed in clients if name == method and (other, seed) in clients]:
        gains[seed] = clients[method, seed].test_accuracy - clients[other, seed].test_accuracy
        sizes[seed] = clients[method, seed].n_train
    gain = 100 * pd.DataFrame(gains)  # [clients, seeds]; NaN: not scored
    weight = pd.DataFrame(sizes).where(gain.notna(), 0)
    mean = (gain * weight).sum() / weight.sum()  # [seeds]
    values = (mean + len(gain) * (weight * (gain - mean)).fillna(0) / weight.sum()).mean(axis=1).to_numpy()
    found = mean_tests(values, np.zeros(len(values), dtype=np.int64), 1)
    return float(mean.mean()), float(found.low[0]), float(found.high[0]), float(found.p[0])


def check_compared(clients: Tables, methods: Sequence[str]) -> None:
    """Raises ValueError if a method has no run, or no seed in common with the first."""
    for method in methods:
        if not {seed for name, seed in clients if name == method} & {s for name, s in clients if name == methods[0]}:
            there = ", ".join(sorted({name for name, _ in clients}))
            raise ValueError(f"--against {method}: no runs of common seeds; the methods here are {there}")


def over_seeds(mean: float, deviation: float) -> str:
    """Mean and standard deviation; one seed has no deviation (NaN)."""
    return f"{mean:.1f}" if np.isnan(deviation) else f"{mean:.1f} ± {deviation:.1f}"


def print_by(runs: pd.DataFrame, by: list[str]) -> None:
    """A row for each method and setting."""
    groups = runs.groupby(["method", *by])[["accuracy", "decile", "up"]]
    deviations = groups.std()
    for key, row in groups.mean().iterrows():
        spread, (method, *values) = deviations.loc[key], key
        scores = [over_seeds(row[score], spread[score]) for score in ("accuracy", "decile")]
        print("| " + " | ".join([method_title(str(method)), *values, *scores, f"{row.up:.3g}"]) + " |")
    print(f"{len(runs)} runs, {runs.minutes.sum():.0f} minutes")


def main() -> None:
    """Prints the rows, and the comparisons."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--against", nargs="+", default=[], metavar="METHOD")
    parser.add_argument("--by", nargs="+", default=[], metavar="WORD")
    parser.add_argument("--round", type=int)
    parser.add_argument("--unseen", action="store_true")
    options = parser.parse_args()
    if options.round is not None and (options.unseen or options.against):
        parser.error("--round: only the last round has scores of single and of unseen clients")
    try:
        runs, clients = read(options.folder, options.by, unseen=options.unseen, round_=options.round)
        check_compared(clients, options.against)
    except ValueError as error:
        parser.error(str(error))
    if options.by:
        print_by(runs, options.by)
        return
    groups = runs.groupby("method")[["accuracy", "decile", "megabytes"]]
    means, deviations = groups.mean().sort_values("accuracy", ascending=False), groups.std()
    for method, row in means.iterrows():
        spread = deviations.loc[method]
        cells = [method_title(str(method)), f"`{method}`"]
        cells += [over_seeds(row[score], spread[score]) for score in ("accuracy", "decile")]
        cells += [worse_than(clients, method, other) for other in ("local", "fedavg")] + [f"{row.megabytes:.2f}"]
        print("| " + " | ".join(cells) + " |")
    print(f"{len(runs)} runs, {runs.minutes.sum():.0f} minutes")
    for other in options.against[1:]:
        mean, low, high, p = difference(clients, options.against[0], other)
        print(f"{options.against[0]} - {other}: {mean:.2f} ({low:.2f} to {high:.2f}), p {p:.2g}")


if __name__ == "__main__":
    main()
