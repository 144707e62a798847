"""Central differential privacy for clients: the mean of clipped updates, with Gaussian noise.

McMahan, Ramage, Talwar, Zhang: "Learning Differentially Private Recurrent Language Models", ICLR 2018, arXiv
1710.06963 (DP-FedAvg, fixed denominator). Andrew, Thakkar, McMahan, Ramaswamy: "Differentially Private Learning with
Adaptive Clipping", NeurIPS 2021, arXiv 1905.03871, Algorithm 1.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn

from fedem_lightning.aggregate.accountant import epsilon_of, noise_for
from fedem_lightning.aggregate.base import Aggregation, Collector, Means, RoundContext, Sampling, Update, all_finite
from fedem_lightning.aggregate.gathered import update_norms
from fedem_lightning.data.randomness import Purpose, SystemNoise, generator
from fedem_lightning.settings.errors import imported, require
from fedem_lightning.settings.ranges import AboveZeroBelowOne, BelowOne, NotNegative, Positive
from fedem_lightning.state.processes import Processes

CLIP_RATE = 0.2
"""eta, the rate at which S follows the quantile, as in the paper."""
SIMULATED = (
    "nobody else knows the seed, from which cohorts and noise are drawn, by a generator that is not cryptographic"
)
DEPLOYED = "nobody but the server knows who is in a cohort; cohorts are drawn from its secret, noise from the system"
OF_ALL = (
    "only models are published, not scores, metrics, or the states that clients keep",
    "nothing was chosen by looking at these clients' data: their number, the form of samples, the settings",
)
"""What the guarantee of a run assumes, whose clients are processes of their own or not; docs/privacy.md."""


class PrivateMean(Aggregation, nn.Module):
    """theta + (1 / (q T)) (sum_t min(1, S / |d_t|) d_t + N(0, z^2 S^2)), where d_t = theta_t - theta.

    |d_t| is the length over the trained parameters of all M components together, so that one S bounds what a client can
    change. Every client is in a cohort with probability q, independently of the others; the mean is over the expected
    size of a cohort, q T. A round without a client has its noise alone.

    Args:
        noise_multiplier: z. 0: no noise, and no privacy.
        clip: S; with `quantile` the first one.
        quantile: gamma: S follows the quantile of the updates' lengths, S <- S exp(-0.2 (b - gamma)), where b is the
            share of the cohort with |d_t| <= S, with noise of its own. The server adds 1/2 for such a client and -1/2
            for another, so that a client moves the sum by 1/2. z is kept for updates and count together: the updates
            get more noise, at most 3 % (`noise_of_count`). None: S stays.
        delta: of (epsilon, delta).
        cohort: the expected size of a cohort for which the noise is meant, at least q T; None: q T. A simulation of few
            clients then has the noise and the epsilon of a federation with so many.
        epsilon: what the planned rounds shall spend: z follows before the first one. None: z is `noise_multiplier`.

    """

    samples_independently = True
    length: Tensor  # S, []
    z: Tensor  # []; 0 until it is chosen for an epsilon

    def __init__(
        self,
        noise_multiplier: NotNegative = 1.0,
        clip: Positive = 0.1,
        quantile: BelowOne | None = None,
        delta: AboveZeroBelowOne = 1e-6,
        cohort: Positive | None = None,
        epsilon: Positive | None = None,
    ) -> None:
        super().__init__()
        self.quantile, self.delta, self.cohort, self.epsilon = quantile, delta, cohort, epsilon
        self.register_buffer("z", torch.tensor(0.0 if epsilon else float(noise_multiplier), dtype=torch.float64))
        self.register_buffer("length", torch.tensor(float(clip), dtype=torch.float64))

    def check(self, n_clients: int) -> None:
        """Checks that dp-accounting is there, and that `cohort` is not smaller than the run's own cohorts."""
        if self.epsilon is not None or float(self.z) > 0:
            imported("dp_accounting", "privacy", "aggregation")
        own = f"the run's own cohorts of {n_clients} clients"
        enough = self.cohort is None or self.cohort >= n_clients
        require(enough, f"aggregation.cohort: expected at least {own}, got {self.cohort}")

    def plan(self, sampling: Sampling) -> None:
        """Sets z, once, so that the planned rounds spend epsilon; UserError: their number is unknown, or no z does."""
        if self.epsilon is None or float(self.z) > 0:
            return
        known = sampling.rounds > 0
        require(known, "aggregation.epsilon: the number of rounds must be known before; set trainer.max_epochs")
        self.z.fill_(noise_for(self.epsilon, sampling.q, sampling.rounds, self.delta))

    def report(self, sampling: Sampling) -> dict[str, Any]:
        """What these rounds have spent for a client, whose data are all added or removed: "privacy".

        epsilon is an upper bound (None: infinite), `clip` S of the last round, `n_clients` the size of the federation
        that the guarantee is for, more than T with `cohort`.
        """
        z = float(self.z)
        spent = epsilon_of(z, sampling.q, sampling.rounds, self.delta)
        epsilon, accountant = spent if math.isfinite(spent.value) else (None, None)
        return {
            "privacy": {
                "epsilon": epsilon,
                "accountant": accountant,
                "delta": self.delta,
                "noise_multiplier": z,
                "clip": float(self.length),
                "sampling": sampling.q,
                "n_clients": round((self.cohort or sampling.size) / sampling.q),
                "assumptions": [DEPLOYED if sampling.deployed else SIMULATED, *OF_ALL],
            }
        }

    def begin(self, context: RoundContext) -> Collector:
        """A running sum of clipped updates."""
        return ClippedSum(self, context)

    def noise_of_updates(self, size: float) -> float:
        """z_Delta, of which the updates' noise is S times: the count takes a part of z (Andrew et al., Sec. 3.1)."""
        z = float(self.z)
        if self.quantile is None or z == 0:
            return z
        return float((z**-2 - (2 * self.noise_of_count(size) * size) ** -2) ** -0.5)

    def noise_of_count(self, size: float) -> float:
        """The standard deviation of the noise of b: 0.05, as in the paper, but at least that of 2 z clients."""
        return max(0.05, 2 * float(self.z) / size)


