"""Files of a run, from Python too: results.json with all that a comparison needs, and files for larger arrays."""

import json
import math
import platform
import subprocess
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pandas as pd
import torch
from omegaconf import OmegaConf

from fedem_lightning.data import FederatedDataModule
from fedem_lightning.data.federation import Federation
from fedem_lightning.data.splits import SPLITS
from fedem_lightning.evaluate.client_table import REFERENCES
from fedem_lightning.evaluate.component_diagnostics import component_health, recovery_scores
from fedem_lightning.evaluate.convergence import best_round, convergence, errors_by_round, round_scores, whole_run
from fedem_lightning.evaluate.summaries import not_finite, summarize, summarize_table
from fedem_lightning.models.backbones import Linear
from fedem_lightning.module.algorithm import FederatedAlgorithm
from fedem_lightning.module.checkpoints import recipe_of
from fedem_lightning.module.checks import check_capabilities
from fedem_lightning.module.fitting import known_pi
from fedem_lightning.module.round import sampling_of
from fedem_lightning.run.callbacks import MappedCheckpoints
from fedem_lightning.run.trackers import write_rows
from fedem_lightning.settings.check import check_arguments
from fedem_lightning.settings.errors import require
from fedem_lightning.settings.files import replacing, write_arrays, write_atomically
from fedem_lightning.settings.keys import dataset_name, shipped
from fedem_lightning.settings.measures import HIGHER_IS_BETTER


def run_results(algorithm: FederatedAlgorithm, federation: Federation) -> dict[str, Any]:
    """Results of a finished run after Trainer.test, as plain containers; docs/results.md describes every key."""
    table, statistics = algorithm.clients, whole_run(algorithm)[0]
    seen, unseen = (table[table.population == population] for population in ("seen", "unseen"))
    seconds = statistics.round_seconds
    return {
        "rounds": len(seconds),
        "n_clients": len(federation.clients()),
        "n_unseen_clients": len(federation.clients(seen=False)),
        "n_scored_clients": int(seen.n_train.count()),
        "n_scored_unseen_clients": int(unseen.n_train.count()),
        "n_train_samples": int(federation.splits["train"].counts(federation.clients()).sum()),
        **{split: summarize_table(seen, split) for split in SPLITS},
        **_everywhere(seen),
        "unseen": {split: summarize_table(unseen, split) for split in SPLITS} if len(unseen) else None,
        "not_finite": not_finite(table, SPLITS),
        "class_scores": algorithm.tested.classes,
        "reference": _reference(seen),
        **_mixture(algorithm, federation),
        "convergence": convergence(whole_run(algorithm)[1]),
        **_compared_rounds(algorithm),
        **algorithm.diagnostics,
        "seconds": {"training": statistics.training_seconds, "per_round": median(seconds) if seconds else None},
        "communication": {
            "up_bytes": statistics.up_bytes,
            "down_bytes": statistics.down_bytes,
            "air_bytes": statistics.air_bytes,
            "time": dict(statistics.times),
        },
        "gradients": statistics.gradients,
        "rejected_updates": statistics.rejections.total,
        **_faults(algorithm, federation),
        **algorithm.aggregation.report(sampling_of(algorithm, len(federation.clients()), statistics.rounds)),
        "data": federation.notes,
        "federation_digest": federation.digest(),
        "engine": {
            "name": algorithm.local.engine.name,
            "block_size": algorithm.local.engine.block_size,
            "reason": algorithm.local.engine.reason,
            "processes": algorithm.trainer.world_size,
            "precision": algorithm.trainer.precision,
        },
        "environment": environment(algorithm.device),
    }


def _compared_rounds(algorithm: FederatedAlgorithm) -> dict[str, Any]:
    """The scores of the round that is best on validation, and of the last one that was evaluated."""
    curves = whole_run(algorithm)[1]
    best = best_round(curves)
    evaluated = [round_ for round_ in curves if best is not None and round_ in errors_by_round(curves)]
    rounds = {"best_round": best, "last_round": max(evaluated, default=None)}
    return {name: None if round_ is None else round_scores(curves, round_) for name, round_ in rounds.items()}


