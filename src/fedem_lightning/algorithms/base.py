"""The base class of all federated algorithms, with its options."""

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Self

import pandas as pd
import pytorch_lightning as pl
import torch
from torch import Tensor, nn

from fedem_lightning.adaptation import Adaptation
from fedem_lightning.aggregation import Aggregation, make_aggregation
from fedem_lightning.algorithms.checkpoints import model_of, read_checkpoint
from fedem_lightning.algorithms.checks import check_class
from fedem_lightning.algorithms.client_states import ClientStates, size_as_saved
from fedem_lightning.algorithms.contract import Contract
from fedem_lightning.algorithms.deployment import Deployment
from fedem_lightning.algorithms.lightning_hooks import LightningHooks
from fedem_lightning.algorithms.local_training import LocalTraining
from fedem_lightning.algorithms.prediction import Prediction
from fedem_lightning.algorithms.server_step import ServerStep, make_server_optimizer
from fedem_lightning.compression import Compression
from fedem_lightning.data.federation import Block, Federation
from fedem_lightning.data.schema import Schema
from fedem_lightning.engine import AutoEngine, Engine, make_engine
from fedem_lightning.evaluation.samples import SampleScores
from fedem_lightning.faults import Faults
from fedem_lightning.history import RoundMetrics, RoundObserver, Statistics
from fedem_lightning.local_solver import ClientOptimizer, ClientSGD
from fedem_lightning.models.client_store import ClientStore
from fedem_lightning.models.components import Backbone, make_components, model_state
from fedem_lightning.models.features import users_network
from fedem_lightning.models.frozen import frozen_bytes, trained_parameters
from fedem_lightning.models.personal_models import PersonalModels
from fedem_lightning.network import Network, check_networks
from fedem_lightning.protocol import RemoteClients
from fedem_lightning.records.recipes import Recorded, constructor_arguments, is_plain, plain
from fedem_lightning.settings.check import check_arguments, require_memory
from fedem_lightning.settings.ranges import PositiveInt, Seed, Share, ShareOrNumber

ServerOptimizer = Annotated[
    Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer],
    "a function that makes an optimiser, such as functools.partial(SGD, lr=1.0)",
]
"""Makes the server's optimiser from the shared parameters, e.g. functools.partial(torch.optim.SGD, lr=1.0)."""

LIGHTNINGS_OPTIONS = ("map_location", "hparams_file", "strict", "weights_only")


