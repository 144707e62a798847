"""Whether a training has ended: by how much the validation loss still falls, and which round is best on validation."""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fedem_lightning.settings.measures import HIGHER_IS_BETTER, headline

if TYPE_CHECKING:  # a report loads no PyTorch
    from fedem_lightning.method import Method
    from fedem_lightning.state.history import Curves, Statistics

LARGEST_FALL = 0.005
"""Share by which the loss of a finished training may fall over the last tenth of its rounds."""
_OF_THE_START = 0.05
"""Share of the first loss; a loss below it is no smaller scale, as that of separable classes falls for ever."""


def convergence(curves: "Curves") -> dict[str, Any]:
    """Whether a training is finished: its validation loss falls by at most 0.5 % over the last tenth of its rounds.

    The fall is the lowest loss before the last tenth less the lowest loss in it. It is taken as a share of the loss or
    of its fall since the start, whichever is less, but of no less than 5 % of the first loss. Where evaluations are
    rarer, a longer fall counts by the tenth's share of its rounds. Without validation samples the training loss counts.

    Returns:
        finished: None, where it cannot be told; share: of the fall; rounds: between which it is measured, [2]; split:
        whose loss it is; reason: why it cannot be told.

    """
    split = next((name for name in ("val", "train") if any(f"{name}/loss" in row for row in curves.values())), None)
    unknown: dict[str, Any] = {"finished": None, "share": None, "rounds": None, "split": split}
    if split is None:
        return unknown | {"reason": "no loss was evaluated"}
    losses = {round_: row[f"{split}/loss"] for round_, row in sorted(curves.items()) if f"{split}/loss" in row}
    last, name = max(losses), {"val": "validation", "train": "training"}[split]
    since = max((round_ for round_ in losses if round_ <= 0.9 * last and round_ < last), default=None)
    if since is None:
        return unknown | {"reason": f"the {name} loss was evaluated once"}
    if not math.isfinite(losses[last]):
        return unknown | {"reason": f"the {name} loss is not finite"}
    share = fall(losses, since) * min(1.0, 0.1 * last / (last - since))
    result = {"finished": share <= LARGEST_FALL, "share": share, "rounds": [since, last], "split": split}
    return result | {"reason": None}


def fall(values: Mapping[int, float], since: int) -> float:
    """By which share errors or losses, by round, have fallen after round `since`; 0 if they have not.

    Values that are not finite are left out. See `convergence`.
    """
    known = {round_: value for round_, value in sorted(values.items()) if math.isfinite(value)}
    before = min((value for round_, value in known.items() if round_ <= since), default=math.inf)
    after = min((value for round_, value in known.items() if round_ > since), default=math.inf)
    if after >= before:
        return 0.0
    if math.isinf(before):
        return 1.0
    first = next(iter(known.values()))
    so_far = first - after  # above 0
    return (before - after) / (so_far if after <= 0 else max(_OF_THE_START * first, min(after, so_far)))


def unfinished_line(result: Mapping[str, Any]) -> str:
    """What `convergence` has found, for users; empty where the training is finished or nothing is known."""
    if result.get("finished") is not False:
        return ""
    (begin, end), loss = result["rounds"], {"val": "validation", "train": "training"}[result["split"]]
    return (
        f"not finished: the {loss} loss fell by {result['share']:.1%} over the last tenth of the rounds "
        f"(rounds {begin} to {end}; finished is at most {LARGEST_FALL:.1%}); more rounds (trainer.max_epochs) would "
        "change the scores"
    )


def errors_by_round(curves: "Curves", split: str = "val") -> dict[int, float]:
    """The measure that tables show, by evaluated round, as an error: the lower the better."""
    measure = headline(name.rpartition("/")[2] for row in curves.values() for name in row)[0]
    key, higher = f"{split}/{measure}", HIGHER_IS_BETTER[measure]
    result = {round_: row[key] for round_, row in sorted(curves.items()) if key in row}
    return {round_: 1 - value if higher else value for round_, value in result.items()}


def whole_run(algorithm: "Method") -> "tuple[Statistics, Curves]":
    """Costs and curves of all rounds, also of those after the one whose model this is (`callbacks.BestRound`)."""
    return algorithm.past or (algorithm.statistics, algorithm.curves)


def best_round(curves: "Curves") -> int | None:
    """The round with the best validation score, of equal ones the first; None without one."""
    errors = {round_: value for round_, value in errors_by_round(curves).items() if math.isfinite(value)}
    return min(errors, key=lambda round_: (errors[round_], round_)) if errors else None


def round_scores(curves: "Curves", round_: int) -> dict[str, Any]:
    """The validation and test score of an evaluated round, by the measure that tables show."""
    row = curves[round_]
    measure = headline(name.rpartition("/")[2] for name in row)[0]
    scores = {split: row.get(f"{split}/{measure}") for split in ("val", "test")}
    return {"round": round_, "measure": measure, **scores}
