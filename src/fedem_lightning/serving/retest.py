"""A run's own test once more: its data set is built again, and its newest checkpoint is tested."""

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from fedem_lightning.algorithms import FederatedAlgorithm
from fedem_lightning.algorithms.checkpoints import read_checkpoint
from fedem_lightning.callbacks import RoundProgress
from fedem_lightning.data import FederatedDataModule
from fedem_lightning.data.federation import Federation
from fedem_lightning.data.splits import SPLITS
from fedem_lightning.errors import UserError, require
from fedem_lightning.evaluation.scores import all_scored_clients
from fedem_lightning.evaluation.summaries import summarize_table
from fedem_lightning.records.recipes import TRUSTED, check_trusted
from fedem_lightning.run import cli  # noqa: F401 - the configurations need its resolvers
from fedem_lightning.run.building import build_model
from fedem_lightning.run.config_history import read_own_config
from fedem_lightning.run.execute import quieten_lightning
from fedem_lightning.run.run_folder import check_checkpoint, rounds_of
from fedem_lightning.serving.load import checkpoint_of
from fedem_lightning.serving.models import progress
from fedem_lightning.serving.quality import Evaluation, Quality, plain

BUILT = (
    *("dataset", "algorithm", "backbone", "engine", "adaptation", "aggregation", "compression", "faults", "network"),
    "trainer",
)
"""Parts of a run's configuration that are built for a test."""


def retest(path: Path, split: str, trust: Sequence[str] = ()) -> Evaluation:
    """Tests a run again.

    Args:
        path: the run's folder, or a checkpoint in it.
        split: what is shown; the comparison takes all splits.
        trust: packages of yours whose classes the run's configuration may name.

    Raises:
        UserError: the run's folder lacks what is needed, or its data is not what it was.

    """
    checkpoint = checkpoint_of(path.expanduser())
    folder = checkpoint.parent.parent
    config = _config(folder)
    parts: Any = OmegaConf.to_container(config, resolve=True)
    for key in BUILT:
        _check_trusted(parts.get(key), trust, key)
    quieten_lightning()
    pl.seed_everything(config.seed, verbose=False)
    data: FederatedDataModule = instantiate(config.dataset)
    model = _loaded(config, data, checkpoint)
    _trainer(config).test(model, data, verbose=False)
    populations = {p: model.clients[model.clients["population"] == p] for p in ("seen", "unseen")}
    scores = {p: {s: summarize_table(table, s) for s in SPLITS} for p, table in populations.items() if len(table)}
    shown = {f"{len(populations[p])} {p}": found[split] for p, found in scores.items() if found[split]}
    require(bool(shown), f"--split: the run's clients have no {split} samples")
    equal, line = _compared(folder, rounds_of(checkpoint), scores)
    title = f"{folder.name}: {type(model).__name__} after {rounds_of(checkpoint)} rounds, {split} samples"
    quality = _quality(model, data.federation, split)
    return Evaluation(title, split, shown, model.clients, quality, [line], equal)


def _config(folder: Path) -> DictConfig:
    config = read_own_config(folder)
    if config is None:
        file = folder / ".hydra" / "config.yaml"
        raise UserError(f"{file}: no such file, so the run's data set cannot be built again; give DATA")
    require("_target_" in config.dataset, f"{folder}: a run from Python, whose data are not in the folder; give DATA")
    return config


def _check_trusted(part: Any, trust: Sequence[str], key: str) -> None:
    """Raises UserError if a part of a configuration, which may come from elsewhere, names what is not trusted."""
    path = str(part["_target_"]) if isinstance(part, dict) and "_target_" in part else None
    exported = path is not None and path.startswith("fedem_lightning.") and path.count(".") == 1
    if path is not None and not exported and path != "pytorch_lightning.Trainer":
        check_trusted(path, (*TRUSTED, "fedem_lightning.data", *trust), key)
    for value in part.values() if isinstance(part, dict) else part if isinstance(part, list) else ():
        _check_trusted(value, trust, key)


def _loaded(config: DictConfig, data: FederatedDataModule, checkpoint: Path) -> FederatedAlgorithm:
    model = build_model(config, data)
    check_checkpoint(checkpoint, model, data.federation)
    content = read_checkpoint(checkpoint)
    model.on_load_checkpoint(content)
    model.load_state_dict(content["state_dict"])
    return model


def _trainer(config: DictConfig) -> pl.Trainer:
    """The run's Trainer in one process, which writes nothing."""
    quiet = {"logger": False, "enable_checkpointing": False, "default_root_dir": tempfile.gettempdir()}
    bar = [] if config.trainer.get("enable_progress_bar") is False else [RoundProgress()]
    one = {"devices": 1, "num_nodes": 1, "strategy": "auto", "profiler": None}
    if config.trainer.get("accelerator") in ("gpu", "cuda") and not torch.cuda.is_available():
        one["accelerator"] = "cpu"
    trainer: pl.Trainer = instantiate(config.trainer, callbacks=bar, **quiet, **one)
    return trainer


def _compared(folder: Path, rounds: int, scores: dict[str, Any]) -> tuple[bool | None, str]:
    """Whether the scores are those of results.json to the bit, and a line that says so."""
    file = folder / "results.json"
    if not file.is_file():
        return None, "no results.json, with which the scores could be compared: the run has not ended"
    try:
        saved = json.loads(file.read_text())
        before = {"seen": {split: saved[split] for split in SPLITS}, "unseen": saved["unseen"]}
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{file}: not the results of a run ({error})") from error
    if saved.get("rounds") != rounds:
        return None, f"results.json is of {saved.get('rounds')} rounds and not compared, the checkpoint of {rounds}"
    for population, found in scores.items():
        for split, measures in found.items():
            earlier = (before[population] or {}).get(split)
            for measure, sums in measures.items():
                for kind, value in plain(sums).items():
                    was = (earlier or {}).get(measure, {}).get(kind)
                    if was != value:
                        what = f"{population} clients, {split} {measure}, {kind.replace('_', ' ')}"
                        return False, f"not equal to results.json: {what}: {value} here, {was} there"
    return True, f"equal to results.json, to the last bit: {_parts(scores)}"


def _parts(scores: dict[str, Any]) -> str:
    return ", ".join(f"{p} clients ({', '.join(s for s in SPLITS if found[s])})" for p, found in scores.items())


@torch.no_grad()
def _quality(model: FederatedAlgorithm, federation: Federation, split: str) -> Quality:
    """The quality of the predictions for a split of the clients that were scored."""
    assert model.schema is not None
    quality = Quality(model.schema)
    federation = federation.to(model.device)
    own_data, clients = model.own_data(federation), all_scored_clients(model, federation)
    with progress("predictions of clients", len(clients)) as advance:
        for block in model.blocks(own_data, clients):
            personal, scored = model.scored_models(block), federation.block(block.clients, split)
            for piece in scored.pieces() if len(scored.index) else ():
                quality.add(personal.predict(piece), piece.y())
            advance(len(block.clients))
    return quality
