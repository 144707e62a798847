"""Client updates that are left out of a round: how often, whose, when and why."""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

NOT_FINITE = "not finite"
EXCEPTION = "exception"
NO_ANSWER = "no answer"
INVALID = "invalid reply"
"""Reasons; a method of one's own may have others."""

LIMIT = 1_000
"""Largest number of single rejections, and of clients, that are kept by name; beyond, they are only counted."""


class Rejection(NamedTuple):
    """One update that was left out."""

    client: int  # index in the federation
    reason: str
    detail: str = ""  # e.g. the exception's type and first line


@dataclass
class Rejections:
    """All rejections of a run so far, as plain values, so that checkpoints can save them."""

    by_reason: dict[str, int] = field(default_factory=dict)  # number of updates
    by_client: list[dict[str, Any]] = field(default_factory=list)
    """For each client and reason: client, reason, rounds (their number), first_round (from 1), detail (of the first).

    At most `LIMIT`, in the order in which they occurred."""

    @property
    def total(self) -> int:
        """Number of rejected updates."""
        return sum(self.by_reason.values())

    def add(self, round_: int, rejections: list[Rejection], unnamed: int = 0) -> None:
        """Adds those of a round.

        Args:
            round_: number of the round, from 1.
            rejections: one for each update.
            unnamed: further updates that were not finite, of clients that nobody has named.

        """
        known = {(entry["client"], entry["reason"]): entry for entry in self.by_client} if rejections else {}
        for client, reason, detail in rejections:
            self.by_reason[reason] = self.by_reason.get(reason, 0) + 1
            entry = known.get((client, reason))
            if entry is not None:
                entry["rounds"] += 1
            elif len(self.by_client) < LIMIT:
                entry = {"client": client, "reason": reason, "rounds": 1, "first_round": round_, "detail": detail}
                known[client, reason] = entry
                self.by_client.append(entry)
        if unnamed:
            self.by_reason[NOT_FINITE] = self.by_reason.get(NOT_FINITE, 0) + unnamed


def first_line(error: BaseException) -> str:
    """The type and the first line of an exception, 200 characters at most."""
    lines = str(error).strip().splitlines()
    text = f"{type(error).__name__}: {' '.join(lines[0].split())}" if lines else type(error).__name__
    return text if len(text) <= 200 else text[:199] + "…"


def summarised(rejections: list[Rejection]) -> str:
    """How many updates were left out for which reason: "2 not finite, 1 exception (ValueError: no)"."""
    parts = []
    for reason in dict.fromkeys(r.reason for r in rejections):
        same = [r for r in rejections if r.reason == reason]
        detail = next((f" ({r.detail})" for r in same if r.detail), "")
        parts.append(f"{len(same)} {reason}{detail}")
    return ", ".join(parts)
