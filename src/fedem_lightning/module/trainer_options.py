"""Refuses options of Lightning's Trainer that have no meaning here: an epoch is a round, its one batch all clients."""

from collections.abc import Iterator
from typing import Any

import pytorch_lightning as pl

from fedem_lightning.settings.errors import require
from fedem_lightning.settings.ranges import PRECISIONS
from fedem_lightning.state.processes import require_ddp

REFUSED_CALLBACKS = {
    "BatchSizeFinder": "a round's one batch is all clients; choose algorithm.batch_size, or engine.memory_gb",
    "LearningRateFinder": "a round has one batch; try several algorithm.client_optimizer.lr, e.g. with -m",
    "GradientAccumulationScheduler": "the clients take the steps; a larger batch is algorithm.batch_size",
    "WeightAveraging": "it would average clients' private state as well; choose algorithm.server_optimizer instead",
    "StochasticWeightAveraging": "it would set the rate of the server; choose algorithm.server_optimizer instead",
    "ModelPruning": "the clients would train the pruned parameters again",
    "BaseFinetuning": "freeze parameters of the backbone instead (requires_grad=False)",
}
"""What to use instead, by the name of the class."""


def check_trainer(trainer: pl.Trainer, schedule: str = "constant", private: bool = False) -> None:
    """Refuses what would be ignored, or would do something else than it says; UserError: what to use instead.

    `schedule` is that of the clients' learning rate. If the aggregation adds noise for privacy (`private`), no callback
    may choose a round by clients' scores.
    """
    require_ddp(trainer)
    on_mps = trainer.strategy.root_device.type == "mps"
    require(not on_mps, "trainer.accelerator: a Mac's GPU (mps) has no float64, which scores need; expected cpu")
    for option, fits, instead in _options(trainer, schedule):
        require(bool(fits), f"trainer.{option}: {instead}")
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        for kind in type(callback).__mro__:
            use = REFUSED_CALLBACKS.get(kind.__name__)
            require(use is None, f"{kind.__name__}: {use}")
        monitor = getattr(callback, "monitor", None)
        chosen = f"{type(callback).__name__} chooses a round by {monitor}, a score of clients without noise"
        noisy = not private or monitor in (None, "round", "step", "epoch")
        require(noisy, f"aggregation: PrivateMean adds noise to the mean of updates alone, but {chosen}")


def _options(trainer: Any, schedule: str) -> Iterator[tuple[str, Any, str]]:
    """Each option whose values are limited, whether its value fits, and what to say if not."""
    batches, a_step = "an epoch is a round, and its one batch is all clients", "a step is a round here; use trainer"
    quick, every = trainer.fast_dev_run, getattr(trainer, "val_check_interval", 1.0)  # missing where it is a time
    use = f"expected true, which is one round, got {quick}; use trainer.max_epochs={quick}"
    yield "fast_dev_run", quick in (False, True), use  # 0 and 1 are these
    yield "overfit_batches", not trainer.overfit_batches, f"{batches}; to overfit, take a smaller federation"
    for stage, allowed in (("train", (1,)), ("val", (0, 1)), ("test", (1,)), ("predict", (1,))):
        limit, expected = getattr(trainer, f"limit_{stage}_batches"), " or ".join(map(str, allowed))
        fewer = f"fewer clients: algorithm.{'participation' if stage == 'train' else 'scored_clients'}"
        yield f"limit_{stage}_batches", limit in allowed, f"{batches}; expected {expected}, got {limit}; {fewer}"
    clip = "each client trains on its own; use algorithm.client_optimizer.max_grad_norm"
    yield "gradient_clip_val", trainer.gradient_clip_val is None, clip
    larger = "the clients take the steps; a larger batch is algorithm.batch_size"
    yield "accumulate_grad_batches", trainer.accumulate_grad_batches == 1, larger
    yield "max_steps", trainer.max_steps == -1 or quick, f"{a_step}.max_epochs"
    yield "min_steps", trainer.min_steps is None, f"{a_step}.min_epochs"
    rounds = f"expected 1, got {every}; rounds between evaluations: check_val_every_n_epoch"
    yield "val_check_interval", trainer.check_val_every_n_epoch is None or every == 1, rounds
    at_least = "expected a whole number of at least 1, got 0"
    yield "check_val_every_n_epoch", trainer.check_val_every_n_epoch != 0, at_least
    known = f"expected {', '.join(PRECISIONS[:-1])} or {PRECISIONS[-1]}, got {trainer.precision}"
    yield "precision", trainer.precision in PRECISIONS, known
    own = "the statistics are each client's own, and the server averages them; expected false"
    yield "sync_batchnorm", getattr(trainer.strategy, "_layer_sync", None) is None, own
    needs = f"algorithm.client_optimizer.schedule={schedule} needs the number of rounds, got -1"
    yield "max_epochs", trainer.max_epochs != -1 or schedule == "constant", needs
