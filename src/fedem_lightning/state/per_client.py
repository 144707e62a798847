"""What a method is made of, and what clients and the server keep between rounds.

A method declares what is about single clients, by assignment. Checkpoints, the exchange between processes, clients that
are processes of their own, models with room for new clients and the clients' table follow from the declaration. Other
buffers of a method are the server's.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from fedem_lightning.data.federation import Federation
from fedem_lightning.models.client_store import ClientStore, HeldBy
from fedem_lightning.state.processes import Processes

Columns = str | tuple[str, ...] | Callable[[Tensor], Mapping[str, Tensor]] | None
"""Of the clients' table: "alpha" for rows [T]; "pi_{m}" or names for rows [T, M]; a function rows -> columns [T]."""


@dataclass(frozen=True)
class PerClient:
    """A tensor with a row for each client, [T, ...], as a method declares it; see `Method.per_client`."""

    tensor: Tensor
    column: Columns = None
    held_by: HeldBy = "client"


class States:
    """The declared tensors of a module, and its client stores."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.declared: dict[str, PerClient] = {}
        self.sized_by_data: set[str] = set()  # buffers whose shapes are known from the first round on only
        self.shares: list[Tensor] = []  # for each process the clients that it always trains, int64, ascending
        self.changed = torch.zeros(0, dtype=torch.bool)  # [T]: whose newest rows other processes lack
        module.register_load_state_dict_pre_hook(_size_as_saved)

    def stores(self) -> dict[str, ClientStore]:
        """The stores of whole models, by name."""
        return {name: module for name, module in self.module.named_modules() if isinstance(module, ClientStore)}

    def rows(self, stores: bool = True, own: bool = True) -> Iterator[Tensor]:
        """All tensors [T, ...] with a row for each client, which the process of that client computes.

        `stores`: also those of stores; `own`: also of those that only the client's own training and scores read.
        """
        yield from (self.module.get_buffer(name) for name in self.declared)
        for store in self.stores().values() if stores else ():
            if store.of_clients and (own or store.held_by != "client"):
                yield from store.tensors()

    def of(self, *held_by: HeldBy) -> dict[str, Tensor]:
        """The declared tensors that are held so, without stores."""
        return {name: self.module.get_buffer(name) for name, s in self.declared.items() if s.held_by in held_by}

    @property
    def stay_with_clients(self) -> bool:
        """Whether clients keep anything but momentum to themselves."""
        kept = (s.held_by == "client" and s.names and not s.momentum for s in self.stores().values())
        return bool(self.of("client")) or any(kept)

    def divide(self, processes: Processes, federation: Federation, cohort: Tensor) -> list[Tensor] | None:
        """The clients of the cohort (int64 [C], ascending) that each process trains, always the same ones.

        None: no store has rows that only their own client reads.
        """
        if processes.size == 1 or not any(store.held_by == "client" for store in self.stores().values()):
            return None
        if not self.shares:
            clients = federation.clients()
            self.shares = processes.divide(clients, federation.splits["train"].counts(clients))
            self.changed = torch.zeros(len(federation.names), dtype=torch.bool, device=clients.device)
        self.changed[cohort] = True
        return [share[torch.isin(share, cohort)] for share in self.shares]

    def collect(self, processes: Processes) -> None:
        """Gives all processes the newest rows of every client, which only the process that trains it has."""
        if self.changed.any():
            stores = [store for store in self.stores().values() if store.held_by == "client"]
            shares = [share[self.changed[share]] for share in self.shares]
            processes.exchange_rows([tensor for store in stores for tensor in store.tensors()], shares)
            self.changed[:] = False

    def without_unwritten(self, saved: dict[str, Tensor]) -> None:
        """Takes from a `state_dict` the rows of stores that were never written, where these are more than half."""
        for name, store in self.stores().items():
            saved.update({f"{name}.{row}": rows for row, rows in (store.written_rows() or {}).items()})

    def with_unwritten(self, saved: dict[str, Tensor]) -> None:
        """The inverse of `without_unwritten`: rows go into the stores, whose tensors stand in `saved` afterwards."""
        for name, store in self.stores().items():
            written = saved[f"{name}.written"]
            for row in store.row_names()[1:]:
                some, rows = saved[f"{name}.{row}"], store.get_buffer(row)
                if len(some) != len(written):
                    rows.index_copy_(0, written.nonzero().squeeze(1).to(rows.device), some.to(rows))
                    saved[f"{name}.{row}"] = rows

    def diverged(self, clients: Tensor) -> Tensor:
        """Which of the clients (int64 [C]) keep a number that is not finite, bool [C]."""
        own = list(self.of("client", "both").values())
        for store in self.stores().values():
            own += store.tensors()[1:] if store.held_by != "server" and store.of_clients else []
        bad = torch.zeros(len(clients), dtype=torch.bool, device=clients.device)
        for tensor in own:
            rows = tensor.index_select(0, clients.to(tensor.device)).unsqueeze(1).flatten(1)
            finite = rows.sum(dim=1).isfinite()
            if rows.device.type != "cpu" or not finite.all():  # a sum may overflow; on a GPU the CPU would wait for it
                finite = rows.isfinite().all(dim=1)
            bad |= ~finite.to(bad.device)
        return bad

    def remember(self, clients: Tensor, stores: bool = True) -> Callable[..., None]:
        """Copies the clients' rows (int64 [C]), of stores too or not; returns what puts them back.

        Its argument, bool [C], says for which of the clients; None: all.
        """
        buffers = self.of("client", "both")
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
        for name, state in sorted(self.declared.items(), key=lambda item: item[1].held_by == "server"):
            rows = self.module.get_buffer(name)
            if state.column is None or (state.held_by != "server" and not with_clients):
                continue
            if callable(state.column):
                columns |= state.column(rows)
            elif isinstance(state.column, tuple):
                columns |= dict(zip(state.column, rows.T, strict=True))
            elif rows.ndim == 2:
                columns |= {state.column.format(m=m): column for m, column in enumerate(rows.T)}
            else:
                columns[state.column] = rows
        return {name: column.cpu().numpy() for name, column in columns.items()}


def _size_as_saved(module: nn.Module, saved: dict[str, Tensor], prefix: str, *_: object) -> None:
    """A pre-hook of `load_state_dict`: buffers sized by data take the shapes of a checkpoint."""
    states = getattr(module, "states", None)
    for name in states.sized_by_data if isinstance(states, States) else ():
        if prefix + name in saved:
            setattr(module, name, getattr(module, name).new_zeros(saved[prefix + name].shape))