def _everywhere(seen: pd.DataFrame) -> dict[str, Any]:
    """How well the clients' models do on the test samples of all clients; empty unless that was scored."""
    scores = {}
    for measure, better in HIGHER_IS_BETTER.items():
        if f"global_{measure}" in seen:
            values = seen[f"global_{measure}"].to_numpy()
            worst = float(values.min() if better else values.max())
            scores[measure] = {"mean": float(values.mean()), "median": float(np.median(values)), "worst": worst}
    return {"global": scores} if scores else {}


def _reference(seen: pd.DataFrame) -> dict[str, float]:
    """Best possible scores on the clients' test samples, summarised in the same way as the results."""
    n_train, n_test = seen.n_train.to_numpy(), seen.n_test.to_numpy()
    reference: dict[str, float] = {}
    for name, higher_is_better in REFERENCES.items():
        if f"true_{name}" in seen:
            sums = summarize(seen[f"true_{name}"].to_numpy(), n_train, n_test, higher_is_better)
            reference |= {name if key == "weighted" else f"{name}_{key}": value for key, value in sums.items()}
    return reference


def _faults(algorithm: FederatedAlgorithm, federation: Federation) -> dict[str, Any]:
    """Whose updates were rejected, and the scores over the honest clients; empty unless there are any."""
    rejections, table = whole_run(algorithm)[0].rejections, algorithm.clients
    result: dict[str, Any] = {}
    if rejections.total:
        named = [{**entry, "name": str(federation.names[entry["client"]])} for entry in rejections.by_client]
        result["faults"] = {"counts": dict(rejections.by_reason), "clients": named}
    if "faulty" in table and algorithm.faults is not None:
        honest = table[(table.population == "seen") & ~table.faulty]
        result["honest"] = {"n_clients": len(honest), **{split: summarize_table(honest, split) for split in SPLITS}}
    return result


def _mixture(algorithm: FederatedAlgorithm, federation: Federation) -> dict[str, dict[str, Any]]:
    """Component diagnostics: recovery of the ground truth, dead components and twins."""
    pi = known_pi(algorithm)
    if pi is None:
        return {"recovery": {}, "components": {}}
    weights, seen = pi.cpu().numpy(), federation.seen.cpu().numpy()
    models = algorithm.evaluation_components(federation)  # [M, ...]
    trained = algorithm.params_of(models).values()
    parameters = np.concatenate([p.flatten(1).double().cpu().numpy() for p in trained], axis=1)  # [M, D]
    linear = models.get("linear.weight") if isinstance(algorithm.components[0], Linear) else None
    theta = linear[:, 0].cpu().numpy() if linear is not None and linear.shape[1] == 1 else None  # [M, d]
    return {
        "recovery": recovery_scores(weights, theta, federation.truth, seen),
        "components": component_health(weights[seen], parameters),
    }


def write_run(
    folder: Path,
    names: Mapping[str, Any],
    algorithm: FederatedAlgorithm,
    federation: Federation,
) -> dict[str, Any]:
    """Writes arrays, clients.parquet and, last, results.json; returns the results."""
    results = dict(names) | run_results(algorithm, federation)
    results["seconds"]["total"] = whole_run(algorithm)[0].total_seconds()
    if algorithm.tested.samples is not None:
        write_arrays(folder / "test_samples.npz", algorithm.tested.samples.arrays())
    with replacing(folder / "clients.parquet") as temporary:
        algorithm.clients.to_parquet(temporary, index=False)
    write_atomically(folder / "results.json", (json.dumps(finite(results), indent=2) + "\n").encode())
    return results


