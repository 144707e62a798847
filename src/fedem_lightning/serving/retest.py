"""Scores once more, compared with those that were recorded.

A run's data set is built again, and its newest checkpoint is tested; a client of its own scores its model on its own
samples, and compares with what it told the server.
"""

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytorch_lightning as pl
import torch

from fedem_lightning.algorithms import FederatedAlgorithm
from fedem_lightning.algorithms.checkpoints import model_of, read_checkpoint
from fedem_lightning.algorithms.scoring import own_data
from fedem_lightning.callbacks import RoundProgress
from fedem_lightning.data import FederatedDataModule
from fedem_lightning.data.federation import Federation
from fedem_lightning.data.own_files import load_client
from fedem_lightning.data.schema import Schema
from fedem_lightning.data.splits import SPLITS
from fedem_lightning.errors import UserError, require
from fedem_lightning.evaluation.scores import all_scored_clients, scores_of
from fedem_lightning.evaluation.summaries import summarize_table
from fedem_lightning.records.configs import flatten, read_tree
from fedem_lightning.records.files import regular
from fedem_lightning.records.remaking import ROOMS, make
from fedem_lightning.run.building import quieten_lightning
from fedem_lightning.run.resuming import check_checkpoint, rounds_of
from fedem_lightning.serving.clients_on_rows import progress
from fedem_lightning.serving.model_files import checkpoint_of, read_clients, read_notes
from fedem_lightning.serving.output import Evaluation, Quality, for_json, summaries

CLOSE = 1e-6
"""Largest difference of equal scores: the last bits depend on the number of threads."""
_KEPT = ("accelerator", "precision", "deterministic", "benchmark")
"""Options of the run's Trainer that a test keeps."""


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
    require(
        not read_checkpoint(checkpoint, "RUN").get("deployed"),
        f"{folder}: clients of a deployed run keep their own samples: run python -m fedem_lightning.evaluate FOLDER "
        "where the client is, on the folder of its --state, or give DATA",
    )
    config = _config(folder)
    quieten_lightning()
    seed = config.get("seed")
    require(type(seed) is int and 0 <= seed < 2**32, f"seed: expected a whole number, {folder} has {seed!r}")
    pl.seed_everything(seed, verbose=False)
    data = _data(config["dataset"], folder, trust)
    model = _loaded(checkpoint, data, trust)
    _trainer(config, folder).test(model, data, verbose=False)
    populations = {p: model.clients[model.clients["population"] == p] for p in ("seen", "unseen")}
    scores = {p: {s: summarize_table(table, s) for s in SPLITS} for p, table in populations.items() if len(table)}
    shown = {f"{len(populations[p])} {p}": found[split] for p, found in scores.items() if found[split]}
    require(bool(shown), f"--split: the run's clients have no {split} samples")
    equal, line = _compared(folder, rounds_of(checkpoint), scores)
    title = f"{folder.name}: {type(model).__name__} after {rounds_of(checkpoint)} rounds, {split} samples"
    quality = _quality(model, data.federation, split)
    return Evaluation(title, split, shown, model.clients, quality, [line], equal)


def _config(folder: Path) -> dict[str, Any]:
    """The run's configuration, resolved without the environment; its data lie where this machine keeps them."""
    file = folder / ".hydra" / "config.yaml"
    require(file.is_file(), f"{file}: no such file, so the run's data set cannot be built again; give DATA")
    try:
        config = read_tree(file)
    except UserError as error:
        raise UserError(f"{file} is {error}; give DATA") from error
    dataset = config.get("dataset")
    known = isinstance(dataset, dict) and "_target_" in dataset
    require(known, f"{folder}: a run from Python, whose data are not in the folder; give DATA")
    for key, value in flatten(dataset).items():
        left = isinstance(value, str) and "${" in value
        require(
            not left, f"{folder}: dataset.{key} is {str(value)[:100]}, which no command resolves for a file; give DATA"
        )
    return config


def _data(made_of: dict[str, Any], folder: Path, trust: Sequence[str]) -> FederatedDataModule:
    try:
        data = make(made_of, trust, "dataset", (*ROOMS, "fedem_lightning.data"))
        require(isinstance(data, FederatedDataModule), f"dataset: {made_of['_target_']} is no data module")
        data.federation.digest()
    except UserError as error:
        raise UserError(f"{folder}: its data set cannot be built again ({error}); or give DATA") from error
    return data


def _loaded(checkpoint: Path, data: FederatedDataModule, trust: Sequence[str]) -> FederatedAlgorithm:
    model: FederatedAlgorithm = model_of(read_checkpoint(checkpoint, "RUN"), None, trust, {"networks": None})
    check_checkpoint(checkpoint, model, data.federation)
    model.prepare_for(data.federation)
    return model


def _trainer(config: dict[str, Any], folder: Path) -> pl.Trainer:
    """A Trainer in one process, which writes nothing, with the run's precision."""
    options = dict(config.get("trainer") or {})
    if options.get("precision") == "auto":  # results.json has the one that was picked
        options["precision"] = (_saved(folder).get("engine") or {}).get("precision", "32-true")
    kept = {name: options[name] for name in _KEPT if options.get(name) is not None}
    if kept.get("accelerator") in ("gpu", "cuda") and not torch.cuda.is_available():
        kept["accelerator"] = "cpu"
    bar: list[pl.Callback] = [] if options.get("enable_progress_bar") is False else [RoundProgress()]
    quiet: dict[str, Any] = {"logger": False, "enable_checkpointing": False, "enable_model_summary": False}
    return pl.Trainer(**kept, **quiet, devices=1, callbacks=bar, default_root_dir=tempfile.gettempdir())


