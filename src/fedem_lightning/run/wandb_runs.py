"""Weights & Biases: one row a round, with pictures after an evaluation; at the end a table of clients and a summary."""

import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd
from lightning_fabric.loggers.logger import rank_zero_experiment
from pytorch_lightning.loggers import Logger, WandbLogger

from fedem_lightning.errors import UserError
from fedem_lightning.records.files import regular
from fedem_lightning.run.pictures import Pictures
from fedem_lightning.run.trackers import LogModel, Outcome, RoundTracker, Tracked, keep_id, known_id
from fedem_lightning.settings.check import check_arguments

MOST_ROWS = 10_000
"""Rows of the table of clients, which is as many as W&B shows."""
Mode = Literal["online", "offline", "disabled", "shared"]
_HEADER = 7
"""Bytes before the first record of a file, and before every piece of a record."""
_BLOCK = 32768
_FULL, _LAST = 1, 4
"""Kinds of pieces that end a record."""


class WandbRounds(RoundTracker, WandbLogger):
    """A WandbLogger whose x-axis is the round; it takes up the same W&B run when the run is resumed.

    Args:
        log_model: whether the last checkpoint becomes an artefact when the run has finished; "all": every checkpoint.
        options: of `WandbLogger` and `wandb.init`.

    """

    def __init__(self, log_model: bool | str = False, **options: Any) -> None:
        super().__init__(log_model=log_model, **options)
        self.log_model = log_model
        self._wandb_init.pop("anonymous")  # Lightning's, of which W&B warns
        self._open_row = False

    @property
    @rank_zero_experiment
    def experiment(self) -> Any:
        """The W&B run; every metric is drawn over `round`."""
        if self._experiment is None:
            import wandb

            self._experiment = wandb.init(**self._wandb_init)
            self._experiment.define_metric("round")
            self._experiment.define_metric("*", step_metric="round")
        return self._experiment

    def open(self, run: Tracked) -> int:
        """Begins or continues the W&B run, and gives it the configuration."""
        known, options = known_id(run.folder, "wandb"), self._wandb_init
        if known is not None:
            options["id"] = known
        else:  # W&B remembers those of a run that it continues
            defaults = {"name": run.name, "group": run.group, "tags": _tags(run)}
            options.update({key: value for key, value in defaults.items() if options.get(key) is None})
        experiment = self.experiment
        experiment.config.update(run.config, allow_val_change=True)
        if experiment.disabled:
            return -1
        keep_id(run.folder, "wandb", experiment.id)
        if known is None:
            return -1
        if not experiment.offline:
            return int(experiment.step) - 1
        earlier = files_of(run.folder, known)[:-1]  # the last one has just been begun
        return max(map(last_step, earlier), default=-1)

    def send(self, metrics: Mapping[str, float], round_: int) -> None:
        """Adds metrics to the round's row, which W&B keeps open until `commit` or the next round."""
        self.experiment.log({**metrics, "round": round_}, step=round_)
        self._open_row = True

    def commit(self) -> None:
        """Ends the row of the newest round."""
        if self._open_row:
            self.experiment.log({}, commit=True)
            self._open_row = False

    def note(self, constants: Mapping[str, float]) -> None:
        """Adds constants to the summary: a chart of them would be a flat line."""
        self.experiment.summary.update(constants)

    def send_pictures(self, found: Pictures, round_: int) -> None:
        """Adds pictures to the round's row; W&B shows a slider over the rounds."""
        import wandb

        media: dict[str, Any] = {f"figures/{name}": wandb.Image(pixels) for name, pixels in found.figures.items()}
        media |= {name: wandb.Histogram(values.tolist()) for name, values in found.histograms.items()}
        self.send(media, round_)

    def report(self, outcome: Outcome) -> None:
        """Adds what the last round's row lacks, and the summary."""
        import wandb

        media = {name: wandb.Image(str(path)) for name, path in self.new_figures(outcome).items()}
        row = {**self.unsent(outcome), **media, "clients": wandb.Table(dataframe=_shown(outcome.clients))}
        # the row of the last round is open, unless an earlier process has sent it
        step = outcome.rounds if self._open_row else None
        self.experiment.log(row | {"round": outcome.rounds}, step=step, commit=True)  # the row's scores are float32
        self._open_row = False
        self.experiment.summary.update({**outcome.scores, **outcome.best, **outcome.numbers})

    def close(self, status: str) -> None:
        """Ends the W&B run; one that was stopped or has failed is shown as such."""
        if self._experiment is not None:
            self._experiment.finish(exit_code=0 if status == "success" else 1)
            self._experiment = None

    def add_artefact(self, path: Path, rounds: int) -> None:
        """Makes an artefact of a checkpoint."""
        import wandb

        artefact = wandb.Artifact(f"model-{self.experiment.id}", "model", metadata={"rounds": rounds})
        artefact.add_file(str(path))
        self.experiment.log_artifact(artefact, aliases=["latest", f"round-{rounds}"])


