"""Joining overlapping windows to one text, instead of storing the text 80 times."""

import numpy as np

from fedem_lightning.data.names import check_ids


class TextJoiner:
    """Joins windows one by one; a window that does not continue its role's last window begins a new piece."""

    def __init__(self) -> None:
        self._pieces: dict[str, list[list[str]]] = {}
        self._expected: dict[str, str] = {}

    def add(self, role: str, window: str, following: str) -> None:
        """Adds a window of the role's text, and the character after it."""
        pieces = self._pieces.setdefault(role, [])
        if self._expected.get(role) == window:
            pieces[-1].append(following)
        else:
            pieces.append([window, following])
        self._expected[role] = (window + following)[1:]

    def arrays(self) -> dict[str, np.ndarray]:
        """All texts as flat arrays, role after role."""
        owner = [t for t, pieces in enumerate(self._pieces.values()) for _ in pieces]
        texts = ["".join(parts) for pieces in self._pieces.values() for parts in pieces]
        return text_arrays(texts, owner, list(self._pieces))


def text_arrays(pieces: list[str], owner: list[int], names: list[str]) -> dict[str, np.ndarray]:
    """Pieces of text and their clients as flat arrays; non-ASCII characters become "?"."""
    check_ids("path: the clients' names", names)
    codes = [np.frombuffer(piece.encode("ascii", "replace"), dtype=np.uint8) for piece in pieces]
    lengths = [len(code) for code in codes]
    return {
        "text": np.concatenate([*codes, np.empty(0, dtype=np.uint8)]),
        "client": np.repeat(np.array(owner, dtype=np.int32), lengths),
        "piece": np.repeat(np.arange(len(pieces), dtype=np.int32), lengths),
        "client_names": np.array(names),
    }