def finite(value: Any) -> Any:
    """The value for JSON: numbers that are not finite are None."""
    if isinstance(value, dict):
        return {key: finite(part) for key, part in value.items()}
    if isinstance(value, list):
        return [finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def environment(device: torch.device) -> dict[str, Any]:
    """Versions, device, commit and date of the run."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()
    packages = ("fedem-lightning", "torch", "pytorch-lightning", "torchmetrics", "numpy")
    return {
        **{package.replace("-", "_"): version(package) for package in packages},
        "python": platform.python_version(),
        "device": f"{device.type} ({name})",
        "threads": torch.get_num_threads(),
        "commit": _commit(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _commit() -> str | None:
    """The commit of the package's checkout, with "-dirty" if files have changed; None outside a checkout."""
    folder = Path(__file__).resolve().parents[3]
    if not (folder / ".git").exists():
        return None
    # without the lock of the index, which a commit at the same time would find taken
    command = ["git", "--no-optional-locks", *["describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]]
    try:
        return subprocess.check_output(command, cwd=folder, stderr=subprocess.DEVNULL, text=True, timeout=10).strip()
    except (OSError, subprocess.SubprocessError):
        return None


def save_run(
    model: FederatedAlgorithm, data: FederatedDataModule, folder: str | Path, dataset: str | None = None
) -> None:
    """Writes the folder of a run, after `trainer.fit` and `trainer.test`: see docs/results.md.

    `command` and `fidelity` are null in results.json. With several processes all of them call it; the first one writes.
    The folder is new or empty; reports call the data `dataset`; None: by their file, as the command line does, or their
    class. UserError: the folder has files, or the model was not tested.
    """
    check_arguments("", save_run, locals())
    place = Path(folder).expanduser()
    new = not place.exists() or (place.is_dir() and not any(place.iterdir()))
    require(new, f"folder: {place} is not empty; choose another")
    require(len(model.clients) > 0, "model: it has no scores yet; call trainer.test(model, data) first")
    check_capabilities(model, data.federation)
    checkpoint = model.trainer._checkpoint_connector.dump_checkpoint(weights_only=False)
    if not model.trainer.is_global_zero:
        return
    algorithm, of_data = recipe_of(model), dict(data.hparams.get("data", {}))
    config = {name: algorithm.pop(name, None) for name in ("backbone", "adaptation", "engine", "seed")}
    if of_data.get("seed") == model.seed:
        of_data["seed"] = "${seed}"
    config |= {"seed": model.seed, "algorithm": algorithm, "dataset": of_data}
    config["trainer"] = {"max_epochs": whole_run(model)[0].rounds}
    write_atomically(place / ".hydra" / "config.yaml", OmegaConf.to_yaml(OmegaConf.create(config)).encode())
    write_rows(place / "metrics.csv", whole_run(model)[1])
    MappedCheckpoints().save_checkpoint(checkpoint, place / f"checkpoints/round-{model.statistics.rounds:06d}.ckpt")
    parts = {"algorithm": model, "adaptation": model.adaptation, "dataset": data, "backbone": model.components[0]}
    names: dict[str, Any] = {group: _shipped(group, part) for group, part in parts.items()}
    names["dataset"] = dataset or dataset_name(names["dataset"], data.federation.notes.get("source"))
    chosen = model.made_with.get("client_optimizer") is not None
    rate = {"of": names["algorithm"], "rate": model.local.optimizer.lr, "chosen_by": "user" if chosen else None}
    names |= {"experiment": None, "seed": model.seed, "fidelity": None, "command": None}
    names["learning_rates"] = [rate] if model.local.takes_steps else []
    write_run(place, names, model, data.federation)


def _shipped(group: str, part: Any) -> str:
    """The name of a part on the command line, else that of its class; of several names for a class the shortest."""
    if part is None:
        return "none"
    kind = type(part).__name__
    result = [name for name, tree in shipped(group).items() if tree.get("_target_") == f"fedem_lightning.{kind}"]
    several = group in ("dataset", "backbone") and len(result) > 1  # ImageDataModule reads many data sets
    return kind if several or not result else min(result, key=lambda name: (len(name), name))