class ClippedSum(Collector):
    """Adds clipped updates block by block."""

    def __init__(self, rule: PrivateMean, context: RoundContext) -> None:
        self.rule, self.context, self.theta = rule, context, context.start()  # from which every client starts
        self._sums = {name: torch.zeros_like(rows[0]) for name, rows in self.theta.items()}  # [M, ...]
        self._short = torch.zeros((), dtype=torch.float64)  # sum of 1/2 for short updates, -1/2 for long ones

    def add(self, update: Update, clients: Tensor | None = None) -> Tensor:
        """Adds the finite updates, each at most S long."""
        more = [*(name for name in update.models if name not in self.context.parameters), *update.extras]
        message = f"clients also send {', '.join(more[:3])} (statistics of BatchNorm, or the method's own numbers)"
        require(not more, f"aggregation: PrivateMean adds noise to parameters only, but {message}")
        one = update.group is None and update.weights.ndim == 1
        require(one, "aggregation: PrivateMean has one average for all clients, the method has several")
        self.like = self.like or update.form()
        finite = all_finite(update.models)  # [C]
        if not finite.any():
            return finite
        kept = update.of(finite)
        norms = update_norms(kept, self.context.parameters).square().sum(dim=1).sqrt()  # all components, [C]
        length = float(self.rule.length)
        self._short += float((norms <= length).double().sub(0.5).sum())
        scales = (length / norms).nan_to_num(1.0, 1.0).clamp(max=1.0)
        for name, rows in kept.models.items():
            differences = rows - kept.start[name]  # [C, M, ...]
            self._sums[name] += torch.tensordot(scales.to(rows), differences, dims=1)
        return finite

    def reduce(self, processes: Processes) -> None:
        """Adds the sums of all processes."""
        short = self._short.to(next(iter(self._sums.values())).device)
        processes.sum([*self._sums.values(), short])
        self._short = short.cpu()

    def compute(self) -> Means:
        """theta plus the noisy mean; S moves where it follows a quantile."""
        rule, key, expected = self.rule, self.context.key, self.context.sampling.size
        draws = SystemNoise() if key is None else generator(key[0], Purpose.PRIVACY, key[1])
        size = rule.cohort or expected
        sigma = rule.noise_of_updates(size) * float(rule.length) / size
        models = {}
        for name, total in self._sums.items():
            noise = torch.from_numpy(draws.normal(size=tuple(total.shape))).to(total)
            models[name] = self.theta[name][0] + total / expected + sigma * noise
        if rule.quantile is not None:
            of_count = rule.noise_of_count(size) * float(draws.normal()) if float(rule.z) > 0 else 0.0
            share = float(self._short) / expected + 0.5 + of_count
            rule.length.mul_(torch.exp(torch.tensor(-CLIP_RATE * (share - rule.quantile))))
        n_models = len(next(iter(models.values())))
        return Means(models, torch.ones(n_models, dtype=torch.bool), torch.tensor([expected], dtype=torch.float64))
