"""What all federated algorithms share: a LightningModule whose epoch is a communication round."""

import functools
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import pytorch_lightning as pl
import torch
from torch import Tensor, nn

from fedem_lightning.adaptation import Adaptation
from fedem_lightning.aggregation import Means, Models, Sent
from fedem_lightning.algorithms import predicting, solving
from fedem_lightning.algorithms.checks import check_capabilities, check_class, check_options, check_share
from fedem_lightning.client_store import ClientStore
from fedem_lightning.components import Backbone, channels_last, make_components, model_state
from fedem_lightning.data.federation import Block, Federation
from fedem_lightning.data.splits import SPLITS
from fedem_lightning.engine import AutoEngine, Engine, make_engine
from fedem_lightning.errors import require
from fedem_lightning.evaluation import client_table, curve_metrics, final_metrics, scored_clients
from fedem_lightning.frozen import frozen_bytes, trained_parameters
from fedem_lightning.hyperparameters import constructor_arguments, is_plain, plain
from fedem_lightning.local_solver import ClientSGD
from fedem_lightning.network import Network, check_networks
from fedem_lightning.processes import Processes
from fedem_lightning.round import Round, RoundMetrics, RoundObserver, Statistics, run_round, sample_cohort
from fedem_lightning.trainer_options import check_trainer

ServerOptimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
"""Makes the server's optimiser from the shared parameters, e.g. functools.partial(torch.optim.SGD, lr=1.0)."""


