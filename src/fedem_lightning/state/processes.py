"""The processes of a Trainer: each computes a share of every round's clients, and their results are combined.

Every process holds the whole federation and the same state, so that any process can compute any client. Results do not
depend on the number of processes, up to the order of float sums.
"""

import os
from collections.abc import Iterable
from typing import Any

import pytorch_lightning as pl
import torch
import torch.distributed as dist
from pytorch_lightning.strategies import DDPStrategy
from torch import Tensor

from fedem_lightning.settings.errors import require


class Processes:
    """The current process, `rank` in 0..size-1, one of `size`; with 1 all exchanges do nothing."""

    def __init__(self, rank: int = 0, size: int = 1) -> None:
        self.rank, self.size = rank, size

    @classmethod
    def of(cls, trainer: pl.Trainer) -> "Processes":
        """The processes of a Trainer whose strategy has started them; UserError: several, by another one than ddp."""
        require_ddp(trainer)
        return cls(trainer.global_rank, trainer.world_size)

    def divide(self, clients: Tensor, work: Tensor, idle: bool = False) -> list[Tensor]:
        """Divides clients (int64 [C], ascending) into shares of about equal work [C], one for each rank, ascending.

        UserError: there are fewer clients than processes, and none may be `idle`.
        """
        if self.size == 1:
            return [clients]
        small = f"trainer.devices: {self.size} processes, but only {len(clients)} clients in a round"
        require(idle or len(clients) >= self.size, small)
        by_work = work.argsort(descending=True, stable=True)
        turn = torch.arange(len(clients), device=clients.device) % (2 * self.size)
        rank = torch.minimum(turn, 2 * self.size - 1 - turn)  # 0, 1, ..., 1, 0: no rank always gets the larger client
        return [clients[by_work[rank == r].sort().values] for r in range(self.size)]

    def sum(self, tensors: Iterable[Tensor]) -> None:
        """Replaces tensors (of the same shapes everywhere) by their sums over processes: one exchange per dtype."""
        if self.size == 1:
            return
        by_dtype: dict[torch.dtype, list[Tensor]] = {}
        for tensor in tensors:
            by_dtype.setdefault(tensor.dtype, []).append(tensor)
        for group in by_dtype.values():
            flat = torch.cat([tensor.flatten() for tensor in group])
            dist.all_reduce(flat)
            for tensor, part in zip(group, flat.split([t.numel() for t in group]), strict=True):
                tensor.copy_(part.view_as(tensor))

    def maximum(self, tensors: Iterable[Tensor]) -> None:
        """Replaces tensors by their largest values over all processes."""
        if self.size > 1:
            for tensor in tensors:
                dist.all_reduce(tensor, dist.ReduceOp.MAX)

    def gather(self, value: Any) -> list[Any]:
        """The values of all processes, by rank; plain objects and tensors on the CPU."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value)
        return values

    def exchange_rows(self, tensors: Iterable[Tensor], shares: list[Tensor]) -> None:
        """Gives every process the rows of tensors [T, ...] that belong to the clients of the others."""
        if self.size == 1:
            return
        for tensor in tensors:
            for rank, clients in enumerate(shares):
                where = clients.to(tensor.device)  # rows on disk stay on disk
                rows = tensor[where].to(clients.device).contiguous()
                dist.broadcast(rows, src=rank)
                if rank != self.rank:
                    tensor[where] = rows.to(tensor.device)


def require_ddp(trainer: pl.Trainer) -> None:
    """Raises UserError if the Trainer starts processes by another strategy, which would lose their results."""
    strategy = trainer.strategy
    method = getattr(strategy, "_start_method", "popen")
    expected = "trainer.strategy: expected ddp (in a notebook: one device)"
    require(method == "popen", f"{expected}, got ddp_{method}, whose processes do not hand back what they have counted")
    fits = trainer.world_size == 1 or isinstance(strategy, DDPStrategy)
    require(fits, f"{expected}, got {type(strategy).__name__}")


LAUNCH_VARIABLES = ("LOCAL_RANK", "NODE_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "OMP_NUM_THREADS")
"""Environment variables that Lightning sets for the processes that it starts."""


def launch_settings() -> tuple[set[str], int]:
    """The launch variables that are set, and torch's number of threads, which Lightning divides among processes."""
    return set(LAUNCH_VARIABLES) & os.environ.keys(), torch.get_num_threads()


def leave_processes(variables: set[str], threads: int) -> None:
    """Ends this run's process group, so that the next run of a sweep can start its own with the settings before."""
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()
    for name in set(LAUNCH_VARIABLES) - variables:
        os.environ.pop(name, None)
    torch.set_num_threads(threads)
