"""The LightningModule of a federated method: its parts, and its rounds and scores as Lightning's steps."""

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn, Self

import pandas as pd
import pytorch_lightning as pl
import torch
from pytorch_lightning.utilities import rank_zero_only
from torch import Tensor

from fedem_lightning.aggregate import Aggregation, Models, make_aggregation
from fedem_lightning.aggregate.compression import Compression
from fedem_lightning.aggregate.faults import Faults
from fedem_lightning.data.federation import Block, Federation
from fedem_lightning.data.randomness import keyed_streams
from fedem_lightning.evaluate.adapt import Adaptation
from fedem_lightning.evaluate.convergence import convergence, unfinished_line, whole_run
from fedem_lightning.local.engine import AutoEngine, Engine, make_engine
from fedem_lightning.local.optimizers import AnyClientOptimizer, ClientSGD
from fedem_lightning.local.server_step import Server, ServerOptimizer
from fedem_lightning.local.training import LocalTraining
from fedem_lightning.method import Method
from fedem_lightning.models.client_store import ClientStore
from fedem_lightning.models.components import Backbone, arrange, make_components, stacked_state
from fedem_lightning.models.personal_models import ClientModel
from fedem_lightning.models.tensors import frozen_bytes
from fedem_lightning.module import checkpoints, fitting, scoring
from fedem_lightning.module.round import as_clients_have_it, run_round
from fedem_lightning.module.trained import TrainedModel
from fedem_lightning.settings.check import check_arguments
from fedem_lightning.settings.errors import UserError, require
from fedem_lightning.settings.ranges import Positive, PositiveInt, Seed, Share, ShareOrNumber
from fedem_lightning.settings.recipes import Recorded
from fedem_lightning.state.history import RoundMetrics, Statistics
from fedem_lightning.state.per_client import PerClient, States
from fedem_lightning.state.processes import Processes

_WHO_PREDICTS = "every client has its own model; use model.client(NAME).predict(x), or model.personalize(x, y)"