class FederatedAlgorithm(pl.LightningModule):
    """Base of all algorithms: M shared components, clients' state, local solver, evaluation.

    An algorithm says what a client does with a block (`client_update`), with which models it predicts (`serving`,
    `mixture`), what an unseen client does first (`personalize`), how many models travel (`messages`) and what it is
    not defined for (`samples_clients`, `serves_unseen`, `check_federation`). `run_round` does the rest.

    Args:
        backbone: an `nn.Module` (component 0; the others are re-initialised copies) or a function that makes one.
        n_clients: T of the federation, the unseen clients included.
        n_components: M.
        pretrained: parts of the backbone (`features`, `layer1.0`) that start in all components as in component 0.
        client_optimizer: of the local solver.
        server_optimizer: makes the optimiser that takes the pseudo-gradient, theta - aggregate; None: SGD with lr 1,
            the plain average.
        local_epochs: passes over a client's training samples in a round.
        local_steps: J, so many local steps of every client instead; None: `local_epochs`.
        batch_size: B.
        participation: up to 1: the fraction of the clients in a round's cohort; from 2 on: their number.
        scored_clients: up to 1: the fraction of the clients that evaluation scores; from 2 on: their number at most.
        personalize_fraction: share of an unseen client's training samples that it may use, in [0, 1] (FedEM, Fig. 2).
        adaptation: what a client does with its models before it is scored; None: nothing.
        engine: "auto", "loop", "vmap", or an Engine.
        networks: in which the rounds are timed beside training, by name; one of them may have a deadline.
        seed: of cohorts, shuffling, dropout, and of components 1..M-1.

    Raises:
        UserError: a value out of its range.

    """

    components: nn.ModuleList
    has_frozen: Tensor  # bool [T], who has received what does not train

    def __init__(
        self,
        backbone: Backbone,
        n_clients: int,
        n_components: int = 1,
        *,
        pretrained: Sequence[str] | str = (),
        client_optimizer: ClientSGD | None = None,
        server_optimizer: ServerOptimizer | None = None,
        local_epochs: int = 1,
        local_steps: int | None = None,
        batch_size: int = 128,
        participation: float | int = 1.0,
        scored_clients: float | int = 1.0,
        personalize_fraction: float = 1.0,
        adaptation: Adaptation | None = None,
        engine: Engine | AutoEngine | str = "auto",
        networks: Mapping[str, Network] | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__()
        check_class(type(self))
        check_options(n_clients, local_epochs, local_steps, batch_size, participation, scored_clients, seed)
        check_share("personalize_fraction", personalize_fraction)
        self.automatic_optimization = False
        self.n_clients, self.seed = n_clients, seed
        self.participation, self.scored_clients = participation, scored_clients
        self.local_epochs, self.local_steps, self.batch_size = local_epochs, local_steps, batch_size
        self.adaptation, self.personalize_fraction = adaptation, personalize_fraction
        self.networks = check_networks(networks)
        self.client_optimizer = client_optimizer or ClientSGD()
        self.server_optimizer = server_optimizer or functools.partial(torch.optim.SGD, lr=1.0)
        parts = [pretrained] if isinstance(pretrained, str) else list(pretrained)
        self.components = make_components(backbone, n_components, seed, parts)
        none = torch.zeros(n_clients, dtype=torch.bool)
        self.register_buffer("has_frozen", none, persistent=frozen_bytes(self.components[0]) > 0)
        self._engine_choice = make_engine(engine)
        arguments, own = constructor_arguments(self)
        self._saved_arguments = {name: value for name, value in own.items() if is_plain(value)}
        made = {"backbone": self.components[0], "client_optimizer": self.client_optimizer}
        made |= {"server_optimizer": self.server_optimizer, "engine": self._engine_choice}
        self.save_hyperparameters(plain({"algorithm": type(self), **arguments, **made}))
        self._engine: Engine | None = None
        self.statistics = Statistics()
        self.round_metrics = RoundMetrics()
        self.federation_digest: str | None = None  # of the data trained on
        self._checked: Federation | None = None
        self.observer = RoundObserver()  # a progress bar puts itself here
        self.clients = pd.DataFrame()  # one row a client, filled by Trainer.test
        self.diagnostics: dict[str, Any] = {}  # what callbacks found out, by name; kept in results.json
        if self.client_optimizer.momentum and self.client_optimizer.state == "keep":
            params = trained_parameters(self.components[0])
            n_trained = self.trained_models or n_components
            zeros = {name: p.new_zeros(n_trained, *p.shape) for name, p in params.items()}
            self.kept_momentum = ClientStore(n_clients, zeros)  # rows [M, ...]
        self.register_load_state_dict_pre_hook(_size_as_saved)

    # --- what an algorithm says -------------------------------------------------------------------------------------

    samples_clients = True  # whether a round may leave clients out
    uses_server_optimizer = True  # whether what clients serve goes through it; else it has to be the plain average
    serves_unseen = True  # whether clients that did not train get a model
    personalizes_seen = False  # whether the others too personalise anew, with the newest models, when they are scored
    shares_models = True  # whether all clients serve the components, each with its own mixture of them
    trained_models: int | None = None  # by a client in a round; None: M
    n_groups = 1  # averages that the server takes in a round
    sized_by_data: tuple[str, ...] = ()  # buffers whose shapes are known from the first round on only

    @abstractmethod
    def client_update(self, block: Block, round_: int) -> Sent | None:
        """What the block's clients do in round `round_` (from 0); returns what they send, or None."""

    def server_update(self, means: Means | None, round_: Round) -> None:
        """Theta <- server optimiser(theta, theta - mean); buffers become their mean. None: nobody sent anything."""
        if means is None:
            return self.server_step(None)
        return self.take_means(means)

    @property
    def served_components(self) -> nn.ModuleList:
        """What clients predict with if `shares_models`. Default: the newest components."""
        return self.components

    def serving(self, clients: Tensor) -> Models:
        """The M models each client predicts with, [C, M, ...]. Default: the served components, for everybody."""
        return self.broadcast(clients, self.served_components)

    def mixture(self, clients: Tensor) -> Tensor:
        """The weights of these models in a client's prediction (Eq. 5), [C, M]; rows sum to 1. Default: equal."""
        n_models = len(self.components)
        return torch.full((len(clients), n_models), 1 / n_models, dtype=self.parameter_dtype, device=clients.device)

    def sample_weights(self, block: Block) -> Tensor | None:
        """Of the samples in each model's loss when clients tune their models, [n, M]; None: 1."""
        return None

    def groups_of(self, clients: Tensor) -> Tensor:
        """Clients [C] that count as one population, for Dapper: numbers, int64 [C]. Default: all do."""
        return torch.zeros_like(clients)

    def personalize(self, federation: Federation, clients: Tensor) -> None:
        """Gives clients (int64 [C]) their private state from their training samples. Default: they have none.

        For the unseen clients before the test; for the others before every scoring if `personalizes_seen`.
        """

    @property
    def messages(self) -> tuple[float, float]:
        """Models sent down and up for each client of a cohort, on average."""
        return len(self.components), len(self.components)

    @property
    def uploads(self) -> float:
        """Models that each client of a cohort puts on the air. Default: those it sends up."""
        return self.messages[1]

    @property
    def streams(self) -> float:
        """Distinct models that the server puts on the air; what several clients hear at once counts once.

        Default: what one client receives, for all. More than the clients receive together counts as that number.
        """
        return self.messages[0]

    def stream_of(self, clients: Tensor) -> Tensor | None:
        """The stream that each of the clients [C] listens to, int64 [C]; None: all listen to all of them."""
        return None

    def local_work(self, federation: Federation, clients: Tensor, round_: int) -> Tensor:
        """Gradients of single samples that each of the clients [C] computes in a round; forward passes do not count.

        Default: one for each visit of a sample and each model trained, int64 [C].
        """
        counts = federation.splits["train"].counts(clients)
        steps, batch = self.local_steps, self.batch_size
        visits = self.local_epochs * counts if steps is None else steps * counts.clamp(max=batch)
        return visits * (self.trained_models or len(self.components))

    def cohort(self, federation: Federation, round_: int) -> Tensor:
        """The clients of a round, int64, ascending. Default: drawn uniformly."""
        return sample_cohort(federation.clients(), self.participation, self.seed, round_)

    def check_federation(self, federation: Federation) -> None:
        """Raises UserError where the method is not defined for this federation."""
        check_capabilities(self, federation)

    def client_state(self) -> Iterator[Tensor]:
        """Every tensor [T, ...] whose rows belong to clients."""
        for store in self.client_stores().values():
            yield from store.tensors()

    def client_stores(self) -> dict[str, ClientStore]:
        """What each client keeps of its own beyond a few numbers, by name."""
        return {name: module for name, module in self.named_modules() if isinstance(module, ClientStore)}

    def initialize(self, federation: Federation) -> None:
        """Before the first round, with the data at hand. Default: nothing."""

    def kept_momenta(self) -> list[ClientStore]:
        """Momentum that stays with clients, if any does."""
        return [store for name, store in self.client_stores().items() if name.endswith("momentum")]

    def client_columns(self) -> dict[str, np.ndarray]:
        """Private state worth a column in the clients' table, each [T]."""
        return {}

    # --- what algorithms are made of --------------------------------------------------------------------------------

    predict, outputs, broadcast = predicting.predict, predicting.outputs, predicting.broadcast
    losses, mean_losses = predicting.losses, predicting.mean_losses
    local_solver, solve, local_step = solving.local_solver, solving.solve, solving.local_step
    take_means, pseudo_gradient, server_step = solving.take_means, solving.pseudo_gradient, solving.server_step

    def mean_models(self, federation: Federation) -> Models:
        """The M models that stand for the federation, [M, ...]. Default: those served by everybody."""
        return {name: tensor[0] for name, tensor in self.serving(federation.clients()[:1]).items()}

    def params_of(self, models: Models) -> Models:
        """Those that train, without buffers."""
        return {name: models[name] for name in trained_parameters(self.components[0])}

    def blocks(self, federation: Federation, clients: Tensor) -> Iterator[Block]:
        """Cuts `clients` into blocks of training samples that fit the engine's memory."""
        learner_bytes = (self.trained_models or len(self.components)) * self.message_bytes
        return self.engine.blocks(federation, clients, learner_bytes, self.batch_size)

    # --- facts ------------------------------------------------------------------------------------------------------

    @property
    def engine(self) -> Engine:
        """The engine that runs; `auto` is decided at first use, when the device is known."""
        return self._engine or self.resolve_engine(self.device)

    def resolve_engine(self, device: torch.device) -> Engine:
        """The engine that will run on `device`."""
        self._engine = self._engine_choice.resolve(self.components[0], device)
        return self._engine

    @property
    def message_bytes(self) -> int:
        """Bytes of one model as it is sent, without what is frozen."""
        return sum(tensor.numel() * tensor.element_size() for tensor in model_state(self.components[0]).values())

    @property
    def parameter_dtype(self) -> torch.dtype:
        """The dtype features are cast to."""
        return next(self.components.parameters()).dtype

    def lr_at(self, round_: int) -> float:
        """The clients' learning rate in a round (from 0)."""
        return self.client_optimizer.lr_at(round_, self.statistics.planned_rounds)

    # --- Lightning's hooks ------------------------------------------------------------------------------------------

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """The server optimiser."""
        return self.server_optimizer(self.components.parameters())

    def setup(self, stage: str) -> None:
        """Keeps DDP from copying all buffers before every round: the round itself exchanges what changed."""
        self._ddp_params_and_buffers_to_ignore = [name for name, _ in self.named_buffers()]

    def configure_callbacks(self) -> list[pl.Callback]:
        """Adds none. Lightning calls this hook before all others, so the Trainer's options are checked here."""
        check_trainer(self.trainer, self.client_optimizer.schedule)
        return []

    def on_fit_start(self) -> None:
        """Checks the precision, and plans the rounds."""
        scaled = getattr(self.trainer.precision_plugin, "scaler", None) is not None
        require(not scaled, "trainer.precision: expected 32-true, 64-true or bf16-mixed, got 16-mixed")
        if self.device.type == "cpu":
            for parameter in self.components.parameters():
                parameter.data = channels_last(parameter) if parameter.ndim == 4 else parameter.data
        self.resolve_engine(self.device)  # copies the networks, which must come before a profiler adds hooks
        self.statistics.plan(self.trainer.max_epochs or 0)

    @torch.no_grad()
    def training_step(self, batch: Federation, batch_idx: int) -> None:
        """One communication round; it steps the server optimiser once."""
        self._begin(batch)
        self._log(run_round(self, batch))

    def validation_step(self, batch: Federation, batch_idx: int) -> None:
        """Scores the seen clients on every split; outside of training, what the test is for stays unseen."""
        self.check_federation(batch)
        if self.personalizes_seen:
            self._personalize(batch, scored_clients(self, batch))
        self._log(curve_metrics(self, batch, SPLITS if self.trainer.state.fn == "fit" else ("train", "val")))

    def test_step(self, batch: Federation, batch_idx: int) -> None:
        """Personalises the unseen clients, scores everybody on every split, and fills `clients`."""
        self.check_federation(batch)
        part, unseen = self.personalize_fraction, scored_clients(self, batch, seen=False)
        own_data = batch if part == 1 else batch.with_part(batch.clients(seen=False), part, self.seed)
        if self.personalizes_seen:  # an adaptation may ask who is like whom
            self._personalize(batch, scored_clients(self, batch) if self.adaptation is None else batch.clients())
        for kept in self.kept_momenta():
            kept.written[unseen] = False  # an earlier test may have left some
        self._personalize(own_data, unseen)
        self.clients = client_table(self, batch, own_data)
        self._log(final_metrics(self.clients))

    def on_train_end(self) -> None:
        """Stops the clock."""
        self.statistics.tick()

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Adds the statistics and what was found out."""
        self.statistics.tick()
        checkpoint["statistics"], checkpoint["diagnostics"] = self.statistics.state_dict(), self.diagnostics
        checkpoint["federation"] = self.federation_digest
        checkpoint[self.CHECKPOINT_HYPER_PARAMS_KEY] = self._saved_arguments  # what load_from_checkpoint may hand over

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Counts on from the statistics."""
        self.statistics = self.statistics.count_on(checkpoint["statistics"])
        self.federation_digest = checkpoint["federation"]
        self.diagnostics = checkpoint.get("diagnostics", {})  # older checkpoints have none
        saved = checkpoint["state_dict"]
        # Lightning loads the tensors before `trainer.precision=64-true` makes the model double: bits would be lost
        self.to(next(saved[name].dtype for name, _ in self.components.named_parameters(prefix="components")))

    def _begin(self, federation: Federation) -> None:
        if federation is self._checked:
            return
        self.check_federation(federation)
        digest = federation.digest()
        require(
            self.federation_digest in (None, digest),
            "ckpt_path: the checkpoint was trained on another federation (other data, partition, split or seed)",
        )
        self.federation_digest, self._checked = digest, federation

    def _personalize(self, federation: Federation, clients: Tensor) -> None:
        """Each process does its share; all learn what came of it."""
        if not len(clients):
            return
        processes = Processes.of(self.trainer)
        shares = [clients[rank :: processes.size] for rank in range(processes.size)]
        with torch.inference_mode(False), torch.no_grad():
            if len(mine := shares[processes.rank]):
                self.observer.begin("personalizing", len(mine))
                self.personalize(federation, mine)
            processes.exchange_rows(self.client_state(), shares)

    def _log(self, metrics: dict[str, float]) -> None:
        if self.trainer.state.fn == "fit":  # the metric called "step" is the loggers' x-axis: rounds
            metrics = metrics | {"step": float(self.current_epoch + 1)}
        several = self.trainer.world_size > 1
        self.log_dict(metrics, on_step=False, on_epoch=True, batch_size=1, sync_dist=several)


def _size_as_saved(model: FederatedAlgorithm, state: dict[str, Tensor], prefix: str, *_: Any) -> None:
    for name in model.sized_by_data:
        if prefix + name in state:
            setattr(model, name, getattr(model, name).new_zeros(state[prefix + name].shape))
