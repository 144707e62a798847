"""What a run says of itself beside its results: what is trained, from where it goes on, and why it ended early."""

import shutil
import sys
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
from omegaconf import DictConfig
from pytorch_lightning.callbacks import EarlyStopping

from fedem_lightning.algorithms import FederatedAlgorithm
from fedem_lightning.algorithms.checkpoints import read_checkpoint
from fedem_lightning.data import FederatedDataModule
from fedem_lightning.evaluation.convergence import unfinished_line
from fedem_lightning.records import in_words
from fedem_lightning.run.building import pick_accelerator

_COMMAND = "choose one with: "
"""How a line with a command begins: it stays whole, to be copied."""


def say(text: str) -> None:
    """Prints lines; a terminal's are broken between words, but for commands."""
    terminal = sys.stdout.isatty()
    width = shutil.get_terminal_size().columns
    for line in text.splitlines():
        parts = textwrap.wrap(line, width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
        broken = terminal and len(line) > width and not line.startswith(_COMMAND)
        print("\n".join(parts) if broken else line, flush=True)


def announce(
    config: DictConfig, folder: Path, model: FederatedAlgorithm, data: FederatedDataModule, trainer: pl.Trainer
) -> None:
    """Says what is trained on which data, by which engine, where its files are, and what clients keep."""
    engine = model.local.resolve_engine(trainer.strategy.root_device)
    several = f", {trainer.world_size} processes" if trainer.world_size > 1 else ""
    if pick_accelerator(config) != config.trainer.get("accelerator", "auto"):
        say("trainer.accelerator: cpu, because a Mac's GPU (mps) has no float64, which scores need")
    say(f"data: {data.federation}")
    n_clients, notes = data.federation.n_clients, data.federation.notes
    if left_out := notes.get("left_out_clients", 0):
        say(f"{n_clients:,} of the data's {n_clients + left_out:,} clients: {notes['why']}")
    say(f"engine: {engine.name} ({engine.reason}){several}")
    quick = trainer.fast_dev_run  # type: ignore[attr-defined]
    say("fast_dev_run: a round, its evaluation and the test, and no file" if quick else f"folder: {folder}")
    for name, store in model.states.stores().items():
        without = "; local_training.state=restart keeps none" if store is model.local.momentum else ""
        what = "own models" if name == "own" else name.removeprefix("kept_").replace("_", " ")
        say(f"clients keep their {what}: {store}{without}")
    if model.facts.uses_client_optimizer:
        say(model.local.in_words(data.federation.splits["train"].counts(data.federation.clients())))


def resumed_lines(checkpoint: Path, model: FederatedAlgorithm, rounds: int) -> list[str]:
    """From which round a run goes on, and by which learning rate where another number of rounds has changed that."""
    statistics, optimizer = read_checkpoint(checkpoint)["statistics"], model.local.optimizer
    done, planned = len(statistics["round_seconds"]), statistics.get("planned_rounds") or rounds
    lines = [f"resumed from round {done}: {checkpoint}"]
    if optimizer.schedule != "constant" and planned != rounds and 0 < done < rounds:
        was, now = optimizer.lr_at(done - 1, planned), optimizer.lr_at(done, rounds)
        plans = f"of {planned} rounds, now of {rounds}"
        lines.append(f"schedule={optimizer.schedule} was {plans}: the rate was {was:.3g}, is now {now:.3g}")
    return lines


def stop_line(trainer: pl.Trainer) -> str:
    """That `EarlyStopping` has ended the training before its last round; else empty."""
    rounds, limit = trainer.current_epoch, trainer.max_epochs
    callbacks: list[pl.Callback] = trainer.callbacks  # type: ignore[attr-defined]
    for callback in callbacks:
        if isinstance(callback, EarlyStopping) and callback.stopped_epoch and rounds != limit:
            return f"stopped by EarlyStopping at round {rounds} of {limit} ({callback.monitor})"
    return ""


def round_lines(results: Mapping[str, Any]) -> Iterator[str]:
    """The test score of the best validation round beside that of the last one, and whether the training has ended."""
    best, last = results["best_round"], results["last_round"]
    if best and best["test"] is not None and best["round"] != last["round"]:
        at = [f"{in_words(found['test'], best['measure'])} at round {found['round']}" for found in (best, last)]
        yield f"test {best['measure']} by round: {at[0]}, the best on validation; {at[1]}, the last evaluated"
    if line := unfinished_line(results["convergence"]):
        yield line
