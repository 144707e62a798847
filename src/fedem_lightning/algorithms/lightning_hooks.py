"""Part of every algorithm: the hooks that Lightning calls. An epoch is a communication round."""

from collections.abc import Callable, Iterable
from typing import Any, Protocol

import pandas as pd
import pytorch_lightning as pl
import torch
from pytorch_lightning.plugins.io import TorchCheckpointIO
from pytorch_lightning.utilities import rank_zero_only
from torch import Tensor, nn

from fedem_lightning.adaptation import Adaptation
from fedem_lightning.algorithms.checkpoints import (
    CheckpointReader,
    check_tensors,
    recipe_of,
    schema_of,
    take_dtypes,
)
from fedem_lightning.algorithms.checks import (
    check_capabilities,
    check_data,
    check_finite_models,
    check_fit,
    check_is_federation,
    check_logits,
    check_trains,
)
from fedem_lightning.algorithms.recipe_differences import warn_of_other_settings
from fedem_lightning.algorithms.server_step import check_optimizers, make_server_optimizer
from fedem_lightning.algorithms.trainer_options import check_trainer
from fedem_lightning.data.federation import Federation
from fedem_lightning.data.schema import Schema
from fedem_lightning.data.splits import SPLITS
from fedem_lightning.engine import Engine
from fedem_lightning.errors import require
from fedem_lightning.evaluation.samples import SampleScores
from fedem_lightning.evaluation.scores import client_table, curve_metrics, final_metrics, scored_clients
from fedem_lightning.models.components import arrange
from fedem_lightning.processes import Processes
from fedem_lightning.protocol import Algorithm
from fedem_lightning.randomness import keyed_streams
from fedem_lightning.round import run_round


class Trained(Algorithm, Protocol):
    """Members of an algorithm that the Lightning hooks use, beyond those of `Algorithm`."""

    adaptation: Adaptation | None
    clients: pd.DataFrame
    made_with: dict[str, Any]
    uses_client_optimizer: bool
    curves: dict[int, dict[str, float]]
    test_samples: SampleScores | None
    class_scores: dict[str, Any] | None
    federation_digest: str | None
    engine_gave_up: bool
    deployed_before: bool
    personalizes_seen: bool
    personalize_fraction: float
    server_optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
    CHECKPOINT_HYPER_PARAMS_KEY: str
    _ddp_params_and_buffers_to_ignore: list[str]
    _prepared: Federation | None
    _saved_arguments: dict[str, Any]
    schema: Schema | None
    _guest: Any

    @property
    def is_deployed(self) -> bool: ...
    def prepare(self, federation: Federation) -> None: ...
    def prepare_for(self, federation: Federation) -> None: ...
    def resolve_engine(self, device: torch.device) -> Engine: ...
    def named_buffers(self) -> Iterable[tuple[str, Tensor]]: ...
    @property
    def to(self) -> Callable[..., Any]: ...
    @property
    def train(self) -> Callable[..., Any]: ...
    @property
    def log_dict(self) -> Callable[..., None]: ...
    def own_data(self, batch: Federation) -> Federation: ...
    def personalize_before_scores(self, batch: Federation, own_data: Federation) -> None: ...
    def _begin(self, federation: Federation) -> None: ...
    def _personalize(self, federation: Federation, clients: Tensor) -> None: ...
    def _log(self, metrics: dict[str, float]) -> None: ...


def mixture_metrics(algorithm: Algorithm, federation: Federation) -> dict[str, float]:
    """Mixture weights of the clients that train, for methods that have `pi`, T x M; else none.

    Returns:
        pi/mean_0, pi/mean_1, ...: the mean weight of each component; pi/entropy: the mean of -sum pi ln pi, in nats.

    """
    pi = algorithm.known_pi
    if pi is None:
        return {}
    weights = pi[federation.clients()].double()  # [C, M]
    means = {f"pi/mean_{m}": float(mean) for m, mean in enumerate(weights.mean(dim=0))}
    return means | {"pi/entropy": float(torch.special.entr(weights).sum(dim=1).mean())}


