"""Client state: declared once, then saved, exchanged between processes and shown in the clients' table."""

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor, nn

from fedem_lightning.models.client_store import ClientStore
from fedem_lightning.protocol import RemoteClients

Columns = str | tuple[str, ...] | None


class ClientStates(nn.Module):
    """Declares the buffers of clients and server. A `ClientStore` whose rows belong to clients needs no declaration."""

    _client_states: dict[str, Columns]  # buffers [T, ...], each with its columns of the clients' table
    _server_columns: dict[str, Columns]  # the same for buffers [T, ...] that the server computes
    client_axes: dict[str, int]  # of the server's buffers: the axis along which clients lie
    unsent: set[str]  # the server's buffers that no client receives
    group_state: str | None  # name of the buffer that holds each client's group
    sized_by_data: set[str]  # buffers whose shapes are known from the first round on only
    reported: set[str]  # client states whose rows clients send to the server in each round
    remote: RemoteClients | None
    deployed_before: bool
    personalizes_seen: bool

    @property
    def is_deployed(self) -> bool:
        """Whether the clients are processes of their own, or were when the checkpoint was written."""
        return self.remote is not None or self.deployed_before

    @property
    def predicts_with_own_state(self) -> bool:
        """Whether clients predict with what they keep to themselves. Default: with all of it but momentum."""
        stores = [store for store in self.client_stores().values() if store.holds == "clients" and store.names]
        return self.personalizes_seen or bool(self._client_states) or not all(store.momentum for store in stores)

    def add_client_state(
        self, name: str, rows: Tensor, columns: Columns = None, groups: bool = False, reported: bool = False
    ) -> None:
        """Declares a tensor that has a row for each client, which the client's process computes.

        Args:
            name: name of the buffer.
            rows: initial values, [T, ...]; an empty tensor takes its size from the data, or from a checkpoint.
            columns: names in clients.parquet: "alpha" for rows [T], "pi_{m}" or a tuple of names for rows [T, M].
            groups: whether the rows are each client's group, int64 [T].
            reported: whether `server_update` reads the rows of the cohort, so that clients send them in each round.

        """
        self.add_state(name, rows)
        self._client_states[name] = columns
        if reported:
            self.reported.add(name)
        if groups:
            self.group_state = name

    def add_state(
        self, name: str, tensor: Tensor, columns: Columns = None, client_axis: int | None = None, sent: bool = True
    ) -> None:
        """Declares a tensor of the server, which all processes compute alike.

        Args:
            name: name of the buffer.
            tensor: initial values; an empty tensor takes its size from the data, or from a checkpoint.
            columns: see `add_client_state`; the tensor is [T, ...] then.
            client_axis: the axis along which clients lie, T long: a client that is a process of its own receives its
                own part. With `columns` it is 0; None: the client receives all.
            sent: whether such clients receive it at all.

        """
        self.register_buffer(name, tensor)
        if columns is not None or client_axis is not None:
            self.client_axes[name] = client_axis or 0
        if not sent:
            self.unsent.add(name)
        if not tensor.numel():
            self.sized_by_data.add(name)
        if columns is not None:
            self._server_columns[name] = columns

    def client_state(self) -> Iterator[Tensor]:
        """All tensors [T, ...] with rows that the process of a client computes: its own, or the server's about it."""
        for name in (*self._client_states, *(name for name, axis in self.client_axes.items() if axis == 0)):
            yield self.get_buffer(name)
        for store in self.client_stores().values():
            if store.holds in ("clients", "served", "server"):
                yield from store.tensors()

    def remember(self, clients: Tensor) -> Callable[[], None]:
        """Copies the clients' rows (int64 [C]); the function returned puts them back."""
        buffers = [self.get_buffer(name) for name in self._client_states]
        before = [(tensor, clients.to(tensor.device)) for tensor in self.client_state()]
        rows = [tensor.index_select(0, where) for tensor, where in before]

        @torch.no_grad()
        def put_back() -> None:
            for name, tensor in zip(self._client_states, buffers, strict=True):
                if self.get_buffer(name).shape != tensor.shape:  # it has taken its size from the data since
                    setattr(self, name, tensor)
            for tensor, (_, where), kept in zip(self.client_state(), before, rows, strict=True):
                tensor[where] = kept

        return put_back

    def client_stores(self) -> dict[str, ClientStore]:
        """The stores of whole models, by name."""
        return {name: module for name, module in self.named_modules() if isinstance(module, ClientStore)}

    def client_columns(self) -> dict[str, np.ndarray]:
        """The declared columns of the clients' table, each [T]."""
        columns: dict[str, np.ndarray] = {}
        known = {} if self.is_deployed else self._client_states
        for name, declared in {**known, **self._server_columns}.items():
            rows = self.get_buffer(name).cpu().numpy()
            match declared:
                case tuple():
                    columns |= dict(zip(declared, rows.T, strict=True))
                case str() if rows.ndim == 2:
                    columns |= {declared.format(m=m): column for m, column in enumerate(rows.T)}
                case str():
                    columns[declared] = rows
        return columns

    def groups_of(self, clients: Tensor) -> Tensor:
        """The group of each of the clients [C], int64 [C]; all zeros if the algorithm makes no groups."""
        return torch.zeros_like(clients) if self.group_state is None else self.get_buffer(self.group_state)[clients]


def size_as_saved(model: ClientStates, state: dict[str, Tensor], prefix: str, *_: object) -> None:
    """A pre-hook of `load_state_dict`: buffers sized by data take the shapes of a checkpoint."""
    for name in model.sized_by_data:
        if prefix + name in state:
            setattr(model, name, getattr(model, name).new_zeros(state[prefix + name].shape))
