"""The state of clients and server: each tensor is declared once, with its owner, its axis of clients and its columns.

Checkpoints, the exchange between processes, clients that are processes of their own, models with room for new clients
and the clients' table follow from the declaration.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from fedem_lightning.models.client_store import ClientStore, Owner
from fedem_lightning.processes import Processes

if TYPE_CHECKING:
    from fedem_lightning.data.federation import Federation

Columns = str | tuple[str, ...] | Callable[[Tensor], Mapping[str, Tensor]] | None
"""Columns of the clients' table: "alpha" for rows [T]; "pi_{m}" or a tuple of names for rows [T, M]; or a function that
makes columns, each [T], of the rows."""


@dataclass(frozen=True)
class State:
    """What is known of a tensor."""

    owner: Owner
    client_axis: int | None  # along which clients lie; None: it is not about single clients
    columns: Columns = None

    @property
    def is_clients(self) -> bool:
        """Whether clients compute it."""
        return self.owner in (Owner.CLIENT, Owner.REPORTED)


class States:
    """The declared buffers of a module, and its client stores, which declare themselves."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.declared: dict[str, State] = {}
        self.groups: str | None = None  # name of the tensor that holds each client's group
        self.sized_by_data: set[str] = set()  # tensors whose shapes are known from the first round on only
        self.homes: list[Tensor] = []  # for each process the clients that it trains, int64, ascending
        self.newer = torch.zeros(0, dtype=torch.bool)  # [T]: whose newest rows other processes lack
        module.register_load_state_dict_pre_hook(_size_as_saved)

    def declare(
        self,
        name: str,
        tensor: Tensor,
        owner: Owner,
        columns: Columns = None,
        client_axis: int | None = None,
        groups: bool = False,
        persistent: bool = True,
    ) -> None:
        """Makes a buffer of the module.

        Args:
            name, tensor, owner: an empty tensor takes its size from the data, or from a checkpoint.
            columns: of the clients' table; the tensor is [T, ...] then.
            client_axis: the axis along which clients lie, T long; it is 0 for what clients own, and for columns. None:
                the tensor is not about single clients.
            groups: whether it is each client's group, int64 [T].
            persistent: whether checkpoints hold it.

        """
        self.module.register_buffer(name, tensor, persistent)
        of_clients = owner in (Owner.CLIENT, Owner.REPORTED) or columns is not None
        self.declared[name] = State(owner, 0 if client_axis is None and of_clients else client_axis, columns)
        if not tensor.numel():
            self.sized_by_data.add(name)
        if groups:
            self.groups = name

    def stores(self) -> dict[str, ClientStore]:
        """The stores of whole models, by name."""
        return {name: module for name, module in self.module.named_modules() if isinstance(module, ClientStore)}

    def all(self) -> dict[str, State]:
        """Every declared tensor and those of the stores, by their names in the `state_dict`."""
        found = dict(self.declared)
        for name, store in self.stores().items():
            row = State(store.owner, 0 if store.of_clients else None)
            parts = ["written", *(f"rows_{i}" for i in range(len(store.names)))]
            found |= {f"{name}.{part}": row for part in parts}
        return found

    def of(self, *owners: Owner) -> dict[str, Tensor]:
        """The declared tensors of these owners, without stores."""
        return {name: self.module.get_buffer(name) for name, s in self.declared.items() if s.owner in owners}

    def rows(self, stores: bool = True, alone: bool = True) -> Iterator[Tensor]:
        """All tensors [T, ...] with a row for each client, which the process of that client computes.

        `stores`: also those of stores; `alone`: also of those that only the client's own training and scores read.
        """
        for name, state in self.declared.items():
            if state.client_axis == 0:
                yield self.module.get_buffer(name)
        for store in self.stores().values() if stores else ():
            if store.of_clients and (alone or not store.alone):
                yield from store.tensors()

    @property
    def stay_with_clients(self) -> bool:
        """Whether clients keep anything but momentum to themselves."""
        stores = [s for s in self.stores().values() if s.owner is Owner.CLIENT and s.of_clients and s.names]
        return any(s.is_clients for s in self.declared.values()) or not all(store.momentum for store in stores)

    def deal(self, processes: Processes, federation: "Federation", cohort: Tensor) -> list[Tensor] | None:
        """The clients of the cohort (int64 [C], ascending) that each process trains, always the same ones.

        None: no store has rows that only their own client reads. Else all clients that train are divided once, into
        shares of about equal numbers of samples.
        """
        if processes.size == 1 or not any(store.alone for store in self.stores().values()):
            return None
        if not self.homes:
            clients = federation.clients()
            self.homes = processes.deal(clients, federation.splits["train"].counts(clients))
            self.newer = torch.zeros(len(federation.names), dtype=torch.bool, device=clients.device)
        self.newer[cohort] = True
        return [home[torch.isin(home, cohort)] for home in self.homes]

    def collect(self, processes: Processes) -> None:
        """Gives all processes the newest rows of every client, which only the process that trains it has."""
        if self.newer.any():
            stores = [store for store in self.stores().values() if store.alone]
            shares = [home[self.newer[home]] for home in self.homes]
            processes.exchange_rows([tensor for store in stores for tensor in store.tensors()], shares)
            self.newer[:] = False

    def shorten(self, saved: dict[str, Tensor]) -> None:
        """Takes from a `state_dict` the rows of stores that were never written, where they are more than half."""
        for name, store in self.stores().items():
            saved.update({f"{name}.{row}": rows for row, rows in (store.few() or {}).items()})

    def lengthen(self, saved: dict[str, Tensor]) -> None:
        """The inverse of `shorten`: the rows go into the stores, whose tensors stand in `saved` afterwards."""
        for name, store in self.stores().items():
            written = saved[f"{name}.written"]
            rows = {row: saved[f"{name}.{row}"] for row in (f"rows_{i}" for i in range(len(store.names)))}
            some = {row: part for row, part in rows.items() if len(part) != len(written)}
            store.take(written, some)
            saved.update({f"{name}.{row}": store.get_buffer(row) for row in some})

    def diverged(self, clients: Tensor) -> Tensor:
        """Which of the clients (int64 [C]) keep a number that is not finite, bool [C]."""
        own = [self.module.get_buffer(name) for name, state in self.declared.items() if state.is_clients]
        for store in self.stores().values():
            own += store.tensors()[1:] if store.owner is Owner.CLIENT and store.of_clients else []
        found = torch.zeros(len(clients), dtype=torch.bool, device=clients.device)
        for tensor in own:
            rows = tensor.index_select(0, clients.to(tensor.device)).unsqueeze(1).flatten(1)
            found |= ~rows.isfinite().all(dim=1).to(found.device)
        return found

    def remember(self, clients: Tensor, stores: bool = True) -> Callable[..., None]:
        """Copies the clients' rows (int64 [C]), of stores too or not.

        The function returned puts them back, those of the clients for which its argument, bool [C], is True; None: all.
        """
        buffers = {name: self.module.get_buffer(name) for name, s in self.declared.items() if s.is_clients}
        before = [(tensor, clients.to(tensor.device)) for tensor in self.rows(stores)]
        kept = [tensor.index_select(0, where) for tensor, where in before]

        @torch.no_grad()
        def put_back(some: Tensor | None = None) -> None:
            for name, tensor in buffers.items():
                if self.module.get_buffer(name).shape != tensor.shape:  # it has taken its size from the data since
                    setattr(self.module, name, tensor)
            for tensor, (_, where), rows in zip(self.rows(stores), before, kept, strict=True):
                chosen = slice(None) if some is None else some.to(tensor.device)
                tensor[where[chosen]] = rows[chosen]

        return put_back

    def forget_momentum(self, clients: Tensor) -> None:
        """The clients (int64 [C]) start without momentum: that of an earlier client, or of an earlier test."""
        for store in self.stores().values():
            if store.momentum:
                store.written[clients] = False

    def columns(self, with_clients: bool = True) -> dict[str, np.ndarray]:
        """The declared columns of the clients' table, each [T]; of what clients own only `with_clients`."""
        columns: dict[str, Tensor] = {}
        for name, state in sorted(self.declared.items(), key=lambda item: not item[1].is_clients):
            rows = self.module.get_buffer(name)
            match state.columns:
                case None:
                    continue
                case _ if state.is_clients and not with_clients:
                    continue
                case tuple() as names:
                    columns |= dict(zip(names, rows.T, strict=True))
                case str(text) if rows.ndim == 2:
                    columns |= {text.format(m=m): column for m, column in enumerate(rows.T)}
                case str(text):
                    columns[text] = rows
                case make:
                    columns |= make(rows)
        return {name: column.cpu().numpy() for name, column in columns.items()}

    def groups_of(self, clients: Tensor) -> Tensor:
        """The group of each of the clients [C], int64 [C]; all zeros if there are no groups."""
        return torch.zeros_like(clients) if self.groups is None else self.module.get_buffer(self.groups)[clients]


def _size_as_saved(module: nn.Module, saved: dict[str, Tensor], prefix: str, *_: object) -> None:
    """A pre-hook of `load_state_dict`: buffers sized by data take the shapes of a checkpoint."""
    states = getattr(module, "states", None)
    for name in states.sized_by_data if isinstance(states, States) else ():
        if prefix + name in saved:
            setattr(module, name, getattr(module, name).new_zeros(saved[prefix + name].shape))
