"""Texts by role: plays as plain text, where every role of every play is a client; and overlapping windows, joined."""

import re
from pathlib import Path

import numpy as np

from fedem_lightning.data.formats import files_in, reading
from fedem_lightning.data.names import check_ids
from fedem_lightning.errors import require

ROLE_NAME = r"[A-Z][A-Za-z'\-]*(?: (?:of|the|to|and|[A-Z][A-Za-z'\-]*)){0,5}"
COLON = re.compile(rf"^\s{{0,4}}(?P<role>{ROLE_NAME}):\s*(?P<text>.*)$")  # Hamlet: To be ...
DIRECTION = re.compile(r"\[[^\]]*\]")
CAPITALS = re.compile(r"^\s{0,4}(?P<role>[A-Z][A-Z' \-]{1,40})\.\s*(?P<text>.*)$")  # HAMLET. To be ...


def read_plays(path: Path) -> dict[str, np.ndarray]:
    """Reads a .txt file, or a folder of such files.

    A speech begins with its role, followed by a colon, or in capitals followed by a full stop; it ends where the next
    begins. Lines before the first speech and [directions] are left out. The speeches of a role are joined by newlines.

    Raises:
        UserError: there is no text, it is not UTF-8, or it has no speech.

    """
    roles: dict[str, list[str]] = {}
    for file in files_in(path, ".txt"):
        with reading(file, "UTF-8 text"):
            lines = file.read_text(encoding="utf-8").splitlines()
        speech: list[str] | None = None
        for line in lines:
            begins = COLON.match(line) or CAPITALS.match(line)
            text = DIRECTION.sub("", begins["text"] if begins else line).strip()
            if begins:
                speech = roles.setdefault(f"{file.stem}/{begins['role'].strip()}", [])
            if speech is not None and text:
                speech.append(text)
    roles = {name: speeches for name, speeches in roles.items() if speeches}
    require(bool(roles), f"path: no speeches in {path}; expected lines such as HAMLET. To be ... or Hamlet: To be")
    return text_arrays(["\n".join(speeches) for speeches in roles.values()], list(range(len(roles))), list(roles))


class TextJoiner:
    """Joins overlapping windows to one text, instead of storing the text 80 times.

    A window that does not continue its role's last window begins a new piece.
    """

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