class LightningHooks:
    """Rounds, scoring and checkpoints, as hooks of Lightning's loops."""

    _prepared: Federation | None
    federation_digest: str | None
    schema: Schema | None

    def configure_optimizers(self: Trained) -> torch.optim.Optimizer:
        """Makes the server optimiser."""
        return make_server_optimizer(self.server_optimizer, self.components)

    def setup(self: Trained, stage: str) -> None:
        """Arranges the weights for the Trainer's device, and keeps DDP from copying all buffers before every round.

        The round itself exchanges the rows that changed.
        """
        arrange(self.components, self.trainer.strategy.root_device)
        self._ddp_params_and_buffers_to_ignore = [name for name, _ in self.named_buffers()]

    def configure_callbacks(self: Trained) -> list[pl.Callback]:
        """Adds none. Lightning calls this hook before all others, so what the Trainer was given is checked here."""
        private = self.aggregation.samples_independently
        check_trainer(self.trainer, self.client_optimizer.schedule, private)
        vars(rank_zero_only)["rank"] = self.trainer.global_rank  # Lightning's guess, RANK, may be another launch's
        check_data(self.trainer)
        compiled = getattr(self, "_compiler_ctx", None) is not None
        require(not compiled, "torch.compile: a step of the model is a whole round; compile the backbone instead")
        if type(self.trainer.strategy.checkpoint_io) is TorchCheckpointIO:  # nobody chose another
            self.trainer.strategy.checkpoint_io = CheckpointReader()
        return []

    def on_fit_start(self: Trained) -> None:
        """Plans the rounds, and says so where nobody has chosen the learning rate."""
        check_optimizers(self.trainer, self.components)
        self.train()  # as Lightning expects; an earlier round or evaluation may have left them in eval mode
        engine = self.resolve_engine(self.device)  # copies the networks, before a profiler adds hooks to them
        if self.engine_gave_up:
            engine.give_up()
        self.statistics.plan(self.trainer.max_epochs or 0)
        if self.uses_client_optimizer and self.made_with.get("client_optimizer") is None and not self.statistics.rounds:
            rank_zero_only(print)(
                f"learning rate {self.client_optimizer.lr:g}, the default, nobody chose it for these data; "
                "client_optimizer=ClientSGD(lr=...) sets another"
            )

    def on_train_start(self: Trained) -> None:
        """Adds the rounds before this fit to the plan: a model that is fitted again goes on."""
        self.statistics.planned_rounds += self.statistics.rounds - self.trainer.current_epoch

    def on_predict_batch_start(self, batch: object, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Refuses batches of a loader; the other steps do so as they prepare for the federation."""
        check_is_federation(batch)

    @torch.no_grad()
    def training_step(self: Trained, batch: Federation, batch_idx: int) -> None:
        """One communication round; it steps the server optimiser once."""
        self._begin(batch)
        self._guest = None  # it has the state of an earlier round
        with keyed_streams(self.device, self.seed, self.statistics.rounds):
            metrics = run_round(self, batch)
        self._log(metrics)

    def validation_step(self: Trained, batch: Federation, batch_idx: int) -> None:
        """Scores the seen clients on every split; outside of training only on train and val, to keep test unseen."""
        self.prepare_for(batch)
        check_finite_models(self)
        training = self.trainer.state.fn == "fit"
        with keyed_streams(self.device, self.seed, self.statistics.rounds):
            if self.personalizes_seen:
                self._personalize(batch, scored_clients(self, batch))
            metrics = curve_metrics(self, batch, SPLITS if training else ("train", "val"))
        self._log(metrics | mixture_metrics(self, batch) if training else metrics)

    def test_step(self: Trained, batch: Federation, batch_idx: int) -> None:
        """Personalises the unseen clients, scores all clients on every split; fills `clients` and the rest."""
        self.prepare_for(batch)
        check_finite_models(self)
        own_data = self.own_data(batch)
        with keyed_streams(self.device, self.seed, self.statistics.rounds):
            self.personalize_before_scores(batch, own_data)
            self.clients, self.test_samples, self.class_scores = client_table(self, batch, own_data)
        self._log(final_metrics(self.clients))

    def own_data(self: Trained, batch: Federation) -> Federation:
        """The federation in which unseen clients have the share of their training samples that they may use."""
        part = self.personalize_fraction
        return batch if part == 1 else batch.with_part(batch.clients(seen=False), part, self.seed)

    def personalize_before_scores(self: Trained, batch: Federation, own_data: Federation) -> None:
        """Personalises the unseen clients on the samples of `own_data`, and seen clients where the method does so."""
        unseen = scored_clients(self, batch, seen=False)
        if self.personalizes_seen:  # an adaptation may need the groups of all clients
            self._personalize(batch, scored_clients(self, batch) if self.adaptation is None else batch.clients())
        for store in self.client_stores().values():
            if store.momentum:
                store.written[unseen] = False  # momentum of an earlier test
        self._personalize(own_data, unseen)

    def on_train_end(self: Trained) -> None:
        """Adds the last seconds to the training time."""
        self.statistics.tick()

    def on_save_checkpoint(self: Trained, checkpoint: dict[str, Any]) -> None:
        """Adds the statistics and the diagnostics."""
        self.statistics.tick()
        checkpoint["statistics"], checkpoint["diagnostics"] = self.statistics.state_dict(), self.diagnostics
        checkpoint["federation"], checkpoint["cohort_secret"] = self.federation_digest, self.cohort_secret
        checkpoint["schema"] = None if self.schema is None else self.schema.state()
        checkpoint["engine_gave_up"], checkpoint["deployed"] = self.engine.gives_up, self.is_deployed
        checkpoint["recipe"] = recipe_of(self)  # type: ignore[arg-type]
        checkpoint[self.CHECKPOINT_HYPER_PARAMS_KEY] = self._saved_arguments  # for load_from_checkpoint

    def on_load_checkpoint(self: Trained, checkpoint: dict[str, Any]) -> None:
        """Restores statistics and diagnostics; the run continues to count from there."""
        check_tensors(checkpoint, self)  # type: ignore[arg-type]
        warn_of_other_settings(checkpoint, self)  # type: ignore[arg-type]
        self.statistics = self.statistics.count_on(checkpoint["statistics"])
        self.federation_digest = checkpoint["federation"]
        self.schema, self._guest = schema_of(checkpoint), None
        self.diagnostics = checkpoint.get("diagnostics", {})  # older checkpoints have none
        self.cohort_secret = checkpoint.get("cohort_secret", "")
        self.engine_gave_up = checkpoint.get("engine_gave_up", False)
        self.deployed_before = checkpoint.get("deployed", False)
        # Lightning loads the tensors before `trainer.precision=64-true` makes the model double, and would lose bits
        take_dtypes(self, checkpoint["state_dict"])  # type: ignore[arg-type]

    def prepare_for(self: Trained, federation: Federation) -> None:
        """Prepares the algorithm for rounds and scores on this federation.

        Raises:
            UserError: the model was made for another federation, or the algorithm is not defined for this one.

        """
        check_capabilities(self, federation)
        self.prepare(federation)
        if self.adaptation is not None:
            self.adaptation.prepare(federation)
            self.adaptation.check_network(self.components[0])
        if self.remote is None:  # else every client checks it
            check_fit(self.components[0], federation)
        if self.schema is None:
            self.schema = Schema.of(federation)

    def _begin(self: Trained, federation: Federation) -> None:
        if federation is self._prepared:
            return
        self.prepare_for(federation)
        require(
            self.federation_digest is None or federation.has_digest(self.federation_digest),
            "model: it was trained on another federation (other x or labels, partition, split or seed)",
        )
        if self.remote is None and not self.statistics.rounds:  # a model that has been trained may go on
            outputs = check_fit(self.components[0], federation)
            check_trains(outputs)
            check_logits(outputs, federation.task)
        self.federation_digest, self._prepared = federation.digest(), federation
        self.schema = Schema.of(federation)

    def _personalize(self: Trained, federation: Federation, clients: Tensor) -> None:
        """Each process personalises its share of the clients; then all processes exchange the client state."""
        if not len(clients) or self.remote is not None:  # remote clients personalise themselves
            return
        processes = Processes.of(self.trainer)
        shares = [clients[rank :: processes.size] for rank in range(processes.size)]
        with torch.inference_mode(False), torch.no_grad():
            if len(mine := shares[processes.rank]):
                self.observer.begin("personalizing", len(mine))
                self.personalize_clients(federation, mine)
            processes.exchange_rows(self.client_state(), shares)

    def _log(self: Trained, metrics: dict[str, float]) -> None:
        if self.trainer.state.fn == "fit":  # loggers use the metric called "step" as x-axis: rounds
            if not self.trainer.sanity_checking:
                self.curves.setdefault(self.statistics.rounds, {}).update(metrics)
            metrics = metrics | {"step": float(self.statistics.rounds)}
        options: dict[str, Any] = {"on_step": False, "on_epoch": True, "batch_size": 1}
        options["sync_dist"] = self.trainer.world_size > 1
        self.log_dict(metrics, **options)
        if self.trainer.state.fn == "fit":  # names that callbacks may monitor and put into file names
            scores = {name.replace("/", "_"): value for name, value in metrics.items() if "/" in name}
            self.log_dict(scores, logger=False, **options)