class FederatedAlgorithm(
    Recorded,
    Contract,
    Prediction,
    LocalTraining,
    ServerStep,
    LightningHooks,
    Deployment,
    ClientStates,
    pl.LightningModule,
):
    """Base of all algorithms: a LightningModule whose epoch is a communication round, with M shared components.

    `Contract` lists the hooks that an algorithm may define, on one page. `Prediction`, `LocalTraining`, `ServerStep`
    and `ClientStates` hold its parts; `LightningHooks` has the hooks that Lightning calls; `Deployment` makes models of
    single clients.

    Args:
        backbone: a function that makes a new network, called for each component; or a network, of which all components
            are copies. Those of a network of this package draw new values, unless you have changed its own.
        n_clients: T of the federation, the unseen clients included.
        n_components: M.
        pretrained: parts of the backbone (`features`, `layer1.0`) that start in all components as in component 0.
        client_optimizer: of the local solver.
        server_optimizer: makes the optimiser that takes the pseudo-gradient, theta - aggregate; None: SGD with lr 1,
            the plain average.
        local_epochs: passes over a client's training samples in a round.
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
        networks: by name; the simulated time of every round is computed in each. One of them may have a deadline.
        seed: of cohorts, shuffling, dropout, and of components 1..M-1.

    Raises:
        UserError: a value is out of its range.

    """

    components: nn.ModuleList
    has_frozen: Tensor  # bool [T], the clients that have received the frozen parameters

    def __init__(
        self,
        backbone: Backbone,
        n_clients: PositiveInt,
        n_components: PositiveInt = 1,
        *,
        pretrained: Sequence[str] | str = (),
        client_optimizer: ClientOptimizer | None = None,
        server_optimizer: ServerOptimizer | None = None,
        local_epochs: PositiveInt = 1,
        local_steps: PositiveInt | None = None,
        batch_size: PositiveInt = 128,
        participation: ShareOrNumber = 1.0,
        scored_clients: ShareOrNumber = 1.0,
        personalize_fraction: Share = 1.0,
        adaptation: Adaptation | None = None,
        engine: Engine | AutoEngine | str = "auto",
        networks: Mapping[str, Network] | None = None,
        aggregation: Aggregation | str | None = None,
        compression: Compression | None = None,
        faults: Faults | None = None,
        seed: Seed = 0,
    ) -> None:
        check_arguments(type(self).__name__, FederatedAlgorithm, locals())  # a subclass may pass on any value
        super().__init__()
        require_memory("n_clients", 4 * n_clients * n_components, f"{n_clients} rows of {n_components} weights")
        self._client_states, self._server_columns = {}, {}
        self.group_state, self.sized_by_data, self.reported = None, set(), set()
        self.client_axes, self.unsent = {}, set()
        check_class(type(self))
        self.automatic_optimization = False
        self.n_clients, self.seed = n_clients, seed
        self.participation, self.scored_clients = participation, scored_clients
        self.local_epochs, self.local_steps, self.batch_size = local_epochs, local_steps, batch_size
        self.adaptation, self.personalize_fraction = adaptation, personalize_fraction
        self.networks = check_networks(networks)
        self.aggregation, self.compression, self.faults = make_aggregation(aggregation), compression, faults
        self.client_optimizer = client_optimizer or ClientSGD()
        self.server_optimizer = server_optimizer or functools.partial(torch.optim.SGD, lr=1.0)
        parts = [pretrained] if isinstance(pretrained, str) else list(pretrained)
        self.components = make_components(backbone, n_components, seed, parts)
        make_server_optimizer(self.server_optimizer, self.components)  # says early what is wrong with it
        none = torch.zeros(n_clients, dtype=torch.bool)
        self.register_buffer("has_frozen", none, persistent=frozen_bytes(self.components[0]) > 0)
        self._engine_choice = make_engine(engine)
        arguments, own = constructor_arguments(self)
        self._saved_arguments = {name: value for name, value in own.items() if is_plain(value)}
        made = {"backbone": users_network(self.components[0]), "client_optimizer": self.client_optimizer}
        made |= {"server_optimizer": self.server_optimizer, "engine": self._engine_choice}
        self.save_hyperparameters(plain({"algorithm": type(self), **arguments, **made}))
        self._engine: Engine | None = None
        self.engine_gave_up = False  # in the process that wrote the checkpoint from which this one goes on
        self.statistics = Statistics()
        self.round_metrics = RoundMetrics()
        self.federation_digest: str | None = None  # digest of the training data
        self._prepared: Federation | None = None
        self.schema: Schema | None = None  # what the model knows of its federation
        self._guest = None
        self.observer = RoundObserver()  # a progress bar replaces it
        self.remote: RemoteClients | None = None  # where clients are not simulated here
        self.deployed_before = False  # whether they were not in the process that wrote the checkpoint
        self.cohort_secret = ""  # of a private mean there: its cohorts are drawn from it; never sent
        self.curves: dict[int, dict[str, float]] = {}  # what each round logged, by its number from 1
        self.clients = pd.DataFrame()  # one row a client, filled by Trainer.test
        self.test_samples: SampleScores | None = None  # the scores of their test samples, also by Trainer.test
        self.class_scores: dict[str, Any] | None = None  # scores of their classes, also by Trainer.test
        self.diagnostics: dict[str, Any] = {}  # findings of methods and callbacks, by name; saved in results.json
        self.kept_momentum = self.momentum_store()  # of local training
        keeps = compression is not None and compression.keeps_error
        self.compression_error = self._zeros_of_clients() if keeps else None  # what clients have not sent yet
        self.register_load_state_dict_pre_hook(size_as_saved)  # type: ignore[no-untyped-call]

    @classmethod
    def load_from_checkpoint(  # type: ignore[override]
        cls, checkpoint_path: str | Path, *_: Any, trust: Sequence[str] = (), **arguments: Any
    ) -> Self:
        """The model of a checkpoint, in eval mode, without pickle.

        Args:
            checkpoint_path: the file.
            trust: packages of yours whose classes the checkpoint may name.
            arguments: of the class; they replace those of the checkpoint. `backbone` is needed for a network that this
                package cannot make again. Lightning's own options (`map_location`, `strict`, `weights_only`) may be
                given, too: the model lies on the CPU, every tensor must fit, and nothing is ever unpickled.

        Raises:
            UserError: the file is not intact, or does not say how to make an argument.

        """
        check_arguments("", cls.load_from_checkpoint, {"checkpoint_path": checkpoint_path, "trust": trust})
        given = {name: value for name, value in arguments.items() if name not in LIGHTNINGS_OPTIONS}
        return model_of(read_checkpoint(Path(checkpoint_path)), cls, trust, given)

    def momentum_store(self) -> ClientStore | None:
        """Room for the momentum that stays with clients, zeros at first; None if it restarts in every round.

        A method whose clients train second models of their own keeps the momentum of those in a store of their own.
        """
        keeps = self.client_optimizer.momentum > 0 and self.client_optimizer.state == "keep"
        return self._zeros_of_clients() if keeps else None

    def _zeros_of_clients(self) -> ClientStore:
        """A row for each client with a zero for every parameter that it trains, [M, ...]."""
        params = trained_parameters(self.components[0])
        zeros = {name: p.new_zeros(self.n_trained_models, *p.shape) for name, p in params.items()}
        return ClientStore(self.n_clients, zeros, momentum=True)

    # --- facts ------------------------------------------------------------------------------------------------------

    @property
    def engine(self) -> Engine:
        """The engine that runs the local steps; `auto` is resolved at first use, when the device is known."""
        return self._engine or self.resolve_engine(self.device)

    def resolve_engine(self, device: torch.device) -> Engine:
        """The engine that will run on `device`."""
        self._engine = self._engine_choice.resolve(self.components[0], device)
        return self._engine

    @property
    def message_bytes(self) -> int:
        """Bytes of one model, the user's network without its frozen parameters: the unit of `transmission`."""
        model = model_state(users_network(self.components[0]))
        return sum(tensor.numel() * tensor.element_size() for tensor in model.values())

    @property
    def parameter_dtype(self) -> torch.dtype:
        """The dtype to which features are cast."""
        return next(self.components.parameters()).dtype

    @property
    def known_pi(self) -> Tensor | None:
        """The mixture weights [T, M] of a method that has `pi`; None also where they are with clients elsewhere."""
        return None if self.is_deployed else getattr(self, "pi", None)

    @property
    def is_adapted(self) -> bool:
        """Whether clients adapt their models before they are scored."""
        return self.adaptation is not None

    @property
    def scored_columns(self) -> tuple[str, ...]:
        """Names of the columns that scored models bring to the clients' table. Default: those of the adaptation."""
        return () if self.adaptation is None else self.adaptation.columns

    def scored_models(self, block: Block) -> PersonalModels:
        """The models with which the block's clients are scored: their personal models after the adaptation."""
        if self.adaptation is None:
            return self.personal_models(block.clients)
        return self.adaptation.adapt(self, block)
