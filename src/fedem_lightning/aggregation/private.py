"""Central differential privacy for clients: the mean of clipped updates, with Gaussian noise.

McMahan, Ramage, Talwar, Zhang: "Learning Differentially Private Recurrent Language Models", ICLR 2018, arXiv
1710.06963 (DP-FedAvg, fixed denominator). Andrew, Thakkar, McMahan, Ramaswamy: "Differentially Private Learning with
Adaptive Clipping", NeurIPS 2021, arXiv 1905.03871, Algorithm 1.
"""

import importlib.util
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedem_lightning.aggregation.accountant import assumptions, guarantee, noise_for
from fedem_lightning.aggregation.base import (
    Aggregation,
    Collector,
    Means,
    Models,
    RoundContext,
    Sampling,
    Sent,
    all_finite,
)
from fedem_lightning.aggregation.gathered import update_norms
from fedem_lightning.aggregation.weighted_mean import form_of
from fedem_lightning.errors import require
from fedem_lightning.processes import Processes
from fedem_lightning.randomness import Purpose, SystemNoise, generator
from fedem_lightning.settings.ranges import AboveZeroBelowOne, BelowOne, NotNegative, Positive


class PrivateMean(Aggregation, nn.Module):
    """theta + (1 / (q T)) (sum_t min(1, S / |d_t|) d_t + N(0, z^2 S^2)), where d_t = theta_t - theta.

    An update's length |d_t| is taken over the trained parameters of all M components together, so that one S bounds
    what a client can change. All clients count alike. Every client is in a cohort with probability q, independently of
    the others; the mean is over the expected size of a cohort, q T. A round without a client has its noise alone.

    Args:
        noise_multiplier: z. 0: no noise, and no privacy.
        clip: S; with `quantile` the first one.
        quantile: gamma: S follows the quantile of the updates' lengths, S <- S exp(-eta (b - gamma)), where b is the
            share of the cohort with |d_t| <= S, with noise of its own. None: S stays.
        clip_rate: eta.
        count_noise: standard deviation of the noise of b, as a share of q T. The server adds 1/2 for a client with
            |d_t| <= S and -1/2 for another, so that a client moves the sum by 1/2. z is kept for updates and count
            together: the updates get more noise. None: 0.05, as in the paper, but at least 2 z clients, with which the
            updates get 3 % more.
        delta: of (epsilon, delta).
        cohort: the expected size of a cohort for which the noise is meant, at least q T; None: q T. A simulation of few
            clients then has the noise, and reports the epsilon, of a federation with so many.
        epsilon: of (epsilon, delta), which the planned rounds shall spend: z follows from it before the first round,
            and `noise_multiplier` has no effect. None: z is `noise_multiplier`.

    """

    samples_independently = True
    length: Tensor  # S, []
    z: Tensor  # []; 0 until it is chosen for an epsilon

    def __init__(
        self,
        noise_multiplier: NotNegative = 1.0,
        clip: Positive = 0.1,
        quantile: BelowOne | None = None,
        clip_rate: Positive = 0.2,
        count_noise: Positive | None = None,
        delta: AboveZeroBelowOne = 1e-6,
        cohort: Positive | None = None,
        epsilon: Positive | None = None,
    ) -> None:
        nn.Module.__init__(self)
        Aggregation.__init__(self)
        self.quantile, self.clip_rate, self.count_noise = quantile, clip_rate, count_noise
        self.delta, self.cohort, self.epsilon = delta, cohort, epsilon
        self.register_buffer("z", torch.tensor(0.0 if epsilon else float(noise_multiplier), dtype=torch.float64))
        self.register_buffer("length", torch.tensor(float(clip), dtype=torch.float64))

    def check(self, n_clients: int) -> None:
        """Checks what epsilon and the noise need."""
        installed = not self.has_noise or importlib.util.find_spec("dp_accounting") is not None
        require(installed, 'aggregation: PrivateMean needs dp-accounting: pip install "fedem-lightning[privacy]"')
        require(
            self.cohort is None or self.cohort >= n_clients,
            f"aggregation.cohort: expected at least the run's own cohorts of {n_clients} clients, got {self.cohort}",
        )
        self.noise_of_updates(self.cohort or n_clients)

    @property
    def has_noise(self) -> bool:
        """Whether updates get noise."""
        return self.epsilon is not None or float(self.z) > 0

    def plan(self, sampling: Sampling) -> None:
        """Sets z so that the planned rounds spend epsilon, once.

        Raises:
            UserError: the number of rounds is not known, no noise is enough for so small an epsilon, or the count of
                short updates has too little noise for z.

        """
        if self.epsilon is None or float(self.z) > 0:
            return
        known = sampling.rounds > 0
        require(known, "aggregation.epsilon: the number of rounds must be known before; set trainer.max_epochs")
        self.z.fill_(noise_for(self.epsilon, sampling.q, sampling.rounds, self.delta))
        self.noise_of_updates(self.cohort or sampling.size)

    def report(self, sampling: Sampling) -> dict[str, Any]:
        """The guarantee for a client, whose data are all added or removed: "privacy", see `accountant.guarantee`.

        `clip` is S of the last round, `n_clients` the size of the federation that the guarantee is for, more than T
        with `cohort`.
        """
        found = guarantee(float(self.z), sampling.q, sampling.rounds, self.delta)
        n_clients = round((self.cohort or sampling.size) / sampling.q)
        more = {"clip": float(self.length), "sampling": sampling.q, "n_clients": n_clients}
        return {"privacy": found | more | {"assumptions": assumptions(sampling.deployed)}}

    def begin(self, context: RoundContext) -> Collector:
        """A running sum of clipped updates."""
        return ClippedSum(self, context)

    def noise_of_updates(self, size: float) -> float:
        """z_Delta, of which the updates' noise is S times: z for updates and count together (Andrew et al., Sec. 3.1).

        Raises:
            UserError: the count alone has less noise than z.

        """
        z = float(self.z)
        if self.quantile is None or z == 0:
            return z
        left = z**-2 - (2 * self.noise_of_count(size) * size) ** -2
        require(left > 0, f"aggregation.count_noise: the count has too little noise for a noise multiplier of {z:.3g}")
        return left**-0.5

    def noise_of_count(self, size: float) -> float:
        """The standard deviation of the noise of b, the share of short updates in a cohort of this expected size."""
        return max(0.05, 2 * float(self.z) / size) if self.count_noise is None else self.count_noise

    def follow(self, share: float) -> None:
        """S <- S exp(-eta (b - gamma)), from the noisy share b of updates that are not longer than S."""
        assert self.quantile is not None
        self.length.mul_(torch.exp(torch.tensor(-self.clip_rate * (share - self.quantile))))