class FederatedAlgorithm(Recorded, Method):
    """Base class of all methods: a LightningModule whose epoch is a communication round, with M shared components.

    `Method` has the hooks that a method overrides, and what they use.

    Args:
        backbone: a function that makes a new network, called for each component; or a network, of which all components
            are copies. Those of a network of this package draw new values, unless you have changed its own.
        n_clients: T of the federation, the unseen clients included.
        n_components: M.
        client_optimizer: of the local solver: `ClientSGD`, `ClientAdam` or `ClientAdamW`; None: ClientSGD().
        server_optimizer: makes the optimiser that takes the pseudo-gradient, theta - aggregate; None: SGD with lr 1,
            the plain average.
        local_epochs: passes over a client's training samples in a round; 0.5: over half of them, drawn anew each round.
        local_steps: J, the number of local steps of every client; None: `local_epochs` passes.
        batch_size: B.
        participation: up to 1: the fraction of the clients in a round's cohort; from 2 on: their number.
        scored_clients: up to 1: the fraction of the clients that are scored; from 2 on: their largest number.
        personalize_fraction: share of an unseen client's training samples that it may use, in [0, 1] (FedEM, Fig. 2).
        adaptation: how a client adapts its models before it is scored; None: not at all.
        engine: "auto", "loop", "vmap", or an Engine.
        aggregation: how the server combines the updates: "mean", "norm_clipping", "median", "trimmed_mean",
            "multi_krum", or an `Aggregation`; None: the mean.
        compression: of the updates that clients upload; None: none.
        faults: of clients, injected into the training; None: none.
        seed: of cohorts, shuffling, dropout, and of components 1..M-1.

    """

    # --- the model --------------------------------------------------------------------------------------------------

    def __init__(
        self,
        backbone: Backbone,
        n_clients: PositiveInt,
        n_components: PositiveInt = 1,
        *,
        client_optimizer: AnyClientOptimizer | None = None,
        server_optimizer: ServerOptimizer | None = None,
        local_epochs: Positive = 1,
        local_steps: PositiveInt | None = None,
        batch_size: PositiveInt = 128,
        participation: ShareOrNumber = 1.0,
        scored_clients: ShareOrNumber = 1.0,
        personalize_fraction: Share = 1.0,
        adaptation: Adaptation | None = None,
        engine: Engine | AutoEngine | str = "auto",
        aggregation: Aggregation | str | None = None,
        compression: Compression | None = None,
        faults: Faults | None = None,
        seed: Seed = 0,
    ) -> None:
        check_arguments(type(self).__name__, FederatedAlgorithm, locals())  # a subclass may pass on any value
        super().__init__()
        _check_class(type(self))
        self.automatic_optimization = False
        self.n_clients, self.seed = n_clients, seed
        self.participation, self.scored_clients = participation, scored_clients
        self.adaptation, self.personalize_fraction = adaptation, personalize_fraction
        self.aggregation, self.compression, self.faults = make_aggregation(aggregation), compression, faults
        self.components = make_components(backbone, n_components, seed)
        self.states, self.statistics, self.round_metrics = States(self), Statistics(), RoundMetrics()
        plain_average = functools.partial(torch.optim.SGD, lr=1.0)
        self.server = Server(self.components, server_optimizer or plain_average, self.optimizers)
        sgd, how = client_optimizer or ClientSGD(), (local_epochs, local_steps, batch_size, seed, make_engine(engine))
        self.local = LocalTraining(self.components[0], n_clients, n_components, sgd, *how, self.statistics)
        self.kept_momentum = self.local.momentum
        keeps = compression is not None and compression.keeps_error
        self.compression_error = ClientStore(n_clients, self.local.zeros()) if keeps else None  # not sent yet
        self.states.declared["has_frozen"] = none = PerClient(torch.zeros(n_clients, dtype=torch.bool), None, "server")
        self.register_buffer("has_frozen", none.tensor, persistent=frozen_bytes(self.components[0]) > 0)
        self.save_hyperparameters(checkpoints.logged_arguments(self))
        self.networks, self.traffic, self.samples_by_size, self.global_samples = {}, None, False, 0
        self.remote, self.is_deployed, self.cohort_secret = None, False, ""
        self.curves, self.diagnostics, self.clients = {}, {}, pd.DataFrame()
        self.schema = self.federation_digest = self.past = self.tested = self._prepared = self._trained = None
        self.says_unfinished = True

    @classmethod
    def load_from_checkpoint(  # type: ignore[override]
        cls, checkpoint_path: str | Path, *_: Any, trust: Sequence[str] = (), **arguments: Any
    ) -> Self:
        """The model of a checkpoint, in eval mode, without pickle; UserError: it is not intact, or names nothing known.

        Args:
            checkpoint_path: the file.
            trust: packages of yours whose classes the checkpoint may name.
            arguments: of the class; they replace those of the checkpoint. `backbone` is needed for a network that this
                package cannot make again. Lightning's own options (`map_location`, `strict`) change nothing.

        """
        check_arguments("", cls.load_from_checkpoint, {"checkpoint_path": checkpoint_path, "trust": trust})
        given = {name: value for name, value in arguments.items() if name not in checkpoints.LIGHTNINGS_OPTIONS}
        return checkpoints.model_of(checkpoints.read_checkpoint(Path(checkpoint_path)), cls, trust, given)

    def evaluation_components(self, federation: Federation) -> Models:
        """The evaluation components: the M models that diagnostics look at, [M, ...]. Default: the components."""
        return stacked_state(self.components)

    # --- the trained model ------------------------------------------------------------------------------------------

    @property
    def trained_model(self) -> TrainedModel:
        """The models of known and of new clients, by name; UserError if the model has not been trained."""
        self._trained = self._trained or TrainedModel(self)
        return self._trained

    def client(self, name: str) -> ClientModel:
        """The model of a client that trained, a copy; see `TrainedModel.client`."""
        return self.trained_model.client(name)

    def personalize(self, x: Any, y: Any = None, name: str | int = "new client") -> ClientModel:
        """The model that a new client gets from its samples; see `TrainedModel.personalize`."""
        return self.trained_model.personalize(x, y, name)

    def predict(self, block: Block) -> Tensor:
        """The clients' personal predictions (FedEM, Eq. 5), as `Task.predict` gives them, [n, ...]."""
        require(isinstance(block, Block), f"predict: expected a block of samples of clients; {_WHO_PREDICTS}")
        return self.personal_models(block.clients).predict(block)

    def forward(self, *_: object, **__: object) -> NoReturn:
        """Refuses `model(x)` and Lightning's exports: which model predicts depends on the client."""
        raise UserError(f"model(x), to_onnx, to_torchscript: {_WHO_PREDICTS}; fedem_lightning.export writes files")

    to_onnx = to_torchscript = to_tensorrt = forward

    # --- Lightning's hooks: an epoch is a round ---------------------------------------------------------------------

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Makes the server optimiser."""
        return self.server.new_optimizer()

    def configure_callbacks(self) -> list[pl.Callback]:
        """Validates the Trainer: Lightning calls this hook before all others. It adds no callback."""
        fitting.check_start(self)
        return []

    def setup(self, stage: str) -> None:
        """Arranges the weights for the Trainer's device; DDP copies no buffers, as a round exchanges what changed."""
        arrange(self.components, self.trainer.strategy.root_device)
        self._ddp_params_and_buffers_to_ignore = [name for name, _ in self.named_buffers()]

    def on_fit_start(self) -> None:
        """Plans the rounds, and says so where nobody has chosen the learning rate."""
        fitting.plan(self)

    def on_train_start(self) -> None:
        """Adds the rounds before this fit to the plan: a model that is fitted again goes on."""
        self.statistics.planned_rounds += self.statistics.rounds - self.trainer.current_epoch
        self.states.shares = []

    @torch.no_grad()
    def training_step(self, batch: Federation, batch_idx: int) -> None:
        """One communication round; it steps the server optimiser once."""
        fitting.begin_fit(self, batch)
        with keyed_streams(self.device, self.seed, self.statistics.rounds):
            if self.statistics.rounds == 0:
                self.initialize(as_clients_have_it(self, batch, 0)[0])
                scoring.score_first_models(self, batch)
            metrics = run_round(self, batch)
        fitting.log(self, metrics)

    def on_train_end(self) -> None:
        """Adds the last seconds to the training time; all processes have all rows again."""
        self.statistics.tick()
        self.states.collect(Processes.of(self.trainer))

    def on_fit_end(self) -> None:
        """Says whether the validation loss still falls, unless the command line does."""
        if self.says_unfinished and (line := unfinished_line(convergence(whole_run(self)[1]))):
            rank_zero_only(print)(line)

    def validation_step(self, batch: Federation, batch_idx: int) -> None:
        """Scores the seen clients on every split; outside of training only on train and val, to keep test unseen."""
        fitting.log(self, scoring.curve_scores(self, batch))

    def test_step(self, batch: Federation, batch_idx: int) -> None:
        """Personalises the unseen clients, scores all clients on every split; fills `clients` and the rest."""
        scoring.test(self, batch)

    def predict_step(self, batch: Federation, batch_idx: int) -> scoring.ClientPredictions:
        """Predictions for the test samples of the scored clients, of this process's share if there are several."""
        return scoring.predict(self, batch)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Adds the statistics and the diagnostics."""
        checkpoints.save(self, checkpoint)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Restores statistics and diagnostics; the run continues to count from there."""
        checkpoints.restore(self, checkpoint)


def _check_class(kind: type) -> None:
    """Raises UserError if a class lacks a hook; a LightningModule is no ABC."""
    for name in dir(kind):
        abstract = getattr(getattr(kind, name), "__isabstractmethod__", False)
        require(not abstract, f"{kind.__name__} does not define {name}, see docs/adding_an_algorithm.md")
