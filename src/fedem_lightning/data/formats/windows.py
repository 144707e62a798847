"""Putting a text together again from overlapping windows, instead of keeping it 80-fold."""

from collections.abc import Iterable, Mapping

import numpy as np


def text_from_windows(windows: Mapping[str, tuple[Iterable[str], Iterable[str]]]) -> dict[str, np.ndarray]:
    """Puts texts together from role -> (windows, the character after each), in order.

    A window that does not continue the one before it begins a new piece.
    """
    pieces: list[list[str]] = []
    owner: list[int] = []
    for t, (x, y) in enumerate(windows.values()):
        expected = None
        for window, following in zip(x, y, strict=True):
            if window == expected:
                pieces[-1].append(following)
            else:
                pieces.append([window, following])
                owner.append(t)
            expected = (window + following)[1:]
    return text_arrays(["".join(parts) for parts in pieces], owner, list(windows))


def text_arrays(pieces: list[str], owner: list[int], names: list[str]) -> dict[str, np.ndarray]:
    """Pieces of text and their owners as flat arrays; characters beyond ASCII become "?"."""
    codes = [np.frombuffer(piece.encode("ascii", "replace"), dtype=np.uint8) for piece in pieces]
    lengths = [len(code) for code in codes]
    return {
        "text": np.concatenate([*codes, np.empty(0, dtype=np.uint8)]),
        "client": np.repeat(np.array(owner, dtype=np.int32), lengths),
        "piece": np.repeat(np.arange(len(pieces), dtype=np.int32), lengths),
        "client_names": np.array(names),
    }
