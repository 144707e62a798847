"""Room for clients that a trained algorithm has not seen: a copy with more rows of client state."""

import copy
from dataclasses import dataclass

import torch
from torch import Tensor

from fedem_lightning.data.federation import Federation
from fedem_lightning.data.samples import Domains, Samples
from fedem_lightning.data.schema import Schema
from fedem_lightning.data.splits import Split, splits_by_client
from fedem_lightning.method import Method
from fedem_lightning.models.parts import users_network
from fedem_lightning.settings.errors import require


def grown(algorithm: Method, n_more: int) -> Method:
    """A copy of an algorithm for T + n_more clients; the first T have the state that they have.

    Every tensor that has an axis of clients keeps its entries in the leading corner; the rest is as at the start.
    """
    n_clients, source = algorithm.n_clients + n_more, users_network(algorithm.components[0])
    arguments = {**algorithm.made_with, "n_clients": n_clients, "backbone": lambda: copy.deepcopy(source)}
    other = type(algorithm)(**arguments).to(algorithm.device, algorithm.parameter_dtype)
    vars(other.statistics).update(copy.deepcopy(vars(algorithm.statistics)))
    other.federation_digest, other.schema = algorithm.federation_digest, algorithm.schema
    stacked = {f"{name}.": store.levels for name, store in algorithm.states.stores().items() if store.levels > 1}
    old, new = algorithm.state_dict(), other.state_dict()
    for name, tensor in old.items():
        levels = next((n for prefix, n in stacked.items() if name.startswith(prefix) and "initial" not in name), 1)
        new[name] = _in_corner(tensor, new[name], levels)
    other.load_state_dict(new)
    return other


def _in_corner(old: Tensor, new: Tensor, levels: int) -> Tensor:
    """`new` with `old` in its leading corner; axes that the data sizes, 0 in `new`, have their length in `old`."""
    if old.ndim != new.ndim:  # the data sized it, and it has no axis of clients
        return old
    shape = [after or before for before, after in zip(old.shape, new.shape, strict=True)]
    filled = new if list(new.shape) == shape else new.new_zeros(shape)
    parts = zip(old.tensor_split(levels), filled.tensor_split(levels), strict=True) if levels > 1 else [(old, filled)]
    for before, after in parts:
        after[tuple(slice(n) for n in before.shape)] = before
    return filled


@dataclass(frozen=True)
class Remembered(Split):
    """The samples of new clients, beside clients of which only the numbers of samples are known."""

    n_known: Tensor  # int64 [T']: samples that are not there any more

    def counts(self, clients: Tensor | None = None) -> Tensor:
        """Samples of each of `clients` (default: of all), int64."""
        return super().counts(clients) + (self.n_known if clients is None else self.n_known[clients])

    def positions(self, clients: Tensor) -> tuple[Tensor, Tensor]:
        """Positions of the samples of `clients`, and their owners; UserError: those of one are not there any more."""
        gone = bool(self.n_known[clients].any())
        require(not gone, "the method needs the training samples of the run's clients, which are not here")
        return super().positions(clients)

    def thinned(self, clients: Tensor, fraction: float, seed: int) -> "Remembered":
        """The same with a random subset of the samples of `clients`."""
        split = super().thinned(clients, fraction, seed)
        return Remembered(split.index, split.offsets, self.n_known)

    def to(self, device: torch.device | str) -> "Remembered":
        """The same split on another device."""
        split = super().to(device)
        return Remembered(split.index, split.offsets, self.n_known.to(device))

    def fingerprint(self) -> list[Tensor]:
        """The tensors that a digest must include."""
        return [*super().fingerprint(), self.n_known]


def federation_of(
    schema: Schema, samples: Samples, clients: Tensor, split: Tensor, names: tuple[str, ...]
) -> Federation:
    """A federation of a run's T clients, whose samples are not there, and clients with new samples.

    `names` are those of the K clients that the run did not have; each new sample has its client, int64 [n], below
    T + K, and its split, 0 train, 1 val, 2 test, int64 [n].
    """
    n_clients = schema.n_clients + len(names)
    result = splits_by_client(clients.numpy(), split.numpy(), n_clients)
    splits = {n: Remembered(s.index, s.offsets, torch.zeros(n_clients, dtype=torch.int64)) for n, s in result.items()}
    known = splits["train"].n_known
    known[: schema.n_clients] = schema.n_train
    known[clients.unique()] = 0
    seen = torch.zeros(n_clients, dtype=torch.bool)
    seen[: schema.n_clients] = schema.seen
    all_names = tuple(schema.name(t) for t in range(schema.n_clients)) + names
    domains = None if schema.domains is None else Domains(schema.domains, torch.full_like(clients, -1))
    return Federation(samples, splits, all_names, seen, schema.task, domains=domains, features=schema.features)
