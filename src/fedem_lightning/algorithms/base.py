"""What all federated algorithms share: a LightningModule whose epoch is a communication round."""

import functools
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import pandas as pd
import pytorch_lightning as pl
import torch
from torch import Tensor, nn

from fedem_lightning.aggregation import Models, all_finite
from fedem_lightning.client_store import ClientStore
from fedem_lightning.components import Backbone, channels_last, make_components, model_state
from fedem_lightning.data.federation import Block, Federation
from fedem_lightning.engine import AutoEngine, Engine, make_engine
from fedem_lightning.errors import require, require_number, require_whole
from fedem_lightning.evaluation import client_table, curve_metrics, scored_clients
from fedem_lightning.local_solver import ClientSGD, LocalStep, shuffled_batches
from fedem_lightning.processes import Processes, require_ddp
from fedem_lightning.round import RoundMetrics, RoundObserver, Statistics, run_round

ServerOptimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
"""Makes the server's optimiser from the shared parameters, e.g. functools.partial(torch.optim.SGD, lr=1.0)."""


class FederatedAlgorithm(pl.LightningModule):
    """Base of all algorithms: M shared components, clients' state, local solver, evaluation.

    An algorithm says what a client does with a block (`client_update`), how a client predicts (`predict`), what an
    unseen client does first (`personalize`) and how many models travel (`messages`). `run_round` does the rest.

    Args:
        backbone: an `nn.Module` (component 0; the others are re-initialised copies) or a function that makes one.
        n_clients: T of the federation, the unseen clients included.
        n_components: M.
        client_optimizer: of the local solver.
        server_optimizer: makes the optimiser that takes the pseudo-gradient, theta - aggregate; None: SGD with lr 1,
            the plain average.
        local_epochs: passes over a client's training samples in a round.
        batch_size: B.
        participation: up to 1: the fraction of the clients in a round's cohort; from 2 on: their number.
        scored_clients: up to 1: the fraction of the clients that evaluation scores; from 2 on: their number at most.
        engine: "auto", "loop", "vmap", or an Engine.
        seed: of cohorts, shuffling, dropout, and of components 1..M-1.

    Raises:
        UserError: a value out of its range.

    """

    components: nn.ModuleList

    def __init__(
        self,
        backbone: Backbone,
        n_clients: int,
        n_components: int = 1,
        *,
        client_optimizer: ClientSGD | None = None,
        server_optimizer: ServerOptimizer | None = None,
        local_epochs: int = 1,
        batch_size: int = 128,
        participation: float | int = 1.0,
        scored_clients: float | int = 1.0,
        engine: Engine | AutoEngine | str = "auto",
        seed: int = 0,
    ) -> None:
        super().__init__()
        require_whole("n_clients", n_clients, at_least=1)
        require_whole("algorithm.local_epochs", local_epochs, at_least=1)
        require_whole("algorithm.batch_size", batch_size, at_least=1)
        for key, share in (("participation", participation), ("scored_clients", scored_clients)):
            require_number(f"algorithm.{key}", share, above=0)
            require(
                share <= 1 or share == int(share),
                f"algorithm.{key}: expected a fraction up to 1 or a number of clients from 2 on, got {share}",
            )
        require_whole("seed", seed, at_least=0, below=2**32)
        self.save_hyperparameters(
            {
                "n_clients": n_clients,
                "n_components": n_components,
                "local_epochs": local_epochs,
                "batch_size": batch_size,
                "participation": participation,
                "scored_clients": scored_clients,
                "seed": seed,
            }
        )
        self.automatic_optimization = False
        self.n_clients, self.seed = n_clients, seed
        self.participation, self.scored_clients = participation, scored_clients
        self.local_epochs, self.batch_size = local_epochs, batch_size
        self.client_optimizer = client_optimizer or ClientSGD()
        self.server_optimizer = server_optimizer or functools.partial(torch.optim.SGD, lr=1.0)
        self.components = make_components(backbone, n_components, seed)
        self._engine_choice = make_engine(engine)
        self._engine: Engine | None = None
        self.statistics = Statistics()
        self.round_metrics = RoundMetrics()
        self.federation_digest: str | None = None  # of the data trained on
        self._checked: Federation | None = None
        self.observer = RoundObserver()  # a progress bar puts itself here
        self.clients = pd.DataFrame()  # one row a client, filled by Trainer.test
        if self.client_optimizer.momentum and self.client_optimizer.state == "keep":
            params = dict(self.components[0].named_parameters())
            zeros = {name: p.new_zeros(n_components, *p.shape) for name, p in params.items()}
            self.kept_momentum = ClientStore(n_clients, zeros)  # rows [M, ...]

    # --- what an algorithm says -------------------------------------------------------------------------------------

    @abstractmethod
    def client_update(self, block: Block, round_: int) -> Models | None:
        """What the block's clients do in a round; returns models [C, M, ...] for the server's average, or None."""

    def predict(self, block: Block) -> Tensor:
        """The clients' personal predictions for their samples, as `Task.predict` gives them. Default: component 0's."""
        return block.federation.task.predict(self.outputs(block)[0])

    def personalize(self, federation: Federation, clients: Tensor) -> None:
        """Gives unseen clients (int64 [C]) their private state from their training samples. Default: they have none."""

    @property
    def messages(self) -> tuple[int, int]:
        """Models sent down and up for each client of a cohort."""
        return len(self.components), len(self.components)

    def client_state(self) -> Iterator[Tensor]:
        """Every tensor [T, ...] whose rows belong to clients."""
        for store in self.client_stores().values():
            yield from store.tensors()

    def client_stores(self) -> dict[str, ClientStore]:
        """What each client keeps of its own beyond a few numbers, by name."""
        return {name: module for name, module in self.named_modules() if isinstance(module, ClientStore)}

    def client_columns(self) -> dict[str, np.ndarray]:
        """Private state worth a column in the clients' table, each [T]."""
        return {}

    # --- what algorithms are made of --------------------------------------------------------------------------------

    @torch.no_grad()
    def outputs(self, block: Block) -> list[Tensor]:
        """Every component's outputs for the block's samples, in eval mode: M x [n, n_outputs]."""
        self.components.eval()
        x = block.x(self.parameter_dtype)
        return [component(x) for component in self.components]

    def losses(self, block: Block) -> Tensor:
        """l(h_m(x_i), y_i) of every component in nats, in eval mode: [n, M]. Shared components need no stacking."""
        task = block.federation.task
        pieces = []
        for piece in block.pieces():
            y = piece.y()
            pieces.append(torch.stack([task.losses(outputs, y) for outputs in self.outputs(piece)]))  # [M, piece]
        return torch.cat(pieces, dim=1).T

    def broadcast(self, block: Block) -> Models:
        """The shared components as each client of the block receives them: views [C, M, ...]."""
        states = [model_state(component) for component in self.components]
        stacked = {name: torch.stack([state[name] for state in states]) for name in states[0]}  # [M, ...]
        return {name: tensor.expand(len(block.clients), *tensor.shape) for name, tensor in stacked.items()}

    def local_solver(self, models: Models, block: Block, round_: int, weights: Tensor | None = None) -> Models:
        """`local_epochs` passes of weighted SGD over each client's training samples (Alg. 2, LocalSolver).

        Args:
            models: where each client starts, [C, M, ...].
            block: the clients and their samples.
            round_: number of the round, from 0; it sets shuffling and learning rate.
            weights: of the samples in each model's loss, [n, M]; None: 1.

        Returns:
            The models after the local steps, [C, M, ...].

        """
        backbone = self.components[0].train()
        clients, params = block.clients, [name for name, _ in backbone.named_parameters()]
        kept = self.kept_momentum.read(clients) if hasattr(self, "kept_momentum") else None
        restart = {name: torch.zeros_like(models[name]) for name in params if self.client_optimizer.momentum}
        learners = {
            "params": {name: models[name] for name in params},
            "buffers": {name: tensor for name, tensor in models.items() if name not in params},
            "momentum": restart if kept is None else kept,
        }
        batches = shuffled_batches(block, self.batch_size, self.local_epochs, self.seed, round_)
        step = LocalStep(backbone, block.federation.task, self.client_optimizer, self.lr_at(round_))
        trained = self.engine.run(step, learners, block, batches, weights, self.observer.clients_done)
        if kept is not None:
            finite = all_finite(trained["momentum"])  # a client that diverged once starts again from what it had
            self.kept_momentum.write(clients[finite], {name: t[finite] for name, t in trained["momentum"].items()})
        return trained["params"] | trained["buffers"]

    def server_update(self, mean: Models | None) -> None:
        """Theta <- server optimiser(theta, theta - mean); buffers become their mean. None: counts the round only."""
        for m, component in enumerate(self.components):
            for name, parameter in component.named_parameters():
                parameter.grad = None if mean is None else parameter.detach() - mean[name][m]
            for name, buffer in component.named_buffers():
                if mean is not None and name in mean:
                    buffer.copy_(mean[name][m])
        optimizer = self.optimizers()
        assert not isinstance(optimizer, list)  # configure_optimizers gives one
        optimizer.step()

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
        """Bytes of one model as it is sent."""
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

    def on_fit_start(self) -> None:
        """Checks what only the Trainer knows."""
        require_ddp(self.trainer)
        if self.device.type == "cpu":
            for parameter in self.components.parameters():
                parameter.data = channels_last(parameter) if parameter.ndim == 4 else parameter.data
        self.statistics.plan(self.trainer.max_epochs or 0)

    @torch.no_grad()
    def training_step(self, batch: Federation, batch_idx: int) -> None:
        """One communication round; it steps the server optimiser once."""
        self._check(batch)
        self._log(run_round(self, batch))

    def validation_step(self, batch: Federation, batch_idx: int) -> None:
        """Scores the seen clients on every split."""
        self._log(curve_metrics(self, batch))

    def test_step(self, batch: Federation, batch_idx: int) -> None:
        """Personalises the unseen clients, scores everybody on every split, and fills `clients`."""
        processes, unseen = Processes.of(self.trainer), scored_clients(self, batch, seen=False)
        if len(unseen):
            shares = [unseen[rank :: processes.size] for rank in range(processes.size)]
            with torch.inference_mode(False), torch.no_grad():
                if len(shares[processes.rank]):
                    self.personalize(batch, shares[processes.rank])
                processes.exchange_rows(self.client_state(), shares)
        self.clients = client_table(self, batch)

    def on_train_end(self) -> None:
        """Stops the clock."""
        self.statistics.tick()

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Adds the statistics."""
        self.statistics.tick()
        checkpoint["statistics"] = self.statistics.state_dict()
        checkpoint["federation"] = self.federation_digest

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Counts on from the statistics."""
        self.statistics = Statistics(**checkpoint["statistics"])
        self.federation_digest = checkpoint["federation"]
        saved = checkpoint["state_dict"]
        # Lightning loads the tensors before `trainer.precision=64-true` makes the model double: bits would be lost
        self.to(next(saved[name].dtype for name, _ in self.components.named_parameters(prefix="components")))

    def _check(self, federation: Federation) -> None:
        if federation is self._checked:
            return
        require(
            federation.n_clients == self.n_clients,
            f"n_clients: the model was made for {self.n_clients} clients, the data has {federation.n_clients}",
        )
        digest = federation.digest()
        require(
            self.federation_digest in (None, digest),
            "ckpt_path: the checkpoint was trained on another federation (other data, partition, split or seed)",
        )
        self.federation_digest, self._checked = digest, federation

    def _log(self, metrics: dict[str, float]) -> None:
        # the metric called "step" is the loggers' x-axis: rounds
        metrics = metrics | {"step": float(self.current_epoch + 1)}
        several = self.trainer.world_size > 1
        self.log_dict(metrics, on_step=False, on_epoch=True, batch_size=1, sync_dist=several)
