"""What a run says before its first round: the data, how clients train, the folder."""

import shutil
import sys
import textwrap
from pathlib import Path

import pytorch_lightning as pl
from omegaconf import DictConfig

from fedem_lightning.algorithms import FederatedAlgorithm
from fedem_lightning.data import FederatedDataModule
from fedem_lightning.run.devices import pick_accelerator

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
    say(f"folder: {folder}")
    for name, store in model.states.stores().items():
        without = "; local_training.state=restart keeps none" if store is model.local.momentum else ""
        what = "own models" if name == "own" else name.removeprefix("kept_").replace("_", " ")
        say(f"clients keep their {what}: {store}{without}")
