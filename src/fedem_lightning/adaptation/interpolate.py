"""Mapper's personal part: a mixture of a local and a central model's probabilities.

Mansour, Mohri, Ro, Suresh: "Three Approaches for Personalization with Applications to Federated Learning", 2020, arXiv
2002.10619. Section 6, Figure 4; equation numbers are the paper's.
"""

from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from fedem_lightning.adaptation.base import GRID, Adaptation, Best, Grid, SelectionSamples, selection_losses
from fedem_lightning.aggregation import Models
from fedem_lightning.client_optimizers import AnyClientOptimizer
from fedem_lightning.data.block import Block
from fedem_lightning.em import mixture_losses
from fedem_lightning.local_solver import LocalStep
from fedem_lightning.models.personal_models import OwnModels, PersonalModels
from fedem_lightning.settings.ranges import Count

if TYPE_CHECKING:
    from fedem_lightning.algorithms.base import FederatedAlgorithm


class MixtureStep(LocalStep):
    """A local step of h on the loss of a mixture, -log(a p + b p'); p and p' are the label's likelihoods.

    The other model h' is fixed. Up to a constant the loss is -log(1 + p a / (b p')). The samples' weights are
    therefore the `log_odds` log a / (b p'), and 0 for padding.
    """

    weighs_classes = False

    def mean_loss(self, losses: Tensor, weight: Tensor, size: Tensor) -> Tensor:
        """The mixture's mean loss: losses -log p and log-odds [..., B], size [...] -> [...]."""
        gain = torch.logaddexp(weight - losses, torch.zeros_like(losses))
        return -torch.where(weight == 0, 0.0, gain).sum(dim=-1) / (size * self.task.n_targets)


LARGEST = 1e6
"""Largest absolute log-odds: larger than every difference of losses, and finite."""


def log_odds(share: Tensor, losses: Tensor) -> Tensor:
    """The log-odds log a / (b p') for a share a = 1 - b [n] and losses -log p' [n]; never 0, which means padding."""
    odds = (share.log() - torch.log1p(-share) + losses).clamp(-LARGEST, LARGEST)
    return torch.where(odds == 0, 1e-30, odds)


class Interpolate(Adaptation):
    """Client k predicts with lambda_k h_l + (1 - lambda_k) h_c; h_c is its model before, lambda_k is from a grid.

    h_l starts from h_c's parameters (of several models: the one with the largest weight). "lambda" is a column of the
    clients' table.

    Args:
        objective: of h_l. "mixture": the mixture's loss, for each lambda (Eq. 10). "own": the loss of h_l alone, once:
            Mapper's separate variant, which can be worse by a constant (Example E.1).
        lambdas: the grid, in [0, 1].
        selection: "val": lambda has the lowest loss on validation samples; "train": on training samples (Eq. 11 as
            printed).
        epochs: passes over the training samples for each h_l.
        client_optimizer: of these passes; None: the algorithm's, at the learning rate of its first round.

    """

    released = ()
    columns = ("lambda",)

    def __init__(
        self,
        objective: Literal["mixture", "own"] = "mixture",
        lambdas: Grid = GRID,
        selection: SelectionSamples = "val",
        epochs: Count = 1,
        client_optimizer: AnyClientOptimizer | None = None,
    ) -> None:
        super().__init__(epochs, client_optimizer)
        self.objective, self.selection = objective, selection
        self.lambdas = tuple(sorted(float(value) for value in lambdas))

    def adapt(self, algorithm: "FederatedAlgorithm", block: Block) -> OwnModels:
        """Mixes the best h_l with the personal models from before, at the best lambda."""
        central = algorithm.personal_models(block.clients)
        local, share = self.fit(algorithm, central, block)
        return mixed(algorithm, local, share, central)._replace(columns={"lambda": share})

    def fit(self, algorithm: "FederatedAlgorithm", central: PersonalModels, block: Block) -> tuple[Models, Tensor]:
        """The best h_l [C, 1, ...] and lambda of the grid, float64 [C], of each client: Eq. 10 and 11."""
        best, start = Best(), strongest(central)
        losses = central.losses(block)  # [n, M]
        fixed = mixture_losses(central.mixture.to(losses), losses, block.owner)  # -log of h_c's probabilities, [n]
        local = self.tune(algorithm, start, block) if self.objective == "own" else start
        for value in self.lambdas:
            share = central.mixture.new_full((len(block.clients),), value, dtype=torch.float64)
            if self.objective == "mixture" and value > 0:  # Eq. 10
                weights = log_odds(share[block.owner].to(fixed), fixed).unsqueeze(1)
                local = self.tune(algorithm, start, block, weights, MixtureStep)
            h_l = local if value > 0 else start  # at share 0 h_l has no weight, and must not be one that diverged
            losses = selection_losses(mixed(algorithm, h_l, share, central), block, self.selection)
            best.offer(losses, local=h_l, share=share)  # Eq. 11
        return best.value["local"], best.value["share"]  # type: ignore[return-value]


def strongest(personal: PersonalModels) -> Models:
    """Each client's model with the largest mixture weight, [C, 1, ...]."""
    first, clients = personal.mixture.argmax(dim=1), torch.arange(len(personal.mixture), device=personal.mixture.device)
    return {name: rows[clients, first].unsqueeze(1) for name, rows in personal.models.items()}


def mixed(algorithm: "FederatedAlgorithm", local: Models, share: Tensor, central: PersonalModels) -> OwnModels:
    """lambda h_l + (1 - lambda) h_c: local [C, 1, ...] and central [C, M, ...] -> [C, 1 + M, ...]."""
    served = central.models
    models = {name: torch.cat([rows, served[name]], dim=1) for name, rows in local.items()}
    share = share.to(central.mixture).unsqueeze(1)
    return algorithm.own_models(models, torch.cat([share, (1 - share) * central.mixture], dim=1))