def _tags(run: Tracked) -> list[str]:
    return [f"seed={value}" if name == "seed" else value for name, value in run.tags.items()]


def _shown(clients: pd.DataFrame) -> pd.DataFrame:
    """The table, or so many of its rows, at equal distances, as W&B shows."""
    if len(clients) <= MOST_ROWS:
        return clients
    return clients.iloc[np.linspace(0, len(clients) - 1, MOST_ROWS).astype(int)]


def files_of(folder: Path, id_: str) -> list[Path]:
    """The files of the W&B run `id_` in a run's folder, oldest first."""
    return sorted((folder / "wandb").glob(f"*run-*-{id_}/run-{id_}.wandb"))


def last_step(path: Path) -> int:
    """The step of the file's last row of history; 0: it has none."""
    return max((r.history.step.num for r in records(path) if r.WhichOneof("record_type") == "history"), default=0)


def records(path: Path) -> Iterator[Any]:
    """The records of a file, as `wandb.proto.wandb_internal_pb2.Record`, up to where it was cut off."""
    try:
        data = regular(path).read_bytes()
    except OSError:  # something else has the name
        return
    from google.protobuf.message import DecodeError
    from wandb.proto.wandb_internal_pb2 import Record  # type: ignore[attr-defined]

    position, pieces = _HEADER, b""
    while position + _HEADER <= len(data):
        if (left := _BLOCK - position % _BLOCK) < _HEADER:
            position += left
            continue
        _, length, kind = struct.unpack("<IHB", data[position : position + _HEADER])
        position += _HEADER
        if kind == 0 or position + length > len(data):
            return
        pieces += data[position : position + length]
        position += length
        if kind in (_FULL, _LAST):
            record = Record()
            try:
                record.ParseFromString(pieces)
            except DecodeError:
                return
            yield record
            pieces = b""


def wandb_logger(
    save_dir: str | Path,
    mode: Mode | None = None,
    project: str = "fedem-lightning",
    name: str | None = None,
    group: str | None = None,
    tags: Sequence[str] | None = None,
    log_model: LogModel = False,
    **options: Any,
) -> Logger:
    """A WandbLogger that never asks for a login: without an API key it works offline and prints a line about it.

    Args:
        save_dir: parent of the `wandb` folder.
        mode: online, offline or disabled; None: the environment's WANDB_MODE, else online if there is an API key.
        project, name, group, tags: of the W&B run.
        log_model: see `WandbRounds`.
        options: further ones of `WandbLogger` and `wandb.init`.

    Raises:
        UserError: an option cannot be.

    """
    check_arguments("logger.wandb", wandb_logger, locals())
    import wandb

    options |= {"project": project, "name": name, "group": group, "tags": tags, "log_model": log_model}
    chosen = mode or os.environ.get("WANDB_MODE")
    if chosen is None:
        chosen = "online" if wandb.api.api_key else "offline"
        if chosen == "offline":
            print("W&B: no API key found, so this run is kept offline; send it later with `wandb sync`.")
    if chosen not in get_args(Mode):
        raise UserError(f"WANDB_MODE: expected online, offline or disabled, got {chosen}")
    return WandbRounds(save_dir=str(save_dir), mode=chosen, **options)