def _saved(folder: Path) -> dict[str, Any]:
    """The content of results.json; empty where the run has not ended."""
    file = folder / "results.json"
    if not file.is_file():
        return {}
    try:
        saved: dict[str, Any] = json.loads(regular(file).read_text())
        lacking = {*SPLITS, "unseen"} - saved.keys()
    except (OSError, ValueError, AttributeError) as error:
        raise UserError(f"{file}: not the results of a run ({error})") from error
    require(not lacking, f"{file}: not the results of a run (it lacks {', '.join(sorted(lacking))})")
    return saved


def _compared(folder: Path, rounds: int, scores: dict[str, Any]) -> tuple[bool | None, str]:
    """Whether the scores are those of results.json to the bit, and a line that says so."""
    saved = _saved(folder)
    if not saved:
        return None, "no results.json, with which the scores could be compared: the run has not ended"
    before = {"seen": {split: saved[split] for split in SPLITS}, "unseen": saved["unseen"]}
    if saved.get("rounds") != rounds:
        return None, f"results.json is of {saved.get('rounds')} rounds and not compared, the checkpoint of {rounds}"
    earlier = flatten(before)
    for key, value in flatten(for_json(scores)).items():
        if earlier.get(key) != value:
            population, split, measure, kind = key.split(".")
            what = f"{population} clients, {split} {measure}, {kind.replace('_', ' ')}"
            return False, f"not equal to results.json: {what}: {value} here, {earlier.get(key)} there"
    parts = ", ".join(f"{p} clients ({', '.join(s for s in SPLITS if found[s])})" for p, found in scores.items())
    return True, f"equal to results.json, to the last bit: {parts}"


@torch.no_grad()
def _quality(model: FederatedAlgorithm, federation: Federation, split: str) -> Quality:
    """The quality of the predictions for a split of the clients that were scored."""
    assert model.schema is not None
    quality = Quality(model.schema)
    federation = federation.to(model.device)
    own, clients = own_data(model, federation), all_scored_clients(model, federation)
    with progress("predictions of clients", len(clients)) as advance:
        for block in model.local.blocks(own, clients):
            personal, scored = model.scored_models(block), federation.block(block.clients, split)
            for piece in scored.pieces() if len(scored.index) else ():
                quality.add(personal.predict(piece), piece.y())
            advance(len(block.clients))
    return quality


def on_own_samples(file: Path, split: str, trust: Sequence[str] = ()) -> Evaluation:
    """Scores the model of a client of its own on the samples that the file names.

    Args:
        file: the client's model.
        split: what is shown; the comparison takes all splits.
        trust: packages of yours whose classes the file may name.

    Raises:
        UserError: the file does not say where the samples are, or they are not there, or of another form.

    """
    models, notes = read_clients(file, trust), read_notes(file)
    name, schema = models.names[0], models.schema
    federation = _samples(file, notes.get("samples"), schema)
    personal = models.of(torch.zeros(1, dtype=torch.int64))
    scores = scores_of(personal, federation)
    table = pd.DataFrame({"id": [name]})
    for part in SPLITS:
        table[f"n_{part}"] = [int(federation.splits[part].counts().sum())]
    for part, found in scores.items():
        for measure, value in found.items():
            table[f"{part}_{measure}"] = [value]
    sums = summaries(table, table.n_train.to_numpy(), split)
    require(bool(sums), f"--split: the client has no {split} samples")
    block, quality = federation.block(torch.zeros(1, dtype=torch.int64), split), Quality(schema)
    for piece in block.pieces():
        quality.add(personal.predict(piece), piece.y())
    equal, line, rounds = _compared_with_report(file, notes.get("reported"), scores, table)
    title = f"{name} after {rounds} rounds, {split} samples"
    return Evaluation(title, split, {"1": sums}, table, quality, [line], equal)


def _samples(file: Path, given: Any, schema: Schema) -> Federation:
    """The client's samples."""
    try:
        path, name, task, n_classes = (given[key] for key in ("path", "name", "task", "n_classes"))
        path = Path(path)
    except (KeyError, TypeError):
        raise UserError(f"{file}: does not say where the client's samples are; give DATA") from None
    require(path.is_file(), f"{path}: the client's samples are not there any more; give DATA")
    try:
        federation = load_client(path, name, task, n_classes)
    except UserError as error:
        raise UserError(f"{path}: the client's samples cannot be read ({error}); or give DATA") from error
    now, then = Schema.of(federation), schema
    same = now.in_shape == then.in_shape and now.task.n_outputs == then.task.n_outputs
    require(same, f"{path}: the samples have another form than those of the training; give DATA")
    return federation


def _compared_with_report(
    file: Path, reported: Any, scores: dict[str, dict[str, float]], table: Any
) -> tuple[bool, str, int]:
    """Whether the scores are those that the client reported, a line that says so, and the number of rounds."""
    try:
        rounds, before = int(reported["round"]), {s: dict(reported["measures"][s]) for s in SPLITS}
        pairs = [(s, m, value, float(before[s][m])) for s in SPLITS for m, value in scores[s].items()]
    except (KeyError, TypeError, ValueError):
        raise UserError(f"{file}: does not say what the client reported; give DATA") from None
    scored = [pair for pair in pairs if table[f"n_{pair[0]}"][0] > 0]
    for split, measure, value, was in scored:
        if not np.isclose(value, was, rtol=CLOSE, atol=CLOSE, equal_nan=True):
            what = f"{split} {measure}: {value} here, {was} there"
            return False, f"not equal to what the client reported after round {rounds}: {what}", rounds
    largest = max(np.nan_to_num([abs(value - was) for _, _, value, was in scored]))
    parts = ", ".join(dict.fromkeys(split for split, *_ in scored))
    line = f"equal to what the client reported after round {rounds} ({parts}); at most {largest:.0e} apart"
    return True, line, rounds
