"""Populations that are too large to store: samples are computed from their position whenever they are needed."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, overload

import torch
from annotated_types import MaxLen, MinLen, Predicate
from scipy.special import gammaincinv
from torch import Tensor

from fedem_lightning.data.datamodule import FederatedDataModule
from fedem_lightning.data.federation import Federation
from fedem_lightning.data.splits import SPLITS, HoldOut
from fedem_lightning.data.synthetic import BYTES_OF_A_CLIENT, draw_components
from fedem_lightning.randomness import Purpose, fold, hash32
from fedem_lightning.settings.check import grouped, require_memory
from fedem_lightning.settings.ranges import Count, NotNegative, Positive, PositiveInt
from fedem_lightning.tasks import BinaryClassification

SampleCounts = Annotated[
    Sequence[Count],
    MinLen(3),
    MaxLen(3),
    Predicate(lambda counts: counts[0] > 0),
    "three whole numbers, for train (1 at least), val and test",
]


class MixturePopulation(FederatedDataModule):
    """`SyntheticMixture` with a fixed number of samples for each client and any number of clients; nothing is stored.

    A sample is a function of (seed, client, number).

    Args:
        n_clients: T.
        n_components: M.
        dimension: d.
        samples: numbers of samples of each client for train, val and test.
        alpha: concentration of the mixture weights.
        noise: standard deviation of eps.
        options: those of `HoldOut`.

    """

    def __init__(
        self,
        n_clients: PositiveInt = 1_000_000,
        n_components: PositiveInt = 3,
        dimension: PositiveInt = 50,
        samples: SampleCounts = (20, 5, 25),
        alpha: Positive = 0.4,
        noise: NotNegative = 1.0,
        **options: Annotated[Any, HoldOut],
    ) -> None:
        (held_out,) = grouped(options, HoldOut)
        require_memory("dimension", 8 * n_components * dimension, f"{n_components} components of {dimension} numbers")
        require_memory("samples", sum(samples) * (4 * dimension + 8), f"a client with {sum(samples)} samples")
        require_memory("n_clients", n_clients * BYTES_OF_A_CLIENT, f"{n_clients} clients and their numbers of samples")
        theta = torch.from_numpy(draw_components(n_components, dimension, held_out.seed)).float()
        names = NumberedNames(n_clients)
        starts = [0, samples[0], samples[0] + samples[1]]
        splits = {
            name: EvenSplit(n_clients, sum(samples), start, size)
            for name, start, size in zip(SPLITS, starts, samples, strict=True)
        }
        super().__init__(
            Federation(
                GeneratedMixture(theta, sum(samples), alpha, noise, held_out.seed),
                splits,
                names,
                torch.from_numpy(held_out.seen(names)),
                BinaryClassification(),
                notes={"generated": "samples are computed when they are needed; nothing is stored"},
            )
        )


class NumberedNames(Sequence[str]):
    """The sequence of names "0", "1", ..., which are not stored."""

    def __init__(self, n: int) -> None:
        self._range = range(n)

    def __len__(self) -> int:
        return len(self._range)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        picked = self._range[index]
        return str(picked) if isinstance(picked, int) else [str(i) for i in picked]


@dataclass(frozen=True)
class EvenSplit:
    """A split in which client t owns the positions t * stride + start + (0, ..., size - 1): see `Split`."""

    n_clients: int
    stride: int
    start: int
    size: int

    def __len__(self) -> int:
        return self.n_clients * self.size

    def counts(self, clients: Tensor | None = None) -> Tensor:
        """Samples of each client; see `Split.counts`."""
        return torch.full((self.n_clients,), self.size) if clients is None else torch.full_like(clients, self.size)

    def positions(self, clients: Tensor) -> tuple[Tensor, Tensor]:
        """Positions of the clients' samples; see `Split.positions`."""
        owner = torch.arange(len(clients), device=clients.device).repeat_interleave(self.size)
        within = torch.arange(self.size, device=clients.device).repeat(len(clients))
        return clients[owner] * self.stride + self.start + within, owner

    def to(self, device: torch.device | str) -> "EvenSplit":
        """The split unchanged: it holds no tensors."""
        return self

    def fingerprint(self) -> list[Tensor]:
        """The four numbers that define the split."""
        return [torch.tensor([self.n_clients, self.stride, self.start, self.size])]


