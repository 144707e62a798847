"""The error of `compare` itself: how much worse its choice is than the best method, and how often it says yes wrongly.

    python benchmarks/regret.py alike --federations 100 --out alike      # clients are alike: each "yes" is false
    python benchmarks/regret.py kinds --federations 40 --out kinds       # three kinds of clients, less or more apart
    python benchmarks/regret.py regret --data DATA --out regret [--only digits wisdm]

All go on where they were stopped. `kinds` judges each answer by 500 more test rows of every client, which `compare`
never sees. `regret` prints, for each federation, the test error of what `compare` picks less that of the best of its
methods, beside always the same one; for DATA see federations.py. Test rows choose nothing here.
"""

import argparse
import json
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytorch_lightning as pl
import torch

import fedem_lightning as fl
from federations import Source, federations

ALWAYS = ("fedavg", "fedavg_tuned", "local", "fedem")


def alike(number: int) -> Source:
    """A federation of 20 clients whose rows come from one distribution: a regression, or with an odd number classes."""
    rng = np.random.default_rng([number, 71])
    n, d = 20 * 60, 6
    x = rng.normal(size=(n, d)).astype(np.float32)
    score = x @ rng.normal(size=d) + rng.normal(scale=rng.uniform(0.3, 2.0), size=n)
    y = (score > 0).astype(np.int64) if number % 2 else score.astype(np.float32)
    task = "classification" if number % 2 else "regression"
    client = np.repeat(np.arange(20), 60)
    return lambda seed: fl.FederatedDataModule.from_arrays(x, y, client, task=task, seed=seed)


def kinds(number: int, large: bool = False) -> Source:
    """20 clients of three kinds with 60 rows each, of which 12 test; `large`: 500 others test in their place.

    Weights of the kinds differ by 0 to 2 times their common part.
    """
    apart, is_binary = (0.0, 0.1, 0.2, 0.4, 0.8, 2.0)[number % 6], number // 6 % 2
    rng = np.random.default_rng([number, 72])
    weights = rng.normal(size=6) + apart * rng.normal(size=(3, 6))
    x = rng.normal(size=(20, 560, 6)).astype(np.float32)
    score = np.einsum("cnd,cd->cn", x, weights[np.arange(20) % 3]) + rng.normal(size=(20, 560))
    y = (score > 0).astype(np.int64) if is_binary else score.astype(np.float32)

    def source(seed: int) -> fl.FederatedDataModule:
        rows = np.random.default_rng([number, seed]).permutation(60)
        rows = np.concatenate([rows[:48], np.arange(60, 560)]) if large else rows
        split = np.tile(np.repeat([0, 1, 2], [36, 12, len(rows) - 48]), 20)
        task, client = "classification" if is_binary else "regression", np.repeat(np.arange(20), len(rows))
        arrays = x[:, rows].reshape(-1, 6), y[:, rows].reshape(-1), client
        return fl.FederatedDataModule.from_arrays(*arrays, split=split, task=task, seed=seed)

    return source


def true_gain(number: int, folder: Path, personal: str) -> tuple[float, float]:
    """The gain of the personal method over FedAvg on 500 other rows of each client, mean over seeds; FedAvg's error."""
    quiet: dict[str, Any] = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    errors: dict[str, list[float]] = {personal: [], "fedavg": []}
    for name, run in json.loads((folder / "runs.json").read_text()).items():
        if name.startswith("seeds/") and run["candidate"] in errors:
            model = fl.load(run["folder"])
            pl.Trainer(accelerator="cpu", devices=1, **quiet).test(
                model, kinds(number, large=True)(run["seed"]), verbose=False
            )
            table = model.clients
            score = 1 - table["test_accuracy"] if "test_accuracy" in table else table["test_mse"]
            errors[run["candidate"]].append(float(score.mean()))
    means = {name: float(np.mean(values)) for name, values in errors.items()}
    return means["fedavg"] - means[personal], means["fedavg"]


