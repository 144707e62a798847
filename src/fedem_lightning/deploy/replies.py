"""What clients may reply, declared for each kind of request. What differs from it is refused here, and only here."""

import json
import math
from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor

from fedem_lightning.aggregation import Models, Sent
from fedem_lightning.algorithms.base import FederatedAlgorithm
from fedem_lightning.data.schema import Schema
from fedem_lightning.data.splits import SPLITS
from fedem_lightning.deploy.forms import (
    FLAG,
    LARGEST,
    NAN,
    PLAIN,
    REAL,
    TEXT,
    Line,
    Many,
    Maybe,
    Named,
    Number,
    Refused,
    Rows,
    Whole,
    read,
)
from fedem_lightning.deploy.wire import Parcel, unpacked, with_prefix
from fedem_lightning.models.client_store import Owner
from fedem_lightning.records.measures import RANGES
from fedem_lightning.rejections import EXCEPTION, NO_ANSWER, NOT_FINITE, first_line
from fedem_lightning.tasks import (
    BinaryClassification,
    Classification,
    Density,
    LanguageModel,
    MultiLabel,
    Regression,
    Segmentation,
)
from fedem_lightning.uploads import decompressed, message_like

MOST_METRICS = 20
"""Largest number of means that an update adds to, and of rejections that a client reports of itself."""
MOST_VALUES, MOST_OUTPUTS = 10**8, 10**6
"""Largest numbers of values of a sample, and of outputs for it: the server makes a network for them."""
MOST_ROUNDS = 10**6
"""Largest number of a round."""
ROUNDING = 1e-3
"""How far a score may be outside of its range: a probability may be rounded to more than 1."""
KINDS = (Classification, Density, BinaryClassification, Regression, MultiLabel, Segmentation, LanguageModel)
TASKS = [f"{kind.__module__}.{kind.__name__}" for kind in KINDS]
"""What the server makes of a client's description, and nothing else."""

START = {"needs_start": True}
FAILURE = {"error": Line(or_empty=True)}
SIGNS = ("is_users", "not_finite", "needs_start")
"""Of a failure: what is true of it."""
SHAPE = Many(Whole(1, MOST_VALUES), most=8)
SAMPLES = {
    "task": PLAIN,
    "in_shape": SHAPE,
    "raw_shape": SHAPE,
    "classes": Maybe(Many(TEXT, MOST_OUTPUTS)),
    "pixels": Maybe(PLAIN),
    "vocabulary": Maybe(TEXT),
    "features": Maybe(PLAIN),
    "columns": Named(TEXT, most=2),
    "domains": Maybe(Many(TEXT, MOST_OUTPUTS)),
    "whole": Named(Whole(1, 1), most=1),
}
DESCRIPTION = {"name": Line(), "form": SAMPLES, "n_train": Whole(), "round": Maybe(Whole(high=MOST_ROUNDS))}


def update_form(n_train: int) -> dict[str, Any]:
    """Beside an update: a sum and a number of values for each mean of metrics.csv, and the client's own rejections."""
    return {
        "n_groups": Whole(1, MOST_OUTPUTS),
        "metrics": Named((Number(), Whole(high=max(1, n_train))), MOST_METRICS),
        "rejected": Many((Line(), Line(or_empty=True)), MOST_METRICS),
    }


def update_tensors(expected: Sent, message: Models | None, included: Tensor | None) -> dict[str, Any]:
    """An update: weights that fit what the client has declared, and models in the form in which it received them.

    Args:
        expected: see `FederatedAlgorithm.unmoved`.
        message: the form of what a client sends in place of its models; None: it sends them.
        included: the models that it sends, bool [1, M]; None: all.

    """
    models = {} if message is not None else expected.models
    forms = {f"models.{name}": Rows(rows if included is None else rows[included]) for name, rows in models.items()}
    forms |= {f"message.{name}": Rows(rows) for name, rows in (message or {}).items()}
    forms |= {f"extras.{name}": Rows(lowest, low=lowest) for name, lowest in expected.extras.items()}
    forms["weights"] = Rows(expected.weights, low=0.0, high=expected.weights * (1 + 1e-6), dtypes=REAL)
    if expected.group is not None:
        forms["group"] = Rows(expected.group, low=0, high=expected.n_groups - 1)
    if included is not None:
        forms["included"] = Rows(included)
    return forms


