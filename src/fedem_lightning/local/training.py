"""The clients' local training: weighted steps over each client's training samples (FedEM, Alg. 2, LocalSolver)."""

import math
from collections.abc import Collection, Iterator
from typing import Literal

import torch
from torch import Tensor, nn

from fedem_lightning.aggregate import Models
from fedem_lightning.data.federation import Block, Federation
from fedem_lightning.data.randomness import Purpose, fold
from fedem_lightning.local.engine import AutoEngine, Engine
from fedem_lightning.local.optimizers import ClientOptimizer, ClientSGD
from fedem_lightning.local.solver import Batches, GradientStep, LocalStep, Step, visits
from fedem_lightning.models.client_store import ClientStore
from fedem_lightning.models.parts import model_bytes
from fedem_lightning.models.tensors import trained_parameters
from fedem_lightning.state.history import Statistics


class LocalTraining:
    """Trains models on clients' samples: each of T clients trains `n_models` copies of a network in a round.

    `steps` is J, the number of local steps of every client; None: `epochs` passes over its training samples. The
    learning rate follows the rounds of the statistics.
    """

    def __init__(
        self,
        network: nn.Module,
        n_clients: int,
        n_models: int,
        optimizer: ClientOptimizer,
        epochs: float,
        steps: int | None,
        batch_size: int,
        seed: int,
        engine: Engine | AutoEngine,
        statistics: Statistics,
    ) -> None:
        self.network, self.n_clients, self.n_models, self.seed = network, n_clients, n_models, seed
        self.takes_steps = True  # False: the method has no use for the client optimiser
        self.optimizer, self.epochs, self.steps, self.batch_size = optimizer, epochs, steps, batch_size
        self.engine_choice, self.statistics = engine, statistics
        self._engine: Engine | None = None
        self.engine_gave_up = False  # in the process that wrote the checkpoint from which this one goes on
        self.momentum = self.optimizer_state()
        self.work: list[tuple[Tensor, Tensor]] = []  # clients, and their gradients of single samples, since `begin`

    @property
    def engine(self) -> Engine:
        """The engine that runs the local steps; `auto` is resolved at first use, when the device is known."""
        return self._engine or self.resolve_engine(next(self.network.parameters()).device)

    def resolve_engine(self, device: torch.device) -> Engine:
        """The engine that will run on `device`."""
        self._engine = self.engine_choice.resolve(self.network, device)
        return self._engine

    def lr_at(self, round_: int) -> float:
        """The clients' learning rate in round `round_` (from 0)."""
        return self.optimizer.lr_at(round_, self.statistics.planned_rounds)

    def in_words(self, n_train: Tensor | None = None) -> str:
        """The clients' optimiser, batches and steps; `n_train` [C]: numbers of training samples of those that train."""
        optimizer, size = self.optimizer, self.batch_size
        momentum = f", momentum {optimizer.momentum:g}" if isinstance(optimizer, ClientSGD) else ""
        message = f"{type(optimizer).__name__}(lr={optimizer.lr:g}{momentum}), batches of {size}, "
        if self.steps is not None:
            return message + f"{self.steps} step{'s' * (self.steps != 1)} of a client a round"
        message += f"{self.epochs:g} pass{'es' * (self.epochs > 1)} over its samples a round"
        if n_train is None or not len(n_train):
            return message
        fewest, most, (whole, part) = int(n_train.min()), int(n_train.max()), divmod(self.epochs, 1)
        least, largest = (int(whole) * -(-n // size) + math.ceil(math.ceil(part * n) / size) for n in (fewest, most))
        steps = f"{least} step{'s' * (least != 1)} of the smallest client"
        return f"{message}: {steps} ({fewest} samples), {largest} of the largest ({most})"

    def blocks(self, federation: Federation, clients: Tensor) -> Iterator[Block]:
        """Cuts `clients` into blocks of training samples that fit the engine's memory."""
        learner_bytes = round(self.n_models * model_bytes(self.network) * self.optimizer.size)
        return self.engine.blocks(federation, clients, learner_bytes, self.batch_size)

    def zeros(self) -> Models:
        """A zero for every parameter that a client trains, [M, ...]."""
        return {name: p.new_zeros(self.n_models, *p.shape) for name, p in trained_parameters(self.network).items()}

    def optimizer_state(self) -> ClientStore | None:
        """Room for the optimiser's momentum, or moments, that stay with clients; None: they restart in every round."""
        if not (self.optimizer.remembers and self.optimizer.state == "keep"):
            return None
        return ClientStore(self.n_clients, self.optimizer.init(self.zeros(), axes=1), momentum=True)

    def visits(self, counts: Tensor, epochs: float | None = None, steps: int | None = None) -> Tensor:
        """Visits of samples by clients with so many [C], int64 [C]; None: the passes, or steps, of every round."""
        steps = self.steps if epochs is None and steps is None else steps
        if steps is not None:
            return steps * counts.clamp(max=self.batch_size)
        return visits(counts, self.epochs if epochs is None else epochs)

    def sgd(
        self,
        models: Models,
        block: Block,
        round_: int,
        weights: Tensor | None = None,
        *,
        step: Step | None = None,
        epochs: float | None = None,
        steps: int | None = None,
        only: Collection[str] | None = None,
        state: ClientStore | Literal["of the sent"] | None = "of the sent",
        optimizer: ClientOptimizer | None = None,
    ) -> Models:
        """LocalSolver of Alg. 2: `epochs` passes, or `steps` steps, over each client's training samples.

        Args:
            models: where each client starts, [C, M, ...].
            block: the clients and their samples.
            round_: number of the round, from 0; it sets shuffling and learning rate.
            weights: of the samples in each model's loss, [n, M]; None: 1.
            step: a local step of the method's own, such as `near(w, mu)`; None: SGD's.
            epochs, steps: passes, or steps; None: those of every round.
            only: names of the parameters that train; the others stay as they are. None: all.
            state: where the client optimiser's state for these models is kept, from `optimizer_state`; "of the sent":
                with that of the models that clients send; None: nowhere, it starts anew.
            optimizer: in place of the clients' own, at its own learning rate.

        Returns:
            The models after the local steps, parameters and buffers, [C, M, ...].

        """
        chosen = step or Step(LocalStep)
        sgd, rate = (self.optimizer, self.lr_at(round_)) if optimizer is None else (optimizer, optimizer.lr)
        local_step = chosen.made(self.network, block.federation.task, sgd, rate)
        names = [name for name in trained_parameters(self.network) if only is None or name in only]
        trained_models = {name: models[name] for name in names}
        n_models = next(iter(models.values())).shape[1]
        memory, kept = sgd.init(trained_models, axes=2), self.momentum if isinstance(state, str) else state
        if kept is not None:  # one trained model may stand for M equal ones
            memory = {name: t[:, :n_models] for name, t in kept[block.clients].items() if name in memory}
        learners = {
            "params": trained_models,
            "buffers": {name: tensor for name, tensor in models.items() if name not in trained_models},
            "momentum": memory,
            **chosen.tensors,
        }
        steps = self.steps if epochs is None and steps is None else steps
        epochs = self.epochs if epochs is None else epochs
        batches = shuffled_batches(block, self.batch_size, epochs, self.seed, round_, steps)
        self.work.append((block.clients, self.visits(batches.counts, epochs, steps) * n_models * local_step.gradients))
        self.network.train()
        trained = self.engine.run(local_step, learners, block, batches, weights)
        if kept is not None:
            rows = {name: t.expand(-1, self.n_models, *t.shape[2:]) for name, t in trained["momentum"].items()}
            kept[block.clients] = rows if only is None else kept[block.clients] | rows
        chosen.after = {name: trained[name] for name in chosen.tensors}
        return trained["params"] | trained["buffers"]

    def summed_gradients(self, models: Models, block: Block, round_: int) -> Models:
        """The sum of grad l over each client's samples, at models [C, M, ...] in training mode; `round_` shuffles.

        NaN and infinity become 0, so that a client whose loss overflows does not reach the others.
        """
        zeros = {name: torch.zeros_like(models[name]) for name in trained_parameters(self.network)}
        step = Step(GradientStep, {"total": zeros})
        self.sgd(models, block, round_, step=step, epochs=1, state=None)
        return {name: rows.nan_to_num(0.0, 0.0, 0.0) for name, rows in step.after["total"].items()}


def shuffled_batches(
    block: Block, batch_size: int, epochs: float, seed: int, round_: int, steps: int | None = None
) -> Batches:
    """The batches of `epochs` passes over each client's shuffled samples; the last, short batch of a pass is kept.

    Half a pass is over the first half of the shuffled samples, rounded up. The order of a client's samples is a
    function of (seed, round, client) alone: they are sorted by hashed numbers. With `steps` every client with samples
    takes so many, in as many passes as needed.
    """
    owner, counts = block.owner, block.counts()  # [n], [C]
    if steps is not None:
        some = counts[counts > 0]
        epochs = -(-steps // -(-int(some.min()) // batch_size)) if len(some) else 0
    rank = block.ranks()  # [n]
    keys = fold(seed, Purpose.SHUFFLE, round_, block.keys)  # [C]
    draws = (fold(fold(keys, epoch)[owner], rank) for epoch in range(math.ceil(epochs)))  # E x [n], in [0, 2^32)
    passes = [torch.argsort((owner << 32) | draw, stable=True) for draw in draws]
    order = torch.stack(passes) if passes else owner.new_empty(0, len(owner))  # [E, n]
    counts, limit = counts.cpu(), Batches.limit if steps is None else steps
    last = visits(counts, epochs) - (len(order) - 1) * counts
    return Batches(order, counts, last, batch_size, fold(seed, Purpose.DROPOUT, round_, block.keys), limit)
