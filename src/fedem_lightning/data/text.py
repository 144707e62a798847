"""Next-character prediction with one client for each speaking role: Shakespeare."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch

from fedem_lightning.data.arrays import check_clients, check_length
from fedem_lightning.data.datamodule import FederatedDataModule
from fedem_lightning.data.federation import Federation
from fedem_lightning.data.partitions import choose_clients
from fedem_lightning.data.samples import Windows
from fedem_lightning.data.sources import load_arrays
from fedem_lightning.data.splits import Splitting
from fedem_lightning.data.tasks import Classification
from fedem_lightning.settings.check import grouped
from fedem_lightning.settings.errors import require
from fedem_lightning.settings.ranges import PositiveInt, ShareOrNumber

SENTENCE_END = re.compile(rb"[.!?]+")


class TextDataModule(FederatedDataModule):
    """Windows of each role's text; the target is the next character at every position.

    A role's text is cut in order into train, val and test, and each window lies in one part: shuffled overlapping
    windows would put test text into training. A part of L characters has max(0, L - window) windows (with stride 1).
    They are views on the text, which is stored once, as one byte a character. A role with one sentence is left out.

    Args:
        path: a file or folder with the data, see `sources.load_arrays`.
        data_dir: where downloads are kept.
        window: number of characters of a window.
        stride: characters from one window to the next.
        n_clients: up to 1: the fraction of the roles to keep; from 2 on: their number; None: all.
        options: those of `Splitting`.

    """

    def __init__(
        self,
        path: str | Path | None = None,
        data_dir: str | Path = "data",
        window: PositiveInt = 200,
        stride: PositiveInt = 1,
        n_clients: ShareOrNumber | None = None,
        **options: Annotated[Any, Splitting],
    ) -> None:
        (splitting,) = grouped(options, Splitting)
        arrays, origin = load_arrays("shakespeare", path, data_dir)
        text, client, piece, names = _checked(arrays, origin)
        symbols, codes = np.unique(text, return_inverse=True)

        split = split_in_order(client, splitting.fractions)
        start = window_starts(client, piece, split, window, stride)
        n_train = np.bincount(client[start[split[start] == 0]], minlength=len(names))
        ends = np.array([match.start() for match in SENTENCE_END.finditer(text.tobytes())], dtype=np.int64)
        sentences = np.bincount(client[ends], minlength=len(names))
        fit = np.flatnonzero((n_train > 0) & (sentences > 1))
        needed = f"{window + 1} characters to train on and 2 sentences"
        require(len(fit) > 0, f"window: no role in {origin} has {needed}")
        kept = fit[choose_clients(len(fit), n_clients, splitting.seed)]
        new = np.full(len(names), -1, dtype=np.int64)
        new[kept] = np.arange(len(kept))
        small = int((sentences < 2).sum())
        short = f"{len(names) - small - len(fit)} with no training window of {window} characters"
        notes: dict[str, Any] = {
            "source": origin,
            "characters": int(np.isin(client, kept).sum()),
            "left_out_clients": len(names) - len(kept),
            "why": f"{small} roles with under 2 sentences, {short}, {len(fit) - len(kept)} by dataset.n_clients",
            "vocabulary": symbols.tobytes().decode("latin-1"),
        }
        roles = [names[t] for t in kept]
        super().__init__(
            Federation.from_samples(
                Windows(torch.from_numpy(codes.astype(np.uint8)), window),
                new[client[start]],
                split[start],
                position=start,
                task=Classification(len(symbols), n_targets=window),
                names=roles,
                seen=splitting.seen(roles),
                notes=notes,
            )
        )


def split_in_order(client: np.ndarray, fractions: Sequence[float]) -> np.ndarray:
    """Splits every client's characters in order: int8 [n], 0 train, 1 val, 2 test. `client` must be sorted."""
    train, val, _ = fractions
    counts = np.bincount(client)
    rank = np.arange(len(client)) - np.repeat(counts.cumsum() - counts, counts)
    first_val, first_test = np.floor(counts * train + 1e-9), np.floor(counts * (train + val) + 1e-9)
    return ((rank >= first_val[client]).astype(np.int8) + (rank >= first_test[client])).astype(np.int8)


def window_starts(client: np.ndarray, piece: np.ndarray, split: np.ndarray, window: int, stride: int) -> np.ndarray:
    """Starts of the windows that lie, with the next character, in one client, piece and split: int64, ascending."""
    change = np.zeros(len(client), dtype=bool)
    for part in (client, piece, split):
        change[1:] |= part[1:] != part[:-1]
    run = change.cumsum()  # index of the run: consecutive characters of one client, piece and split
    starts = np.flatnonzero(run[: max(0, len(run) - window)] == run[window:])
    first = np.flatnonzero(np.concatenate([[True], change[1:]]))  # start of each run
    return starts[(starts - first[run[starts]]) % stride == 0]


def _checked(arrays: dict[str, np.ndarray], origin: str) -> tuple[np.ndarray, np.ndarray, np.ndarray, tuple[str, ...]]:
    """Text, client and piece of each character, sorted by client, and the roles' names."""
    text = arrays["text"]
    fits = text.dtype == np.uint8 and text.ndim == 1 and len(text) > 0
    require(fits, f"text: expected uint8 characters [n] in {origin}, got {text.dtype} of shape {text.shape}")
    client, names = check_clients(arrays["client"], arrays["names"], len(text))
    piece = arrays.get("piece", client)
    check_length("piece", piece, len(text))
    order = np.argsort(client, kind="stable")
    return text[order], client[order], piece[order], names
