"""Dapper, which mixes a client's samples with others, and Mapper's personal part, which mixes two models' predictions.

Mansour, Mohri, Ro, Suresh: "Three Approaches for Personalization with Applications to Federated Learning", 2020, arXiv
2002.10619. Sections 5 and 6, Figures 3 and 4; equation numbers are the paper's.
"""

from typing import Literal

import torch
from torch import Tensor

from fedem_lightning.aggregate import Models
from fedem_lightning.data.federation import Block
from fedem_lightning.data.randomness import Purpose, fold
from fedem_lightning.evaluate.adapt.base import GRID, Adaptation, Best, Grid, selection_losses
from fedem_lightning.local.optimizers import AnyClientOptimizer
from fedem_lightning.local.solver import LocalStep, Step
from fedem_lightning.method import Method
from fedem_lightning.models.em import mixture_losses
from fedem_lightning.models.personal_models import OwnModels, PersonalModels, sample_weights
from fedem_lightning.settings.ranges import Count, Positive


class MixtureStep(LocalStep):
    """A local step of h on the loss of a mixture, -log(a p + b p'); p and p' are the label's likelihoods.

    The other model h' is fixed. Up to a constant the loss is -log(1 + p a / (b p')). The samples' weights are
    therefore the `log_odds` log a / (b p'), and 0 for padding.
    """

    def mean_loss(self, losses: Tensor, weight: Tensor, size: Tensor) -> Tensor:
        """The mixture's mean loss: losses -log p and log-odds [..., B], size [...] -> [...]."""
        gain = torch.logaddexp(weight - losses, torch.zeros_like(losses))
        return -torch.where(weight == 0, 0.0, gain).sum(dim=-1) / (size * self.task.n_targets)


LARGEST = 1e6  # absolute log-odds: larger than every difference of losses, and finite


def log_odds(share: Tensor, losses: Tensor) -> Tensor:
    """The log-odds log a / (b p') for a share a = 1 - b [n] and losses -log p' [n]; never 0, which means padding."""
    odds = (share.log() - torch.log1p(-share) + losses).clamp(-LARGEST, LARGEST)
    return torch.where(odds == 0, 1e-30, odds)


class Interpolate(Adaptation):
    """Client k predicts with lambda_k h_l + (1 - lambda_k) h_c; h_c is its model before, lambda_k is from a grid.

    h_l starts from h_c's parameters (of several models: the one with the largest weight). lambda_k has the lowest loss
    on validation samples; Eq. 11 as printed takes training samples, as clients without validation samples do.

    Args:
        objective: of h_l. "mixture": the mixture's loss, for each lambda (Eq. 10). "own": the loss of h_l alone, once:
            Mapper's separate variant, which can be worse by a constant (Example E.1).
        lambdas: the grid, in [0, 1].
        epochs, client_optimizer: of the training of each h_l, see `Adaptation`.

    """

    private_ok = True
    columns = ("lambda",)

    def __init__(
        self,
        objective: Literal["mixture", "own"] = "mixture",
        lambdas: Grid = GRID,
        epochs: Count = 1,
        client_optimizer: AnyClientOptimizer | None = None,
    ) -> None:
        super().__init__(epochs, client_optimizer)
        self.objective, self.lambdas = objective, tuple(sorted(float(value) for value in lambdas))

    def adapt(self, algorithm: Method, block: Block) -> OwnModels:
        """Mixes the best h_l with the personal models from before, at the best lambda."""
        central = algorithm.personal_models(block.clients)
        local, share = self.fit(algorithm, central, block)
        return interpolated(algorithm, local, share, central)._replace(columns={"lambda": share})

    def fit(self, algorithm: Method, central: PersonalModels, block: Block) -> tuple[Models, Tensor]:
        """The best h_l [C, 1, ...] and lambda of the grid, float64 [C], of each client: Eq. 10 and 11."""
        best, start = Best(), strongest(central)
        losses = central.losses(block)  # [n, M]
        fixed = mixture_losses(central.mixture.to(losses), losses, block.owner)  # -log of h_c's probabilities, [n]
        local = self.tune(algorithm, start, block) if self.objective == "own" else start
        for value in self.lambdas:
            share = central.mixture.new_full((len(block.clients),), value, dtype=torch.float64)
            if self.objective == "mixture" and value > 0:  # Eq. 10
                weights = log_odds(share[block.owner].to(fixed), fixed).unsqueeze(1)
                local = self.tune(algorithm, start, block, weights, Step(MixtureStep))
            h_l = local if value > 0 else start  # at share 0 h_l has no weight, and must not be one that diverged
            losses = selection_losses(interpolated(algorithm, h_l, share, central), block)
            best.offer(losses, local=h_l, share=share)  # Eq. 11
        return best.value["local"], best.value["share"]