def measure(name: str, source: Source, folder: Path, options: dict[str, Any]) -> dict[str, Any]:
    """The answer on a federation, and all methods' mean test errors; read from its file if it is there."""
    path = folder / f"{name.replace(' ', '_').replace(',', '')}.json"
    if not path.exists():
        found = fl.compare(source, out=path.with_suffix(""), say=lambda line: None, **options)
        errors = {method: float(table.to_numpy().mean()) for method, table in found.errors.items()}
        row: dict[str, Any] = {
            "name": name,
            "verdict": found.answer.verdict,
            "chosen": found.answer.chosen,
            "errors": errors,
        }
        to_one = found.answer.to_one_model
        row |= {"gain": to_one and [to_one.mean, to_one.low, to_one.high, to_one.p], "best": found.answer.rival}
        path.write_text(json.dumps(row))
    return json.loads(path.read_text())


def judged(numbers: Sequence[int], folder: Path, budget: dict[str, Any]) -> pd.DataFrame:
    """How many answers there are, [what is true, answer]; true: the gain on the other rows is 1 % or more."""
    rows = []
    for number in numbers:
        row = measure(f"kinds {number}", kinds(number), folder, budget)
        path = folder / f"kinds_{number}_true.json"
        if not path.exists():
            personal = next(name for name in (row["chosen"], row["best"]) if name != "fedavg")
            gain, error = true_gain(number, folder / f"kinds_{number}", personal)
            margin = 0.01 if number // 6 % 2 else 0.01 * error
            path.write_text(json.dumps({"gain": gain, "margin": margin}))
        found = json.loads(path.read_text())
        gains = found["gain"] >= found["margin"]
        rows.append({"truth": "gains" if gains else "does not gain", "answer": row["verdict"]})
    return pd.DataFrame(rows).value_counts().unstack(fill_value=0)


def main() -> None:
    """Runs one of the two."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["alike", "kinds", "regret"])
    parser.add_argument("--data", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--federations", type=int, default=100)
    parser.add_argument("--first", type=int, default=0, help="of the federations, to share the work")
    parser.add_argument("--only", nargs="+")
    parser.add_argument("--trials", type=int, default=4)
    parser.add_argument("--seeds", type=int, default=5)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    chosen.out.mkdir(parents=True, exist_ok=True)
    budget: dict[str, Any] = {"trials": chosen.trials, "seeds": chosen.seeds}
    if chosen.what == "alike":
        numbers = range(chosen.first, chosen.first + chosen.federations)
        budget["overrides"] = ["local_training.local_steps=10", "trainer.max_epochs=40"]  # enough for these
        rows = [measure(f"alike {number}", alike(number), chosen.out, budget) for number in numbers]
        verdicts = pd.Series([row["verdict"] for row in rows]).value_counts().to_dict()
        print(f"{len(rows)} federations of clients that are alike: {verdicts}")
        return
    if chosen.what == "kinds":
        budget["overrides"] = ["local_training.local_steps=10", "trainer.max_epochs=40"]
        print(judged(range(chosen.first, chosen.first + chosen.federations), chosen.out, budget).to_string())
        return
    budget["overrides"] = ["trainer.max_epochs=100"]
    for name, (source, options) in federations(chosen.data).items():
        if not chosen.only or any(word in name for word in chosen.only):
            words = [*budget["overrides"], *options.get("overrides", [])]
            row = measure(name, source, chosen.out, budget | {"overrides": words})
            errors = {method: error for method, error in row["errors"].items() if method != "constant"}
            best = min(errors, key=lambda method: errors[method])
            regrets = {"compare": errors[row["chosen"]], **{m: errors.get(m, np.nan) for m in ALWAYS}}
            texts = [f"{method} {error - errors[best]:.4g}" for method, error in regrets.items()]
            print(
                f"{name}: {row['verdict']}, {row['chosen']}; best {best} {errors[best]:.4g}; regret {', '.join(texts)}"
            )


if __name__ == "__main__":
    main()