def facts_of(reply: Parcel | None, form: Any) -> Any:
    """The facts of a reply; Refused if the client does not answer, or has failed."""
    if reply is None:
        raise Refused("", NO_ANSWER)
    if isinstance(reply.facts, dict) and "error" in reply.facts:
        failure = read(FAILURE | {sign: FLAG for sign in SIGNS if sign in reply.facts}, reply.facts)
        raise Refused(failure["error"], NOT_FINITE if failure.get("not_finite") else EXCEPTION)
    return read(form, reply.facts)


def description_of(reply: Parcel | None) -> dict[str, Any]:
    """What a client says of itself: its name, the form of its samples, their number, the round of its state."""
    facts: dict[str, Any] = facts_of(reply, DESCRIPTION)
    form, task = facts["form"], facts["form"]["task"]
    known = isinstance(task, dict) and task.get("_target_") in TASKS and json.dumps(task).count('"_target_"') == 1
    if not known or max(math.prod(form["in_shape"]), math.prod(form["raw_shape"])) > MOST_VALUES:
        raise Refused("form: no task, or a sample of too many values")
    try:
        schema = schema_of([facts])
    except Exception as error:  # whatever a wrong form makes the classes of a schema raise
        raise Refused(f"form: {first_line(error)}") from None
    if schema.task.n_outputs > MOST_OUTPUTS:
        raise Refused(f"form: expected at most {MOST_OUTPUTS} outputs")
    return facts


def schema_of(found: list[dict[str, Any]]) -> Schema:
    """The schema of clients that have described themselves, whose samples have the form of the first one's."""
    n_train = torch.tensor([one["n_train"] for one in found])
    names = [one["name"] for one in found]
    return Schema.from_state({**found[0]["form"], "seen": n_train > 0, "n_train": n_train, "names": names})


def scores_in(
    reply: Parcel | None, measures: Collection[str], columns: Collection[str], n_train: int
) -> dict[str, Any]:
    """The mean scores of a client's model on each split, NaN without samples; how many; what its adaptation adds."""
    form = {
        "measures": PLAIN,
        "sizes": {"train": Whole(n_train, n_train), "val": Whole(), "test": Whole()},
        "columns": dict.fromkeys(columns, Number(or_nan=True)),
    }
    facts: dict[str, Any] = facts_of(reply, form)
    numbers = {m: Number(RANGES[m][0] - ROUNDING, min(RANGES[m][1] + ROUNDING, LARGEST)) for m in measures}
    wanted = {split: numbers if facts["sizes"][split] else dict.fromkeys(measures, NAN) for split in SPLITS}
    return facts | {"measures": read(wanted, facts["measures"], "measures")}


def answer_of(reply: Parcel | None, like: Models, n_train: int) -> Models:
    """The answer to a question, in the form of `like`; whole numbers in it are numbers of samples."""
    facts_of(reply, {})
    assert reply is not None
    forms = {
        f"answer.{name}": Rows(rows, or_nan=True) if rows.is_floating_point() else Rows(rows, low=0, high=n_train)
        for name, rows in like.items()
    }
    return with_prefix(read(forms, reply.tensors), "answer.")


def reported_of(reply: Parcel, algorithm: FederatedAlgorithm, client: Tensor) -> Models:
    """The rows of client state that the method reports; whole numbers are components."""
    last = len(algorithm.components) - 1
    rows = {name: rows[client] for name, rows in algorithm.states.of(Owner.REPORTED).items()}
    forms = {n: Rows(r) if r.is_floating_point() else Rows(r, low=0, high=last) for n, r in rows.items()}
    found: Models = read(forms, with_prefix(reply.tensors, "reported."), "reported")
    return found


def update_of(reply: Parcel, algorithm: FederatedAlgorithm, expected: Sent | None) -> Sent | None:
    """A client's update, in the form of `expected`; None if that is None."""
    tensors = {name: tensor for name, tensor in reply.tensors.items() if not name.startswith("reported.")}
    if expected is None:
        read({}, tensors)
        return None
    message, included = None, tensors.get("included")
    if algorithm.compression is not None:
        message = message_like(algorithm, expected.models)
    if included is not None:
        first = next(iter(expected.models.values()))
        read(Rows(torch.ones(first.shape[:2], dtype=torch.bool)), included, "included")
    read(update_tensors(expected, message, included), tensors)
    sent = unpacked(tensors, expected.n_groups, expected.models)
    if sent is None or message is None:
        return sent
    try:
        models = decompressed(algorithm, with_prefix(tensors, "message."), expected.models)
    except (RuntimeError, LookupError) as error:  # positions that no entry has
        raise Refused(f"message: {first_line(error)}") from None
    return sent._replace(models=read({name: Rows(rows) for name, rows in expected.models.items()}, models, "message"))
