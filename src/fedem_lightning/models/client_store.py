"""Storage of models that stay with their clients."""

import math
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import torch
from rich.filesize import decimal
from torch import Tensor, nn

from fedem_lightning.models.tensors import Models
from fedem_lightning.settings.errors import require

MEMORY_LIMIT = 10**9
"""Largest number of bytes of rows that are kept in memory."""

CHUNK = 2**14
"""Number of columns that are mixed at a time."""


HeldBy = Literal["client", "both", "server"]
"""Who has what is about a client: itself alone; "both": it also sends it in each round; the server, which sends it."""


class ClientStore(nn.Module):
    """One row per client for every tensor of a model, in buffers; a client that was never written has the initial row.

    Above `MEMORY_LIMIT` the rows are in a file of the temporary folder (TMPDIR), which is removed with the process.

    Args:
        n_clients: T.
        like: a client's row of each tensor, [...]; all rows start as copies of it.
        held_by: who has the rows. Those that the client alone has are exchanged late (`States.collect`).
        of_clients: whether each row is about a client; else T is another number, and a client receives none.
        momentum: whether the rows are the client optimiser's state, which is reset before a test.
        levels: number of blocks; in each block every client has a row.

    UserError: the disk is too small.

    """

    written: Tensor  # bool [T]

    def __init__(
        self,
        n_clients: int,
        like: Models,
        held_by: HeldBy = "client",
        of_clients: bool = True,
        momentum: bool = False,
        levels: int = 1,
    ) -> None:
        super().__init__()
        self.names, self.held_by, self.of_clients = list(like), held_by, of_clients
        self.momentum, self.levels = momentum, levels
        self.n_bytes = n_clients * sum(tensor.nbytes for tensor in like.values())
        self.on_disk = self.n_bytes > MEMORY_LIMIT
        if self.on_disk:
            folder, need = tempfile.gettempdir(), f"a model of each client's own takes {self.n_bytes / 1e9:.1f} GB"
            free = shutil.disk_usage(folder).free
            small = f"{need}, but {folder} has {free / 1e9:.1f} GB left; set TMPDIR to a larger disk"
            require(self.n_bytes < free, small)
        self.register_buffer("written", torch.zeros(n_clients, dtype=torch.bool))
        for i, tensor in enumerate(like.values()):
            make = _mapped if self.on_disk else torch.zeros
            self.register_buffer(f"initial_{i}", tensor.detach().clone(memory_format=torch.contiguous_format))
            self.register_buffer(f"rows_{i}", make((n_clients, *tensor.shape), dtype=tensor.dtype))

    def __str__(self) -> str:
        where = f"in a temporary file of {tempfile.gettempdir()} (TMPDIR)" if self.on_disk else "in memory"
        each = decimal(round(self.n_bytes / len(self.written)))
        return f"{each} for each of {len(self.written):,} clients, {decimal(self.n_bytes)} {where}"

    def row_names(self) -> list[str]:
        """Names of the buffers with a row for each client."""
        return ["written", *(f"rows_{i}" for i in range(len(self.names)))]

    def tensors(self) -> list[Tensor]:
        """All tensors with a row for each client, [T, ...]."""
        return [self.get_buffer(name) for name in self.row_names()]

    def __getitem__(self, clients: Tensor) -> Models:
        return self.get(clients)

    def get(self, clients: Tensor, otherwise: Models | None = None) -> Models:
        """Copies of the rows of `clients` (int64 [C], or a single index), each [C, ...] or [...].

        Rows that were never written are those of `otherwise`, [C, ...], or the initial row.
        """
        written, models = self.written[clients], {}
        all_written = bool(written.all())
        for i, name in enumerate(self.names):
            initial, rows = self.get_buffer(f"initial_{i}"), self.get_buffer(f"rows_{i}")
            where = clients.to(rows.device)
            own = rows.index_select(0, where.flatten()).view(*where.shape, *initial.shape).to(initial.device)
            has = written.view(*written.shape, *[1] * initial.ndim)
            never = initial if otherwise is None else otherwise[name]
            models[name] = own if all_written else torch.where(has, own, never)
        return models

    @torch.no_grad()
    def __setitem__(self, clients: Tensor, models: Models) -> None:
        """Replaces the clients' rows by `models`, each [C, ...]."""
        for i, name in enumerate(self.names):
            rows = self.get_buffer(f"rows_{i}")
            rows.index_copy_(0, clients.to(rows.device), models[name].to(rows))
        self.written[clients] = True

    def written_rows(self) -> Models | None:
        """The rows that were written, [W, ...], by the names of their buffers; None: they are no fewer than half."""
        where = self.written.nonzero().squeeze(1)
        if 2 * len(where) >= len(self.written):
            return None
        result = {}
        for name in self.row_names()[1:]:
            rows = self.get_buffer(name)
            shape, large = (len(where), *rows.shape[1:]), len(where) * rows[:1].nbytes > MEMORY_LIMIT
            to = _mapped(shape, rows.dtype) if large else rows.new_empty(shape)
            result[name] = torch.index_select(rows, 0, where.to(rows.device), out=to)
        return result

    @torch.no_grad()
    def mix(self, clients: Tensor, w: Tensor) -> float:
        """Row i of the clients [C] <- sum_j w[j, i] row j, columns of w sum to 1; counters do not change.

        Returns the mean squared distance of the mixed rows from their mean.
        """
        new = clients[~self.written[clients]]
        if len(new):
            self[new] = self[new]
        with torch.autocast(self.written.device.type, enabled=False):  # the rows would keep the rounding
            spread = sum(_mix_rows(self.get_buffer(f"rows_{i}"), clients, w) for i in range(len(self.names)))
        return spread / len(clients)

    def mean(self, clients: Tensor, weights: Tensor | None = None) -> Models:
        """The mean of the clients' rows with `weights` [C] of any scale (None: equal), [...]; counters: the maximum."""
        weights = torch.ones_like(clients, dtype=torch.float64) if weights is None else weights.double()
        total: Models = {}
        for part, share in zip(clients.split(64), (weights / weights.sum()).split(64), strict=True):
            for name, rows in self[part].items():
                if rows.is_floating_point():
                    total[name] = total.get(name, 0) + torch.tensordot(share, rows.double(), dims=1)
                else:
                    total[name] = torch.maximum(total.get(name, rows[0]), rows.amax(dim=0))
        like = {name: self.get_buffer(f"initial_{i}").dtype for i, name in enumerate(self.names)}
        return {name: t.to(like[name]) for name, t in total.items()}

    @torch.no_grad()
    def products(self, clients: Tensor, others: Tensor) -> Tensor:
        """Inner products of written rows of two sets of clients, float64 [C, C'].

        A few columns are read at a time, so that no C x D matrix is ever on the device.
        """
        pairs = torch.zeros(len(clients), len(others), dtype=torch.float64, device=self.written.device)
        for i in range(len(self.names)):
            rows = self.get_buffer(f"rows_{i}")
            rows = rows.view(len(rows), -1)  # [T, D]
            for columns in rows.split(max(1, 64 * CHUNK // (len(clients) + len(others))), dim=1):
                a, b = (columns[which.to(rows.device)].to(pairs) for which in (clients, others))
                pairs.addmm_(a, b.T)
        return pairs

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "ClientStore":
        """Applies a change of dtype to rows on disk too; they stay on disk when other tensors move to a device."""
        if not self.on_disk:
            return super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        rows = {name: self._buffers.pop(name) for name in [n for n in self._buffers if n.startswith("rows_")]}
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, old in rows.items():
            assert old is not None
            dtype = fn(old[:0]).dtype
            self._buffers[name] = new = old if dtype == old.dtype else _mapped(tuple(old.shape), dtype)
            for part in torch.nonzero(self.written.cpu()).squeeze(1).split(1024) if new is not old else ():
                new[part] = old[part].to(dtype)
        self.n_bytes = sum(tensor.nbytes for tensor in self.tensors()[1:])
        return self


def _mix_rows(rows: Tensor, clients: Tensor, w: Tensor) -> float:
    """Mixes rows [T, ...] in place, some columns at a time; returns the sum of squared distances from their mean."""
    if not rows.is_floating_point():
        return 0.0
    rows, spread = rows.view(len(rows), -1), 0.0  # [T, D]
    where, weights = clients.to(rows.device), w.T.to(rows)
    for start in range(0, rows.shape[1], CHUNK):
        columns = rows[:, start : start + CHUNK]
        mixed = weights @ columns[where]  # [C, columns]
        columns[where] = mixed
        spread += float((mixed - mixed.mean(dim=0)).double().square().sum())
    return spread


def _mapped(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Zeros in a file without a name; it takes disk space only where it is written."""
    with tempfile.NamedTemporaryFile(prefix="fedem-lightning-", delete=False) as file:
        file.truncate(math.prod(shape) * dtype.itemsize)
    options: dict[str, Any] = {"shared": True, "size": math.prod(shape), "dtype": dtype}
    tensor = torch.from_file(file.name, **options).view(shape)
    Path(file.name).unlink()
    return tensor
