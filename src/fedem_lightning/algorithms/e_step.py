"""The E-step and the mixture weights of FedEM, and variants of both.

The defaults are Eq. 8 and Eq. 9 of FedEM (Marfoq et al., NeurIPS 2021, arXiv 2108.10252).
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedem_lightning.data.block import Block
from fedem_lightning.em import mixture_weights, responsibilities
from fedem_lightning.randomness import Purpose, fold
from fedem_lightning.settings.check import Checked
from fedem_lightning.settings.ranges import AtLeastOne, BelowOne, Count, PositiveInt, Share


@dataclass(frozen=True)
class EStep(Checked):
    """How a client computes responsibilities q and mixture weights pi from the losses of its samples.

    Args:
        level: "sample": each sample has its own responsibilities (Eq. 8). "client": all samples of a client have the
            same ones, proportional to the likelihood of all of them, as if one component made a client's data. It is
            HypCluster's choice made soft, and starts from even weights in every round.
        steps: updates of q and pi before each M-step. The paper has 1.
        temperature: tau of the first round: q is proportional to (pi exp(-loss))^(1/tau). Above 1 it is closer to even
            weights: deterministic annealing EM (Ueda and Nakano, Neural Networks 11, 1998).
        annealing_rounds: rounds in which 1/tau rises linearly to 1; 0: the temperature stays.
        client_share: a: the M-step weighs samples by (1 - a) q + a pi. With 1 a client's samples count alike.
        held_out: share of each client's training samples, the same ones in each round, from which alone pi is computed.
            The M-step leaves them out, so that components are not fitted to the samples that weigh them. FLoRAL's code
            (arXiv 2410.03497) so takes the validation samples.
        concentration: alpha of a symmetric Dirichlet prior of pi; the mode of its posterior replaces Eq. 9. With 1 both
            are the same.

    """

    level: Literal["sample", "client"] = "sample"
    steps: PositiveInt = 1
    temperature: AtLeastOne = 1.0
    annealing_rounds: Count = 0
    client_share: Share = 0.0
    held_out: BelowOne = 0.0
    concentration: AtLeastOne = 1.0

    def __call__(
        self, pi: Tensor, losses: Tensor, owner: Tensor, round_: int, held: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """The weights of the M-step, and the new pi.

        Args:
            pi: mixture weights [C, M].
            losses: l(h_m(x_i), y_i) in nats [n, M].
            owner: int64 [n], each sample's client.
            round_: number of the round, from 0 after the warm-up.
            held: which samples are held out, bool [n], see `held`; None: no sample.

        Returns:
            Weights [n, M] and pi [C, M]; rows of both sum to 1. Weights of samples that are held out are 0, and then
            those of the client's other samples are longer, so that they sum to its number of samples.

        """
        q, beta = losses, self.inverse_temperature(round_)
        some = slice(None) if held is None else held
        for _ in range(self.steps):
            q = self.responsibilities(pi, losses[some], owner[some], beta)  # Eq. 8  [n, M]
            pi = self.mixture_weights(q, owner[some], pi)  # Eq. 9  [C, M]
        if held is not None:
            q = self.responsibilities(pi, losses, owner, beta)
        if self.client_share:
            q = torch.lerp(q, pi[owner].to(q), self.client_share)
        return (q if held is None else without(q, held, owner, len(pi))), pi

    def held(self, block: Block, seed: int) -> Tensor | None:
        """Which of the block's samples only pi is computed from, bool [n]: by seed, client and sample; None: none."""
        if not self.held_out:
            return None
        draws = fold(fold(seed, Purpose.HELD_OUT, block.keys)[block.owner], block.ranks())  # [n], in [0, 2^32)
        return draws.double() / 2**32 < self.held_out

    def inverse_temperature(self, round_: int) -> float:
        """1 / tau in a round, from 0."""
        first = 1 / self.temperature
        done = min(1.0, round_ / self.annealing_rounds) if self.annealing_rounds else 0.0
        return first + (1 - first) * done

    def responsibilities(self, pi: Tensor, losses: Tensor, owner: Tensor, beta: float = 1.0) -> Tensor:
        """q [n, M] of pi [C, M] and losses [n, M] at the inverse temperature beta."""
        if self.level == "client":
            summed = torch.zeros_like(pi).index_add_(0, owner, losses.to(pi))  # of all samples of a client  [C, M]
            return torch.softmax(-beta * summed, dim=1)[owner].to(losses)
        if beta == 1:
            return responsibilities(pi, losses, owner)
        log_pi = beta * pi.log()
        return responsibilities(log_pi.softmax(dim=1), beta * losses, owner)  # a row's scale does not matter

    def mixture_weights(self, q: Tensor, owner: Tensor, previous: Tensor) -> Tensor:
        """pi [C, M]: the means of q [n, M] over each client's samples, or the mode under the prior."""
        pi = mixture_weights(q, owner, previous)
        if self.concentration == 1:
            return pi
        n = torch.bincount(owner, minlength=len(pi)).unsqueeze(1)  # [C, 1]
        added = self.concentration - 1
        return (n * pi + added) / (n + pi.shape[1] * added)

    def repeated(self, pi: Tensor, losses: Tensor, owner: Tensor, beta: float, steps: int, tolerance: float) -> Tensor:
        """pi [C, M] after several E-steps on the same losses [n, M].

        Args:
            pi, losses, owner: see `__call__`.
            beta: the inverse temperature.
            steps: the most that a client takes; each stops on its own.
            tolerance: a client stops once every weight moves by less.

        """
        moving = torch.ones(len(pi), dtype=torch.bool, device=pi.device)
        for _ in range(steps):
            new = self.mixture_weights(self.responsibilities(pi, losses, owner, beta), owner, pi)
            change = (new - pi).abs().amax(dim=1)  # [C]
            pi = torch.where(moving.unsqueeze(1), new, pi)
            moving &= change >= tolerance
        return pi


def without(q: Tensor, held: Tensor, owner: Tensor, n_clients: int) -> Tensor:
    """Weights q [n, M] with 0 for the samples `held`, bool [n]; the other ones of a client are longer by as much."""
    counts = torch.bincount(owner, minlength=n_clients)  # [C]
    left = counts - torch.bincount(owner[held], minlength=n_clients)
    longer = (counts / left.clamp(min=1))[owner].to(q)  # [n]
    return torch.where(held, 0.0, longer).unsqueeze(1) * q
