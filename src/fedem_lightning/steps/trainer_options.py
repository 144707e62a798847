"""Refuses options of Lightning's Trainer that have no meaning here: an epoch is a round, its one batch all clients."""

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

import pytorch_lightning as pl
from annotated_types import Ge, Predicate

from fedem_lightning.errors import UserError, require
from fedem_lightning.processes import require_ddp
from fedem_lightning.settings.ranges import Count, PositiveInt

REFUSED_CALLBACKS = {
    "BatchSizeFinder": "an epoch is a round, and its one batch is all clients; choose algorithm.batch_size by hand, "
    "engine.memory_gb bounds the memory",
    "LearningRateFinder": "it steps through batches, and a round has one; try several algorithm.client_optimizer.lr, "
    "e.g. with -m",
    "GradientAccumulationScheduler": "the clients take the steps; a larger batch is algorithm.batch_size",
    "WeightAveraging": "it would average clients' private state and counters as well; choose "
    "algorithm.server_optimizer instead",
    "StochasticWeightAveraging": "it would set the rate of the server; choose algorithm.server_optimizer instead",
    "ModelPruning": "it would prune the server's models between rounds, and the clients train all parameters again",
    "BaseFinetuning": "it would freeze the server's models; freeze parameters of the backbone (requires_grad=False)",
}
"""What to use instead, by the name of the class."""


PRECISIONS = ("32-true", "64-true", "bf16-mixed")
Precision = Annotated[
    Literal["32-true", "64-true", "bf16-mixed", "32", "64", "bf16", 32, 64],
    "32-true, 64-true, bf16-mixed",
]  # the last five are Lightning's other names
Devices = Annotated[
    PositiveInt | Literal["auto", -1] | Sequence[Count] | Annotated[str, Predicate(lambda text: text[:1].isdigit())],
    "a number of processes, auto, a list of GPUs",
]
TRAINER: dict[str, Any] = {
    "max_epochs": Count,
    "min_epochs": Count | None,
    "check_val_every_n_epoch": PositiveInt | None,
    "devices": Devices | None,
    "num_nodes": PositiveInt,
    "precision": Precision | None,
    "deterministic": bool | Literal["warn"] | None,
    "profiler": Literal["simple", "advanced", "pytorch", "xla"] | None,
    "log_every_n_steps": Count | None,
    "num_sanity_val_steps": Annotated[int, Ge(-1)] | None,
}
"""What a configuration may give the Trainer, where Lightning's annotations allow more than ends well."""


def check_trainer(trainer: pl.Trainer, schedule: str = "constant", private: bool = False) -> None:
    """Refuses what would be ignored, or would do something else than it says; UserError: what to use instead.

    `schedule` is that of the clients' learning rate. If the aggregation adds noise for privacy (`private`), no callback
    may choose a round by clients' scores.
    """
    require_ddp(trainer)
    on_mps = trainer.strategy.root_device.type == "mps"
    require(not on_mps, "trainer.accelerator: a Mac's GPU (mps) has no float64, which scores need; expected cpu")
    for option, instead in _refused(trainer, schedule):
        raise UserError(f"trainer.{option}: {instead}")
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        for kind in type(callback).__mro__:
            if kind.__name__ in REFUSED_CALLBACKS:
                raise UserError(f"{kind.__name__}: {REFUSED_CALLBACKS[kind.__name__]}")
        monitor = getattr(callback, "monitor", None)
        if private and monitor not in (None, "round", "step", "epoch"):
            chosen = f"{type(callback).__name__} chooses a round by {monitor}, a score of clients without noise"
            raise UserError(f"aggregation: PrivateMean adds noise to the mean of updates alone, but {chosen}")


def _refused(trainer: pl.Trainer, schedule: str) -> Iterator[tuple[str, str]]:
    """Each option that is not as it has to be, and what to say of it."""
    quick = trainer.fast_dev_run  # type: ignore[attr-defined]
    if quick not in (False, True):  # 0 and 1 are these
        yield "fast_dev_run", f"expected true, which is one round, got {quick}; use trainer.max_epochs={quick}"
    if trainer.overfit_batches:  # type: ignore[attr-defined]
        yield "overfit_batches", "a round's only batch is all of its clients; to overfit, take a smaller federation"
    yield from _limits(trainer)
    if trainer.gradient_clip_val is not None:
        yield (
            "gradient_clip_val",
            "the Trainer does not see the gradients: each client trains on its own, within training_step; use "
            "algorithm.client_optimizer.max_grad_norm",
        )
    if trainer.accumulate_grad_batches != 1:
        yield "accumulate_grad_batches", "the clients take the steps; a larger batch is algorithm.batch_size"
    if trainer.max_steps != -1 and not quick:
        yield "max_steps", "a step is a round here; use trainer.max_epochs"
    if trainer.min_steps is not None:
        yield "min_steps", "a step is a round here; use trainer.min_epochs"
    every = getattr(trainer, "val_check_interval", 1.0)  # missing where it is a time
    if trainer.check_val_every_n_epoch is not None and every != 1:
        yield "val_check_interval", f"expected 1, got {every}; rounds between evaluations: check_val_every_n_epoch"
    if trainer.check_val_every_n_epoch == 0:
        yield "check_val_every_n_epoch", "expected a whole number of at least 1, got 0"
    if trainer.precision not in PRECISIONS:
        yield "precision", f"expected {', '.join(PRECISIONS[:-1])} or {PRECISIONS[-1]}, got {trainer.precision}"
    if getattr(trainer.strategy, "_layer_sync", None) is not None:
        yield "sync_batchnorm", "the statistics are each client's own, and the server averages them; expected false"
    if trainer.max_epochs == -1 and schedule != "constant":
        yield "max_epochs", f"algorithm.client_optimizer.schedule={schedule} needs the number of rounds, got -1"


def _limits(trainer: pl.Trainer) -> Iterator[tuple[str, str]]:
    fewer = "fewer clients: algorithm.scored_clients"
    training = "fewer clients: algorithm.participation; fewer local steps: algorithm.local_steps"
    stages = (("train", (1,), training), ("val", (0, 1), fewer), ("test", (1,), fewer), ("predict", (1,), fewer))
    for stage, allowed, instead in stages:
        limit = getattr(trainer, f"limit_{stage}_batches")
        if limit not in allowed:
            expected = " or ".join(map(str, allowed))
            given = f"an epoch is a round, and its one batch is all clients; expected {expected}, got {limit}"
            yield f"limit_{stage}_batches", f"{given}; {instead}"
