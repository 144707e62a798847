"""A federated method: six hooks, and what they can use. `module/` runs them as Lightning's steps.

Shapes: T clients, C clients of a batch, M components, n samples. `Models` are {name: [C, M, ...]}.
"""

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd
import pytorch_lightning as pl
import torch
from torch import Tensor, nn

from fedem_lightning.aggregate import Aggregation, Means, Models, Update
from fedem_lightning.aggregate.compression import Compression
from fedem_lightning.aggregate.faults import Faults
from fedem_lightning.data.federation import Block, Federation
from fedem_lightning.data.schema import Schema
from fedem_lightning.local.server_step import Server
from fedem_lightning.local.training import LocalTraining
from fedem_lightning.models.client_store import ClientStore, HeldBy
from fedem_lightning.models.components import stacked_state, start_equal
from fedem_lightning.models.personal_models import OwnModels, PersonalModels, SharedModels, broadcast, component_losses
from fedem_lightning.models.tensors import trained_parameters
from fedem_lightning.settings.errors import require
from fedem_lightning.state.history import Round, RoundMetrics, Statistics
from fedem_lightning.state.network import ShiftedExponentialNetwork, Transmission
from fedem_lightning.state.per_client import Columns, PerClient, States


class Parts(pl.LightningModule):
    """The attributes of a method."""

    components: nn.ModuleList  # the M networks of the server
    local: LocalTraining
    server: Server
    states: States
    statistics: Statistics
    round_metrics: RoundMetrics
    traffic: Transmission | None  # of the round, where a method says it; None: its updates tell
    n_clients: int
    seed: int
    participation: float | int
    scored_clients: float | int
    personalize_fraction: float
    global_samples: int  # test samples of all clients on which each client's model is scored, too; 0: none
    samples_by_size: bool  # whether a cohort is drawn with probabilities proportional to the clients' samples
    adaptation: Any
    aggregation: Aggregation
    compression: Compression | None
    compression_error: ClientStore | None
    faults: Faults | None
    networks: Mapping[str, ShiftedExponentialNetwork]  # by name, in each of which rounds take simulated time
    remote: Any  # where clients are not simulated here; None: they are
    is_deployed: bool  # whether clients are processes of their own, or were when the checkpoint was written
    cohort_secret: str  # of a private mean there: its cohorts are drawn from it; never sent
    has_frozen: Tensor  # bool [T]: who has the frozen parameters
    schema: Schema | None  # what the model knows of its federation
    federation_digest: str | None  # of the training data
    curves: dict[int, dict[str, float]]  # what each round logged, by its number; 0: before the first
    past: Any  # before `BestRound` went back; see `whole_run`
    clients: pd.DataFrame  # one row a client, filled by Trainer.test
    tested: Any  # ClientTable of the newest test: the scores of samples and classes
    diagnostics: dict[str, Any]  # findings of methods and callbacks, by name; saved in results.json
    made_with: dict[str, Any]
    says_unfinished: bool  # at the end of a fit
    _prepared: Federation | None
    _trained: Any  # a TrainedModel, until the next round

    def __setattr__(self, name: str, value: Any) -> None:
        """Declares a tensor of the clients that a method assigns; see `per_client`."""
        if isinstance(value, PerClient):
            self.states.declared[name] = value
            self.register_buffer(name, value.tensor)
        else:
            super().__setattr__(name, value)

    def register_buffer(self, name: str, tensor: Tensor | None, persistent: bool = True) -> None:
        """Makes a buffer; an empty one takes its size from the data, or from a checkpoint."""
        super().register_buffer(name, tensor, persistent)
        if tensor is not None and not tensor.numel():
            self.states.sized_by_data.add(name)

    @property
    def own_parameters(self) -> tuple[str, ...]:
        """Names of a model's tensors of which each client has values of its own, once the model has seen its data."""
        stores = self.states.stores()
        return tuple(name for kept in ("own", "models") if kept in stores for name in stores[kept].names)

    @property
    def parameter_dtype(self) -> torch.dtype:
        """The dtype to which features are cast."""
        return next(self.components.parameters()).dtype


