"""How the components of FedEM begin: the warm-up of one model, and what makes them different after it."""

from typing import Any, Literal

import numpy as np
import torch
from pytorch_lightning.utilities import rank_zero_only
from torch import Tensor

from fedem_lightning.aggregation import Mean, Means
from fedem_lightning.algorithms.initialization import clustered_models, load_models
from fedem_lightning.data.federation import Federation
from fedem_lightning.history import Round
from fedem_lightning.models.components import start_equal
from fedem_lightning.models.personal_models import component_losses
from fedem_lightning.randomness import Purpose, generator

Initialization = Literal["auto", "clusters", "random", "shared"]

PATIENCE, LEAST_GAIN, LONGEST = 3, 0.03, 0.2
"""A warm-up ends when the validation loss has fallen by less than this share within so many rounds, or after this share
of the run's rounds."""

UNPLANNED = 20
"""The longest warm-up of a run whose number of rounds is not known."""

EPOCHS, SHARE = 20, 0.1
"""With "clusters" each candidate trains for `EPOCHS` passes over its samples, but for at most this share of the passes
of the whole run, and for at least one."""


class WarmUp:
    """The start of a mixture: rounds in which one model stands for all components, then different components.

    Args:
        algorithm: the mixture.
        initialization: "clusters": one model in a warm-up, then each component is the mean of the models of similar
            clients, which trained longer from there. "auto": "clusters", but "random" where clients are processes of
            their own or the aggregation is more than a mean. "random": each from its own seed, pi uniform, as in the
            paper; the same as "shared" if all are copies of one network. "shared": equal components and a random pi
            for every client, so that components differ by clients, not by labels.
        warmup_rounds: initial rounds in which every component trains on all samples (q = 1) and pi does not change.
            With "random" it is FedAvg M times; otherwise the components are FedAvg's one model, which is sent and
            trained once. None: with "clusters" until the loss of the validation samples (without them: of the training
            samples) hardly falls, at most a fifth of the rounds; else 0, as in the paper.

    """

    def __init__(self, algorithm: Any, initialization: Initialization, warmup_rounds: int | None) -> None:
        self.algorithm, several = algorithm, len(algorithm.components) > 1
        self.is_auto = initialization == "auto" and several
        if initialization == "auto":
            initialization = "clusters" if type(algorithm.aggregation) is Mean else "random"
        self.initialization = initialization if several or initialization == "shared" else "random"
        by_validation = warmup_rounds is None and self.initialization == "clusters"
        algorithm.register_buffer("warmup_end", torch.tensor(-1 if by_validation else warmup_rounds or 0))
        algorithm.register_buffer("warmup_losses", torch.zeros(PATIENCE + 1, dtype=torch.float64))  # of its last rounds
        if self.initialization == "clusters":
            algorithm.private_ok = False  # models of single clients are where components start
            algorithm.one_process = not self.is_auto  # which takes another start there

    @property
    def end(self) -> Tensor:
        """The number of rounds of the warm-up, int64 []; -1 until it is known."""
        return self.algorithm.get_buffer("warmup_end")

    def is_warming_up(self, round_: int | None = None) -> bool:
        """Whether a round, from 0, belongs to the warm-up; None: this one."""
        round_ = self.algorithm.statistics.rounds if round_ is None else round_
        return bool(self.end < 0) or round_ < int(self.end)

    def of_all(self, means: Means | None) -> Means | None:
        """The means of all components, where clients may have sent one model for all."""
        if means is None:
            return None
        m = len(self.algorithm.components)
        models = {name: rows.expand(m, *rows.shape[1:]) for name, rows in means.models.items()}
        return means._replace(models=models, nonempty=means.nonempty.expand(m))

    def begin(self, federation: Federation) -> None:
        """The components of the first round, and the mixture weights."""
        algorithm, components = self.algorithm, self.algorithm.components
        algorithm.mixture.tie()
        if self.is_auto:
            self._take_auto()
        if self.initialization == "random":
            if not start_equal(components):
                return
            rank_zero_only(print)(
                "backbone: all components start as copies of your network; a random pi for every client makes them "
                "different, as with algorithm.initialization=shared (or give a function that makes networks)"
            )
        for component in components:
            component.load_state_dict(components[0].state_dict())
        if self.initialization != "clusters":
            self._draw_pi(federation)
        if self._longest() == 0:
            self.differ(federation, 0)

    def _take_auto(self) -> None:
        """Says which start "auto" takes."""
        line = "start: components with random values, because the aggregation is no plain mean"
        if self.algorithm.remote is not None:
            self.initialization = "random"
            self.end.clamp_(min=0)
            line = "start: components with random values, because clients are processes of their own"
        elif self.initialization == "clusters":
            m = len(self.algorithm.components)
            line = f"start: one FedAvg model, then a component for each of {m} groups of similar clients"
        rank_zero_only(print)(line)

    def after(self, round_: Round) -> None:
        """Ends the warm-up after its last round, by which `server_update` has averaged."""
        losses = self.algorithm.get_buffer("warmup_losses")
        if self.end < 0:
            losses.copy_(torch.cat([losses[1:], losses.new_tensor([self._validation_loss(round_.federation)])]))
            flat = round_.number >= PATIENCE and not losses[-1] < (1 - LEAST_GAIN) * losses[0]
            if flat or round_.number + 1 >= self._longest():
                self.differ(round_.federation, round_.number + 1)
        elif round_.number + 1 == self.end:
            self.differ(round_.federation, round_.number + 1)

    def differ(self, federation: Federation, n_rounds: int) -> None:
        """Makes the components different after a warm-up of so many rounds; "shared" ones differ by pi."""
        self.end.fill_(n_rounds)
        if self.initialization != "clusters":
            return
        algorithm, result = self.algorithm, clustered_models(self.algorithm, federation, self._epochs())
        if result is None:
            line = "training on its own lowers no client's loss, so components get random mixture weights"
            self._draw_pi(federation)
        else:
            models, sizes = result
            load_models(algorithm.components, algorithm.mixture.mean_of_shared(models, torch.tensor(sizes)))
            algorithm.mixture.tie()
            algorithm.diagnostics["start"] = {"warmup_rounds": n_rounds, "group_sizes": sizes}
            line = f"after {n_rounds} rounds of one model, groups of {', '.join(map(str, sizes))} clients"
        rank_zero_only(print)(f"start: {line}")

    def _draw_pi(self, federation: Federation) -> None:
        """A random pi for every seen client, from a flat Dirichlet distribution."""
        pi, m = self.algorithm.pi, len(self.algorithm.components)
        drawn = generator(self.algorithm.seed, Purpose.INITIAL).dirichlet(np.ones(m), size=len(pi))  # [T, M]
        pi[federation.seen] = torch.from_numpy(drawn).to(pi)[federation.seen]

    def _epochs(self) -> int:
        """Passes over a client's samples before its model is grouped."""
        planned = self.algorithm.statistics.planned_rounds
        whole = SHARE * planned * (self.algorithm.local.epochs if self.algorithm.local.steps is None else 1)
        return min(EPOCHS, max(1, int(whole))) if planned > 0 else EPOCHS

    def _longest(self) -> int:
        """The longest warm-up, in rounds."""
        end, planned = int(self.end), self.algorithm.statistics.planned_rounds
        if end >= 0:
            return end
        return int(LONGEST * planned) if planned > 0 else UNPLANNED

    def _validation_loss(self, federation: Federation) -> float:
        """The mean loss of the one model, in nats, on the validation samples of seen clients, else on training ones."""
        clients = federation.clients()
        block = federation.block(clients, "val")
        block = block if len(block.index) else federation.block(clients, "train")
        one: Tensor = component_losses(self.algorithm.components[:1], block)  # [n, 1]
        return float(one.double().mean())
