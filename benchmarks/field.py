"""A table of the field: all methods on many federations, the same number of trials for each, then several seeds.

    python benchmarks/field.py run --data DATA --out field [--only digits] [--methods fedem ditto] [--add mine.py]
    python benchmarks/field.py table --out field [--md FILE]

`run` goes on where it was stopped, after days too; each run is an ordinary one in a folder, its command in `runs.json`.
`--add` takes the methods that a file of yours defines. Validation chooses a method's setting, on seed 0; seeds 1, 2, 3
have splits and training of their own, and their test rows are looked at once. A method that is not defined for a
federation is a missing cell, with its reason. For DATA see federations.py.
"""

import argparse
import importlib
import inspect
import json
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

import fedem_lightning as fl
from fedem_lightning.comparison.runs import Done, Runs
from fedem_lightning.comparison.search import Search
from fedem_lightning.comparison.trials import Candidate, candidates
from fedem_lightning.report.finished_run import Run, read_run
from fedem_lightning.settings.keys import choices
from federations import Source, federations

TARGET = "fedavg"
"""The method whose validation score at its best round is the target of `megabytes` and `gradients`."""


def methods_of(path: Path) -> list[str]:
    """Import paths of the methods that a file defines."""
    sys.path.insert(0, str(path.resolve().parent))
    module = importlib.import_module(path.stem)
    kinds = [kind for _, kind in inspect.getmembers(module, inspect.isclass) if kind.__module__ == module.__name__]
    return [f"{path.stem}.{kind.__name__}" for kind in kinds if issubclass(kind, fl.FederatedAlgorithm)]


def run(source: Source, words: Sequence[str], names: Sequence[str], folder: Path, trials: int, seeds: int) -> None:
    """Runs the methods on a federation one after the other, each with its trials and seeds; writes what is left out."""
    runs = Runs(folder, words, source)
    runs.settle()
    tried: dict[str, Any] = {}
    file = folder / "left_out.json"
    left_out: dict[str, str] = json.loads(file.read_text()) if file.exists() else {}
    for candidate in candidates(names, runs.is_linear):
        left_out.pop(candidate.name, None)
        try:
            tried |= _run_one(runs, candidate, tried, trials, seeds)
        except fl.UserError as error:
            left_out[candidate.name] = str(error)
        file.write_text(json.dumps(left_out, indent=1))


def _run_one(runs: Runs, candidate: Candidate, tried: dict[str, Any], trials: int, seeds: int) -> dict[str, Any]:
    """A method's trials and seeds; its best setting by name, from which a fine-tuned one begins."""
    search = Search(runs, lambda line: None, trials, None, seeds)
    base = [tried[candidate.base]["candidate"]] if candidate.base in tried else []
    best = search.best([*base, candidate])
    if candidate.name not in best:
        raise fl.UserError(search.left_out[candidate.title])
    done = search.on_seeds(candidate, best[candidate.name])
    print(f"{runs.folder.name}: {candidate.title} {np.mean([one.error for one in done]):.4g} on validation", flush=True)
    return {candidate.name: {"candidate": candidate}}


def table(folder: Path) -> pd.DataFrame:
    """A row for each method and federation: its scores, and what it costs; means over the seeds that are there."""
    rows = []
    for path in sorted(folder.glob("*/runs.json")):
        done = [Done(**one) for name, one in json.loads(path.read_text()).items() if name.startswith("seeds/")]
        finished = {(one.candidate, one.seed): read_run(Path(one.folder)) for one in done if np.isfinite(one.error)}
        for (name, seed), result in finished.items():
            local, target = finished.get(("local", seed)), finished.get((TARGET, seed))
            rows.append({"federation": path.parent.name, "method": name, **_row(result, local, target)})
    means = pd.DataFrame(rows).groupby(["federation", "method"]).mean()
    return means.assign(rank=means.groupby("federation")["error"].rank())