def strongest(personal: PersonalModels) -> Models:
    """Each client's model with the largest mixture weight, [C, 1, ...]."""
    first, clients = personal.mixture.argmax(dim=1), torch.arange(len(personal.mixture), device=personal.mixture.device)
    return {name: rows[clients, first].unsqueeze(1) for name, rows in personal.models.items()}


def interpolated(algorithm: Method, local: Models, share: Tensor, central: PersonalModels) -> OwnModels:
    """lambda h_l + (1 - lambda) h_c: local [C, 1, ...] and central [C, M, ...] -> [C, 1 + M, ...]."""
    served = central.models  # computed on every access
    models = {name: torch.cat([rows, served[name]], dim=1) for name, rows in local.items()}
    share = share.to(central.mixture).unsqueeze(1)
    return algorithm.own_models(models, torch.cat([share, (1 - share) * central.mixture], dim=1))


class Dapper(Adaptation):
    """Minimises lambda L_k + (1 - lambda) L_C (Eq. 5), starting at the central model, for each lambda of a grid.

    C are the training samples of the clients that train; after HypCluster and Clustered, of those in the client's
    cluster. A client draws r n_k of them once. For each lambda it makes a pass over r n_k samples: each is one of its
    own with probability lambda (drawn with replacement), else the next sample of C. The client predicts with the model
    of the lambda that is best on its validation samples, see `Interpolate`.

    Args:
        ratio: r.
        lambdas: the grid, in [0, 1]; 1 alone is Finetune on resampled data, 0 alone never uses a client's own samples.
        epochs, client_optimizer: of the passes over the drawn samples, see `Adaptation`; the paper makes one.

    """

    columns = ("lambda",)

    def __init__(
        self,
        ratio: Positive = 5.0,
        lambdas: Grid = GRID,
        epochs: Count = 1,
        client_optimizer: AnyClientOptimizer | None = None,
    ) -> None:
        super().__init__(epochs, client_optimizer)
        self.ratio, self.lambdas = ratio, tuple(sorted(float(value) for value in lambdas))

    def adapt(self, algorithm: Method, block: Block) -> OwnModels:
        """h_lambda for each lambda, then the best of them."""
        best, central = Best(), algorithm.personal_models(block.clients)
        h_c, samples = central.models, self._central_samples(algorithm, block)
        for value in self.lambdas:
            mixed_samples = self._interpolated(algorithm.seed, block, samples, value)
            h = self.tune(algorithm, h_c, mixed_samples, sample_weights(central, mixed_samples))
            tuned = algorithm.own_models(h, central.mixture)
            losses = selection_losses(tuned, block)
            best.offer(losses, models=h, share=torch.full_like(losses, value, dtype=torch.float64))
        tuned = algorithm.own_models(best.value["models"], central.mixture)
        return tuned._replace(columns={"lambda": best.value["share"]})

    def _interpolated(self, seed: int, block: Block, central: Block, value: float) -> Block:
        """Replaces samples of `central`, each with probability `value`, by the client's own; lambdas share draws."""
        rank, counts = central.ranks(), block.counts()
        keys = fold(seed, Purpose.DAPPER, block.keys)[central.owner]  # [r n]
        own = fold(keys, 0, rank) < value * 2**32  # bool [r n]
        first = (counts.cumsum(0) - counts)[central.owner]
        place = first + fold(keys, 1, rank) % counts[central.owner]
        chosen = block.index[place]
        return Block(central.federation, block.clients, torch.where(own, chosen, central.index), central.owner)

    def _central_samples(self, algorithm: Method, block: Block) -> Block:
        """The samples C': round(r n_k) for each client k, r n in all, of the clients that train in its group."""
        federation, trained = block.federation, block.federation.clients()
        sizes = (self.ratio * block.counts()).round().long()  # [C]
        owner = torch.repeat_interleave(torch.arange(len(sizes), device=sizes.device), sizes)
        empty = Block(federation, block.clients, owner, owner)
        draws = fold(fold(algorithm.seed, Purpose.DAPPER, block.keys)[owner], 2, empty.ranks())  # in [0, 2^32)
        held = getattr(algorithm, "cluster", torch.zeros_like(federation.seen))
        index, groups = torch.zeros_like(owner), held[block.clients]
        for group in groups.unique():
            members, mine = trained[held[trained] == group], groups[owner] == group
            drawn_from = federation.splits["train"].positions(members if len(members) else trained)[0]
            index[mine] = drawn_from[draws[mine] % len(drawn_from)]
        return Block(federation, block.clients, index, owner)