class ClippedSum(Collector):
    """Adds clipped updates block by block.

    Args:
        rule: S, z and the like.
        context: of the round; theta is what every client receives.

    """

    needs_received = True

    def __init__(self, rule: PrivateMean, context: RoundContext) -> None:
        self.rule, self.parameters, self.theta = rule, set(context.parameters), context.received()
        self.expected, self.key, self.rejected = context.sampling.size, context.key, 0
        self._sums = {name: torch.zeros_like(rows[0]) for name, rows in self.theta.items()}  # [M, ...]
        self._short = torch.zeros((), dtype=torch.float64)  # sum of 1/2 for short updates, -1/2 for long ones

    def add(self, sent: Sent, clients: Tensor | None = None, received: Models | None = None) -> Tensor:
        """Adds the finite updates, each at most S long."""
        _check(sent, self.parameters)
        assert received is not None
        self._like = self._like or form_of(sent)
        finite = all_finite(sent.models)  # [C]
        self.rejected += int((~finite).sum())
        if not finite.any():
            return finite
        models, start = ({name: rows[finite] for name, rows in part.items()} for part in (sent.models, received))
        norms = update_norms(models, start, self.parameters).square().sum(dim=1).sqrt()  # over all components, [C]
        length = float(self.rule.length)
        self._short += float((norms <= length).double().sub(0.5).sum())
        scales = (length / norms).nan_to_num(1.0, 1.0).clamp(max=1.0)
        for name, rows in models.items():
            differences = rows - start[name]  # [C, M, ...]
            self._sums[name] += torch.tensordot(scales.to(rows), differences, dims=1)
        return finite

    def reduce(self, processes: Processes) -> Tensor:
        """Adds the sums of all processes; no update is too long, for all are clipped."""
        device = next(iter(self._sums.values())).device
        short = self._short.to(device)
        processes.sum([*self._sums.values(), short])
        self._short = short.cpu()
        return torch.zeros(0, dtype=torch.int64)

    def compute(self) -> Means:
        """theta plus the noisy mean; S moves where it follows a quantile."""
        rule, draws = self.rule, self._draws()
        size = self.expected if rule.cohort is None else rule.cohort
        sigma = rule.noise_of_updates(size) * float(rule.length) / size
        models = {}
        for name, total in self._sums.items():
            noise = torch.from_numpy(draws.normal(size=tuple(total.shape))).to(total)
            models[name] = self.theta[name][0] + total / self.expected + sigma * noise
        if rule.quantile is not None:
            of_count = rule.noise_of_count(size) * float(draws.normal()) if rule.has_noise else 0.0
            rule.follow(float(self._short) / self.expected + 0.5 + of_count)
        n_models = len(next(iter(models.values())))
        return Means(models, torch.ones(n_models, dtype=torch.bool), torch.tensor([self.expected], dtype=torch.float64))

    def _draws(self) -> np.random.Generator | SystemNoise:
        if self.key is None:
            return SystemNoise()
        return generator(self.key[0], Purpose.PRIVACY, self.key[1])


def _check(sent: Sent, parameters: set[str]) -> None:
    """Refuses what would be sent without noise."""
    require(
        sent.group is None and sent.weights.ndim == 1,
        "aggregation: PrivateMean has one average for all clients, the method has several",
    )
    more = [*(name for name in sent.models if name not in parameters), *sent.extras]
    named = ", ".join(more[:3])
    require(
        not more,
        "aggregation: PrivateMean adds noise to parameters only, but clients also send "
        f"{named} (statistics of BatchNorm, or the method's own numbers)",
    )