class Method(Parts):
    """The hooks of a method, and what they use; `FederatedAlgorithm` adds a constructor and Lightning's steps."""

    private_ok = False
    """Whether clients reveal nothing but the mean of their updates, to which `aggregation=private` adds noise.

    It is False where `initialize`, `prepare` or `server_update` read clients' samples, or how many they have."""
    needs_sgd = False
    """Whether the equations are those of gradient steps, which an adaptive client optimiser would change."""
    sends_models = True
    """Whether clients send models to a server that averages them."""
    personalizes_seen = False
    """Whether the clients that train are personalised again with the newest models, before every scoring."""
    one_process = False
    """Whether the server reads what clients keep, so that they cannot be processes of their own (Flower)."""

    # --- hooks ------------------------------------------------------------------------------------------------------

    @abstractmethod
    def client_update(self, batch: Block, round_: int) -> Update | None:
        """The clients' part of a round (from 0): C clients and their n training samples -> what they send, or nothing.

        `Update(models, weights, start=received)`: models [C, M, ...], each client's weight in the average [C], and the
        models that it received, from which compression, clipping and faults measure the update.
        """

    def server_update(self, means: Means | None, round_: Round) -> None:
        """The server's part, after the averages (None: no client sent a model).

        Default: theta <- server optimiser(theta, theta - mean); buffers become their mean (FedAvg, Reddi et al. 2021).
        """
        if means is not None:
            self.server.take_means(means)

    def personal_models(self, clients: Tensor) -> PersonalModels:
        """The models with which clients [C] predict, and their mixture weights (FedEM, Eq. 5).

        Default: the newest components, with equal weights. `own_models` is for models of the clients' own.
        """
        n_models = len(self.components)
        equal = torch.full((len(clients), n_models), 1 / n_models, dtype=self.parameter_dtype, device=clients.device)
        return SharedModels(self.components, equal)

    def personalize_clients(self, data: Federation, clients: Tensor) -> None:
        """Gives clients [C] their state from their training samples; a second call starts anew. Default: none.

        It is called for the unseen clients before each test, and for all where `personalizes_seen`.
        """

    def initialize(self, data: Federation) -> None:
        """Sets up state before the first round; a resumed run skips it. Default: refuses components that are equal."""
        message = f"all components start as copies of one network, and {type(self).__name__} would keep them equal"
        way = "give a function in place of the network, which draws new values in every call"
        require(not start_equal(self.components), f"backbone: {message}; {way}")

    def prepare(self, data: Federation) -> None:
        """Reads what the method needs to know of the data, before rounds or scores; it may be called several times.

        UserError: the method is not defined for these data.
        """

    # --- what hooks use ---------------------------------------------------------------------------------------------

    def per_client(
        self, start: nn.ModuleList | Models | Tensor, column: Columns = None, held_by: HeldBy = "client"
    ) -> Any:
        """State of each client, to be assigned to an attribute: `self.v = self.per_client(self.components)`.

        It is read as `self.v[clients]`, written as `self.v[clients] = rows`, saved, restored and exchanged between
        processes; rows that are not finite are put back after `client_update`.

        Args:
            start: the components, of which each client has a copy, rows [M, ...]; or a client's row by name, [...]; or
                all rows as one tensor [T, ...], which becomes a buffer. An empty one takes its size from the data.
            column: of the clients' table, for a tensor: "alpha" for [T], "pi_{m}" for [T, M]; or a function.
            held_by: see `HeldBy`.

        """
        if isinstance(start, Tensor):
            return PerClient(start, column, held_by)
        if isinstance(start, nn.ModuleList):
            start = stacked_state(start)
        return ClientStore(self.n_clients, start, held_by)

    def received(self, clients: Tensor, n: int | None = None) -> Models:
        """The first n components (None: all M) as each of the clients [C] receives them: views [C, n, ...]."""
        return broadcast(self.components[:n], len(clients))

    def local_sgd(
        self, models: Models, batch: Block, round_: int, weights: Tensor | None = None, **options: Any
    ) -> Models:
        """The models [C, M, ...] after the clients' local steps; `weights` [n, M] are of the samples in each loss.

        Options: `step` (`near(w, mu)`, or another `Step`), `epochs`, `steps`, `only` (names of the parameters that
        train), `state` (from `optimizer_state`; None: a fresh one); see `LocalTraining.sgd`.
        """
        return self.local.sgd(models, batch, round_, weights, **options)

    def optimizer_state(self) -> ClientStore | None:
        """Room for the client optimiser's state of second models that clients train; None if it restarts each round."""
        return self.local.optimizer_state()

    def batches(self, data: Federation, clients: Tensor) -> Iterator[Block]:
        """The training samples of clients [C], so many clients at a time as the engine trains together."""
        return self.local.blocks(data, clients)

    def losses(self, batch: Block, n: int | None = None) -> Tensor:
        """l(h_m(x_i), y_i) of the first n components (None: all M) in nats, in eval mode: [n_samples, n]."""
        return component_losses(self.components[:n], batch)

    def own_models(self, models: Models, mixture: Tensor | None = None) -> OwnModels:
        """Personal models that C clients do not share: models [C, M, ...], mixture [C, M] (None: equal weights)."""
        if mixture is None:
            some = next(iter(models.values()))
            mixture = some.new_full(some.shape[:2], 1 / some.shape[1], dtype=self.parameter_dtype)
        return OwnModels(self.components[0], models, mixture)

    def params_of(self, models: Models) -> Models:
        """The parameters of `models` that train, without buffers."""
        return {name: models[name] for name in trained_parameters(self.components[0])}

    def measure(self, name: str, values: Tensor) -> None:
        """Adds values of any shape to the round's mean called `name`, a column of metrics.csv."""
        self.round_metrics.add(name, values)
