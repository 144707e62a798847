"""Part of every algorithm: the clients' local training."""

from collections.abc import Collection, Iterator
from typing import Any

import torch
from torch import Tensor

from fedem_lightning.aggregation import Models, all_finite
from fedem_lightning.data.federation import Block, Federation
from fedem_lightning.local_solver import Learner, LocalStep, shuffled_batches
from fedem_lightning.models.client_store import ClientStore
from fedem_lightning.models.frozen import trained_parameters
from fedem_lightning.protocol import Algorithm


class LocalTraining:
    """Weighted SGD over each client's training samples (FedEM, Alg. 2, LocalSolver)."""

    def local_solver(
        self: Algorithm,
        models: Models,
        block: Block,
        round_: int,
        weights: Tensor | None = None,
        **options: Any,
    ) -> Models:
        """Weighted SGD over each client's training samples (Alg. 2, LocalSolver): `solve`, params and buffers only."""
        trained = self.solve(models, block, round_, weights, **options)
        return trained["params"] | trained["buffers"]

    def solve(
        self: Algorithm,
        models: Models,
        block: Block,
        round_: int,
        weights: Tensor | None = None,
        *,
        step: LocalStep | None = None,
        extra: Learner | None = None,
        epochs: int | None = None,
        steps: int | None = None,
        only: Collection[str] | None = None,
        keep_momentum: bool = True,
        momentum: ClientStore | None = None,
        quiet: bool = False,
    ) -> Learner:
        """The local solver: `epochs` passes, or `steps` steps, over each client's training samples.

        Args:
            models: where each client starts, [C, M, ...].
            block: the clients and their samples.
            round_: number of the round, from 0; it sets shuffling and learning rate.
            weights: of the samples in each model's loss, [n, M]; None: 1.
            step: the local step; None: that of `local_step`.
            extra: tensors that the step needs beside "params", "buffers" and "momentum", each [C, M, ...].
            epochs, steps: passes, or steps; None: the algorithm's.
            only: names of the parameters that train; the others stay as they are. None: all.
            keep_momentum: whether kept momentum (`client_optimizer.state`) is used and updated.
            momentum: where these models' momentum is kept, from `momentum_store`; None: with that of the models sent.
            quiet: whether this training is left out of the progress bar.

        Returns:
            The learners after the local steps, each tensor [C, M, ...]; "buffers" has the parameters that do not train.

        """
        step = step or self.local_step(block, round_)
        params = [name for name in trained_parameters(self.components[0]) if only is None or name in only]
        kept = (momentum or self.kept_momentum) if keep_momentum else None
        restart = {name: torch.zeros_like(models[name]) for name in params if step.optimizer.momentum}
        learners = {
            "params": {name: models[name] for name in params},
            "buffers": {name: tensor for name, tensor in models.items() if name not in params},
            "momentum": restart if kept is None else _first(kept.read(block.clients), models, params),
            **(extra or {}),
        }
        steps = self.local_steps if epochs is None and steps is None else steps
        epochs = self.local_epochs if epochs is None else epochs
        batches = shuffled_batches(block, self.batch_size, epochs, self.seed, round_, steps)
        self.components[0].train()
        progress = (lambda clients: None) if quiet else self.observer.advance
        trained = self.engine.run(step, learners, block, batches, weights, progress)
        if kept is not None:
            finite = all_finite(trained["momentum"]).nonzero().squeeze(1)  # the others keep their earlier momentum
            rows = {
                name: t.index_select(0, finite).expand(-1, self.n_trained_models, *t.shape[2:])
                for name, t in trained["momentum"].items()
            }
            t = block.clients[finite]
            kept.write(t, rows if only is None else kept.read(t) | rows)
        return trained

    def local_step(
        self: Algorithm, block: Block, round_: int, kind: type[LocalStep] = LocalStep, **options: Any
    ) -> LocalStep:
        """A local step of class `kind`, at the round's learning rate."""
        backbone, loss = self.components[0], kind.loss_of(block.federation.task)
        return kind(backbone, loss, self.client_optimizer, self.lr_at(round_), **options)

    def blocks(self: Algorithm, federation: Federation, clients: Tensor) -> Iterator[Block]:
        """Cuts `clients` into blocks of training samples that fit the engine's memory."""
        learner_bytes = self.n_trained_models * self.message_bytes
        return self.engine.blocks(federation, clients, learner_bytes, self.batch_size)

    def lr_at(self: Algorithm, round_: int) -> float:
        """The clients' learning rate in round `round_` (from 0)."""
        return self.client_optimizer.lr_at(round_, self.statistics.planned_rounds)


def _first(kept: Models, models: Models, params: list[str]) -> Models:
    """The first rows of `kept` [C, M, ...], one for each model: one trained model may stand for M equal ones."""
    n_models = next(iter(models.values())).shape[1]
    return {name: kept[name][:, :n_models] for name in params}
