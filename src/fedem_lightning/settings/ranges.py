"""Ranges of numbers, for annotations; a text among them is what a message says in place of the range."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Le, Lt, MaxLen, MinLen, Predicate
from pydantic import AllowInfNan


def _share_or_number(value: float) -> bool:
    return value <= 1 or value == int(value)


def _share_or_rank(value: float) -> bool:
    return value < 1 or value == int(value)


def _below_half_or_number(value: float) -> bool:
    return value < 0.5 or value == int(value)


Count = Annotated[int, Ge(0)]
PositiveInt = Annotated[int, Ge(1)]
TwoOrMore = Annotated[int, Ge(2)]
Seed = Annotated[int, Ge(0), Lt(2**32)]
Positive = Annotated[float, Gt(0)]
PositiveOrInfinite = Annotated[float, Gt(0), AllowInfNan()]
NotNegative = Annotated[float, Ge(0)]
Share = Annotated[float, Ge(0), Le(1)]
PositiveShare = Annotated[float, Gt(0), Le(1)]
BelowOne = Annotated[float, Ge(0), Lt(1)]
AboveZeroBelowOne = Annotated[float, Gt(0), Lt(1)]
ShareOrNumber = Annotated[float, Gt(0), Predicate(_share_or_number), "a fraction up to 1 or a number from 2 on"]
Rank = Annotated[float, Gt(0), Predicate(_share_or_rank), "a whole number from 1 on or a share below 1"]
BelowHalf = Annotated[float, Ge(0), Lt(0.5)]
FaultyClients = Annotated[
    float, Ge(0), Predicate(_below_half_or_number), "a share below 0.5 or a whole number of clients"
]
Names = Annotated[Sequence[str | int], "a list of clients' names such as [a,b] (null, true and 1.5 need quotes)"]
Column = str | int
Columns = Annotated[Sequence[Column], "a list of columns such as [a,b]"]
Shape = Annotated[Sequence[PositiveInt], MinLen(1)]
Fractions = Annotated[
    Sequence[NotNegative],
    MinLen(3),
    MaxLen(3),
    Predicate(lambda shares: shares[0] > 0 and abs(sum(shares) - 1) < 1e-9),
    "train > 0, val >= 0, test >= 0 with sum 1",
]
Weights = Literal["metropolis", "fmmc"]
Initialization = Literal["auto", "clusters", "random", "shared"]
PRECISIONS = ("32-true", "64-true", "bf16-mixed")
Precision = Annotated[
    Literal["32-true", "64-true", "bf16-mixed", "32", "64", "bf16", 32, 64],
    "32-true, 64-true, bf16-mixed",
]  # the last five are Lightning's other names
Devices = Annotated[
    PositiveInt | Literal["auto", -1] | Sequence[Count] | Annotated[str, Predicate(lambda text: text[:1].isdigit())],
    "a number of processes, auto, a list of GPUs",
]
TRAINER: dict[str, Any] = {
    "max_epochs": Count,
    "min_epochs": Count | None,
    "check_val_every_n_epoch": PositiveInt | None,
    "devices": Devices | None,
    "num_nodes": PositiveInt,
    "precision": Precision | None,
    "deterministic": bool | Literal["warn"] | None,
    "profiler": Literal["simple", "advanced", "pytorch", "xla"] | None,
}
"""What a configuration may give the Trainer, where Lightning's annotations allow more than ends well."""