def _row(result: Run, local: Run | None, target: Run | None) -> dict[str, float]:
    """Test error, that of the worst tenth of clients, the share worse than Local, the error everywhere, the costs."""
    errors = _errors(result)
    row = {"error": errors.mean(), "worst_tenth": errors.nlargest(max(1, len(errors) // 10)).mean()}
    row["worse_than_local"] = np.nan if local is None else float((errors > _errors(local)[errors.index]).mean())
    everywhere = result.results.get("global", {}).get(result.measure[0], {}).get("mean", np.nan)
    row["everywhere"] = 1 - everywhere if result.sign > 0 else everywhere
    reached = None if target is None else _reached(result, target)
    costs = result.metrics.loc[reached] if reached is not None else pd.Series(dtype=float)
    row["megabytes"] = costs.get("up_megabytes", np.nan) + costs.get("down_megabytes", np.nan)
    per_round = result.results["gradients"] / max(1, result.results["rounds"])
    row["gradients"] = per_round * costs.get("round", np.nan)
    return row


def _errors(result: Run) -> pd.Series:
    score = result.scored["score"] / result.measure[1]
    return 1 - score if result.sign > 0 else score


def _reached(result: Run, target: Run) -> Any:
    """The index of the first round in which a run's validation score is as good as the target's best one."""
    column, sign = f"val/{result.measure[0]}", result.sign
    best = (sign * target.metrics[column]).max()
    reached = result.metrics.index[sign * result.metrics[column] >= best]
    return reached[0] if len(reached) else None


def pages(results: pd.DataFrame, folder: Path) -> Iterator[str]:
    """The tables as Markdown: all methods, then each federation's errors, then the cells that are missing."""
    costs = results[["megabytes", "gradients"]]
    of_target = costs / costs.xs(TARGET, level="method").reindex(results.index, level="federation")
    summary = (
        results.assign(**of_target)
        .groupby("method")
        .agg(federations=("error", "count"), mean_rank=("rank", "mean"), worse_than_local=("worse_than_local", "mean"))
    )
    by = results.groupby("federation")
    for name in ("worst_tenth", "everywhere"):
        summary[f"rank_{name}"] = by[name].rank().groupby("method").mean()
    for name in ("megabytes", "gradients"):
        summary[f"{name}_of_{TARGET}"] = of_target[name].groupby("method").median()
    yield _markdown(summary.sort_values("mean_rank"), "{:.2f}")
    errors = results["error"].unstack("federation")
    yield _markdown(errors.loc[summary.sort_values("mean_rank").index], "{:.4f}")
    missing = [(path.parent.name, json.loads(path.read_text())) for path in sorted(folder.glob("*/left_out.json"))]
    yield "\n".join(f"- {place}, {name}: {reason}" for place, reasons in missing for name, reason in reasons.items())


def _markdown(frame: pd.DataFrame, form: str) -> str:
    lines = [[str(frame.index.name), *map(str, frame.columns)], ["---"] * (1 + len(frame.columns))]
    lines += [
        [str(name), *(form.format(v) if np.isfinite(v) else "-" for v in row)] for name, *row in frame.itertuples()
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> None:
    """Runs, or prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["run", "table"])
    parser.add_argument("--data", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", nargs="+", help="words of federations' names")
    parser.add_argument("--methods", nargs="+", help="default: all that are shipped, and fine-tuned FedAvg and FedEM")
    parser.add_argument("--add", type=Path, help="a file with methods of your own")
    parser.add_argument("--trials", type=int, default=4)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--md", type=Path, help="where the tables are written")
    parser.add_argument("--csv", type=Path, help="where all numbers are written, a row for each method and federation")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    if chosen.what == "table":
        results = table(chosen.out)
        if chosen.csv:
            results.round(5).to_csv(chosen.csv)
        text = "\n\n".join(pages(results, chosen.out))
        print(text)
        if chosen.md:
            chosen.md.write_text(text + "\n")
        return
    names = chosen.methods or [*choices()["algorithm"], "fedavg_tuned", "fedem_tuned"]
    names += methods_of(chosen.add) if chosen.add else []
    for name, (source, options) in federations(chosen.data).items():
        if not chosen.only or any(word in name for word in chosen.only):
            folder = chosen.out / name.replace(" ", "_").replace(",", "")
            words = ["trainer.max_epochs=100", *options.get("overrides", [])]
            run(source, words, names, folder, chosen.trials, chosen.seeds)


if __name__ == "__main__":
    main()