class GeneratedMixture:
    """Samples of `MixturePopulation` by position, see `samples.Samples`; position p belongs to client p // per_client.

        x ~ U([-1, 1]^d),  z ~ Categorical(pi_t),  eps ~ N(0, noise^2)
        y ~ Bernoulli(sigmoid(<x, theta_z> + eps))

    Args:
        theta: the components, [M, d].
        per_client: number of samples of a client in all splits together.
        alpha: of pi_t ~ Dirichlet(alpha); noise: standard deviation of eps; seed: of all draws.

    """

    def __init__(self, theta: Tensor, per_client: int, alpha: float, noise: float, seed: int) -> None:
        self.theta, self.per_client, self.alpha, self.noise, self.seed = theta, per_client, alpha, noise, seed
        self.in_shape: tuple[int, ...] = (theta.shape[1],)
        self._last: tuple[Tensor, Tensor] | None = None

    @property
    def device(self) -> torch.device:
        """The device of theta and of the samples."""
        return self.theta.device

    def features(self, index: Tensor, dtype: torch.dtype) -> Tensor:
        """Features [*S, d]. The last result is kept, because labels are usually read next and depend on it."""
        if self._last is None or not torch.equal(self._last[0], index):
            feature = torch.arange(self.theta.shape[1], device=index.device)
            self._last = index, 2 * self._uniform(0, index.unsqueeze(-1), feature) - 1
        return self._last[1].to(dtype)

    def labels(self, index: Tensor) -> Tensor:
        """Labels, int64 [*S]."""
        scores = self.features(index, torch.float32) @ self.theta.T  # [*S, M]
        pi = self.mixture_weights(index // self.per_client)  # [*S, M]
        z = (self._uniform(1, index).unsqueeze(-1) > pi.cumsum(-1)).sum(-1).clamp(max=len(self.theta) - 1)
        eps = self.noise * torch.special.ndtri(self._uniform(2, index))
        p = torch.sigmoid(scores.gather(-1, z.unsqueeze(-1)).squeeze(-1) + eps)
        return (self._uniform(3, index) < p).long()

    def mixture_weights(self, clients: Tensor) -> Tensor:
        """pi_t ~ Dirichlet(alpha), as gamma draws divided by their sum: client int64 [*S] -> float32 [*S, M]."""
        known, where = clients.unique(return_inverse=True)
        component = torch.arange(len(self.theta), device=clients.device)
        u = self._uniform(4, known.unsqueeze(-1), component).double().cpu().numpy()
        gamma = torch.from_numpy(gammaincinv(self.alpha, u)).clamp(min=1e-30)
        return (gamma / gamma.sum(dim=1, keepdim=True)).float().to(clients.device)[where]

    def _uniform(self, what: int, *key: Tensor) -> Tensor:
        """Uniform float32 numbers in (0, 1), functions of (seed, what, key); keys may exceed 32 bits."""
        folded: Tensor = fold(self.seed, Purpose.SYNTHETIC, what)
        for part in key:
            folded = fold(folded, part ^ hash32(part >> 32))
        return ((folded >> 9).float() + 0.5) * 2.0**-23

    def to(self, device: torch.device | str) -> "GeneratedMixture":
        """The same samples on another device."""
        return GeneratedMixture(self.theta.to(device), self.per_client, self.alpha, self.noise, self.seed)

    def fingerprint(self) -> list[Tensor]:
        """The values that determine the samples; then once more the settings, which float32 has rounded."""
        settings = [self.seed, self.per_client, self.alpha, self.noise]
        labels = torch.cat([torch.tensor(settings), self.theta.cpu().flatten()])
        return [labels, torch.tensor(self.seed), torch.tensor(settings, dtype=torch.float64)]
