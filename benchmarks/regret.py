"""The error of `compare` itself: how much worse its choice is than the best method, and how often it says yes wrongly.

    python benchmarks/regret.py alike --federations 100 --out alike      # clients are alike: each "yes" is false
    python benchmarks/regret.py kinds --federations 40 --out kinds       # three kinds of clients, less or more apart
    python benchmarks/regret.py regret --data DATA --out regret [--only digits wisdm]

All go on where they were stopped. `kinds` judges each answer by 500 more test rows of every client, which `compare`
never sees. `regret` prints, for each federation, the test error of what `compare` picks less that of the best of its
methods, beside always the same one; DATA is a folder with femnist, cifar10, un_votes, politeness_raters, wisdm and
heart_hospitals (docs/reproduction/real_data.md). Test rows choose nothing here.
"""

import argparse
import json
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytorch_lightning as pl
import torch
from sklearn.datasets import load_digits

import fedem_lightning as fl

Source = Callable[[int], fl.FederatedDataModule]
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


def federations(data: Path) -> dict[str, tuple[Source, dict[str, Any]]]:
    """The federations by name: a function from a seed to the data, and options of `compare`."""
    network = {"overrides": ["backbone=mlp", "backbone.hidden=[64]"]}
    found: dict[str, tuple[Source, dict[str, Any]]] = {}
    found["digits, Dirichlet 0.4"] = (lambda seed: fl.Digits(20, alpha=0.4, seed=seed), network)
    found["digits, alike"] = (lambda seed: fl.Digits(20, alpha=1000.0, seed=seed), network)
    for shift in ("rotation", "labels", "inversion"):
        found[f"digits, {shift} of 3 groups"] = (_shifted(shift), network)
    found["wisdm"] = (lambda seed: _table(data / "wisdm", [], seed, missing="median"), {})
    found["hearts"] = (
        lambda seed: _table(data / "heart_hospitals", ["num"], seed, missing="median", task="binary"),
        {},
    )
    found["un_votes, 60 members"] = (lambda seed: _texts(data / "un_votes", 60, 400, seed), {})
    found["raters, 60"] = (lambda seed: _texts(data / "politeness_raters", 60, 400, seed), {})
    for alpha in (0.1, 0.4, 10.0):
        found[f"synthetic, alpha {alpha}"] = (_synthetic(alpha), {})
    found["femnist, 50 writers"] = (lambda seed: _writers(data / "femnist/femnist.npz", 50, seed), network)
    return found


def _synthetic(alpha: float) -> Source:
    return lambda seed: fl.SyntheticMixture(40, dimension=20, alpha=alpha, test_size=500, seed=seed)


def _shifted(shift: str) -> Source:
    """Digits dealt evenly to 20 clients in three groups, of which two see them rotated, or inverted, or renamed."""
    images, y = load_digits(return_X_y=True)
    x, client = images.reshape(-1, 8, 8) / 16, np.random.default_rng(0).permutation(len(y)) % 20
    for group in (1, 2):
        mine = client % 3 == group
        if shift == "rotation":
            x[mine] = np.rot90(x[mine], group, axes=(1, 2))
        elif shift == "inversion":
            x[mine] = 1 - x[mine] if group == 1 else x[mine][:, :, ::-1]
        else:
            y[mine] = np.random.default_rng(group).permutation(10)[y[mine]]
    x = x.reshape(len(y), 64).astype(np.float32)
    return lambda seed: fl.FederatedDataModule.from_arrays(x, y, client, seed=seed)


def _table(folder: Path, without: list[str], seed: int, **options: Any) -> fl.FederatedDataModule:
    frame = pd.read_parquet(folder / "data.parquet")
    columns = [str(name) for name in frame if name not in ("client", "label", "split", *without)]
    return fl.TableDataModule(folder / "data.parquet", "label", "client", features=columns, seed=seed, **options)


def _texts(folder: Path, n_clients: int, most: int, seed: int) -> fl.FederatedDataModule:
    """Votes, or ratings, on the embeddings of texts; a text is in one split for all clients."""
    frame, rng = pd.read_parquet(folder / "data.parquet"), np.random.default_rng(0)
    chosen = rng.permutation(sorted(frame["client"].unique()))[:n_clients]
    frame = frame[frame["client"].isin(chosen)].sample(frac=1, random_state=0).groupby("client").head(most)
    emb = np.load(folder / "minilm384.npz")["emb"].astype(np.float32)
    draw = np.random.default_rng([seed, 5]).random(len(emb))[frame["item"].to_numpy()]
    split = np.select([draw < 0.6, draw < 0.8], [0, 1], 2)
    y, client = frame["label"].astype(str).to_numpy(), frame["client"].astype(str).to_numpy()
    return fl.FederatedDataModule.from_arrays(emb[frame["item"].to_numpy()], y, client, split=split, seed=seed)


def _writers(path: Path, n_clients: int, seed: int) -> fl.FederatedDataModule:
    file = np.load(path)
    counts = np.bincount(file["client"])
    chosen = np.random.default_rng(0).permutation(np.flatnonzero(counts >= 100))[:n_clients]
    mine = np.isin(file["client"], chosen)
    x = file["x"][mine].reshape(-1, 784).astype(np.float32) / 255
    client = np.unique(file["client"][mine], return_inverse=True)[1]
    return fl.FederatedDataModule.from_arrays(x, file["y"][mine], client, seed=seed)


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
