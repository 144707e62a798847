"""What the server sends a client, and which replies count: those of the expected form, with finite numbers."""

import json
from typing import Any, NamedTuple

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.common.constant import ErrorCode

from fedem_lightning.aggregate import Models, Update
from fedem_lightning.data import tasks
from fedem_lightning.data.federation import Federation
from fedem_lightning.data.schema import Schema
from fedem_lightning.evaluate.scores import Scores
from fedem_lightning.module.algorithm import FederatedAlgorithm
from fedem_lightning.module.checkpoints import recipe_of
from fedem_lightning.module.client_updates import rehearsed
from fedem_lightning.settings.errors import one_line
from fedem_lightning.state.history import EXCEPTION, INVALID, NO_ANSWER, NOT_FINITE, first_line


def request(
    algorithm: FederatedAlgorithm, data: Federation, client: int, round_: int, training: bool, start: bool
) -> RecordDict:
    """What a client needs to train in a round (from 0), or to score; at the `start` also the state where it begins."""
    about: dict[str, Any] = {"recipe": json.dumps(recipe_of(algorithm)), "client": client, "round": round_}
    about["planned_rounds"] = algorithm.statistics.planned_rounds
    own, form = state_of_client(algorithm, client), rehearsed(algorithm, data, torch.tensor([client]), round_)
    received = {} if form is None else form.start
    sent = {}
    for name, tensor in own.items():
        part, _, rest = name.partition(".")
        if part == "components":  # what clients keep of a model is not sent; nor one that they only score with
            goes = rest.partition(".")[2] in received or (not training and not received)
        else:
            store = algorithm.states.stores().get(name.rpartition(".")[0])
            state = algorithm.states.declared.get(name)
            held_by = store.held_by if store else state.held_by if state else "server"
            goes = held_by == "server" and ".initial_" not in name  # rows that clients keep from their start on
        if goes:
            sent[name] = tensor
    records: dict[str, Any] = {"about": ConfigRecord(about), "sent": arrays(sent)}
    return RecordDict(records | ({"start": arrays(own)} if start else {}))


def arrays(tensors: Models) -> ArrayRecord:
    """Tensors as Flower's record."""
    return ArrayRecord({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()})


def state_of_client(algorithm: FederatedAlgorithm, client: int) -> Models:
    """The `state_dict` of the algorithm for a federation of this client alone: where a client starts."""
    rows = {f"{name}.{row}" for name, store in algorithm.states.stores().items() for row in store.row_names()}
    return {
        name: tensor[client : client + 1] if name in rows or name in algorithm.states.declared else tensor
        for name, tensor in algorithm.state_dict().items()
    }


LARGEST = 1e15
"""Largest magnitude of a number: sums of squares of such numbers fit into float32."""
RAISED = (ErrorCode.CLIENT_APP_RAISED_EXCEPTION, ErrorCode.LOAD_CLIENT_APP_EXCEPTION)


class Refused(ValueError):
    """A reply that does not count; the message is one line, `reason` one of `rejections`."""

    def __init__(self, line: str, reason: str = INVALID) -> None:
        super().__init__(one_line(line)[:200])
        self.reason, self.line = reason, f"{reason}: {self}" if str(self) else reason


class Described(NamedTuple):
    """What a client says of itself."""

    place: int  # its partition-id; -1: it has a file of its own
    name: str
    n_train: int
    form: str  # of its samples: `sample_form` as JSON


def content_of(reply: Message | None) -> RecordDict:
    """What a reply holds; Refused if the client does not answer, or has failed."""
    if reply is None:
        raise Refused("", NO_ANSWER)
    if reply.has_error():
        raise Refused(reply.error.reason or "", EXCEPTION if reply.error.code in RAISED else NO_ANSWER)
    return reply.content


def tensors_in(content: RecordDict, key: str, like: Models, *dtypes: torch.dtype) -> Models:
    """The tensors of a record, which have the names, shapes and dtypes (or one of `dtypes`) of `like`."""
    record, result = _record(content, key, ArrayRecord), {}
    _expect(record.keys() == like.keys(), f"{key}: other tensors than asked for")
    for name, rows in like.items():
        try:
            tensor = torch.from_numpy(record[name].numpy())
        except Exception as error:  # whatever bytes that are no array cause
            raise Refused(f"{name}: {first_line(error)}") from None
        wanted, given = (f"{t.dtype} {list(t.shape)}" for t in (rows, tensor))
        fits = tensor.shape == rows.shape and tensor.dtype in (dtypes or (rows.dtype,))
        _expect(fits, f"{name}: expected {wanted}, got {given}")
        if tensor.is_floating_point() and not bool((tensor.abs() <= LARGEST).all()):
            raise Refused(f"{name}: not finite, or above {LARGEST:g}", NOT_FINITE)
        result[name] = tensor
    return result


def update_in(content: RecordDict, form: Update, n_train: int) -> Update:
    """The update of a client with so many training samples, in the form of the method's own."""
    models, extras = tensors_in(content, "models", form.models), tensors_in(content, "extras", form.extras)
    real, group = (torch.int64, torch.float32, torch.float64), None
    weights = tensors_in(content, "weights", {"weights": form.weights}, *real)["weights"]
    inside = (weights >= 0) & (weights <= n_train * (1 + 1e-6))
    _expect(bool(inside.all()), "weights: below 0, or more than the client's samples")
    if form.group is not None:
        group = tensors_in(content, "group", {"group": form.group})["group"]
        _expect(0 <= int(group) < form.n_groups, "group: there is no such group")
    return form._replace(models=models, weights=weights, group=group, extras=extras)


def sums_in(content: RecordDict, n_train: int) -> dict[str, tuple[float, int]]:
    """The sum and the number of values of each mean of metrics.csv."""
    result = {}
    for name, pair in _record(content, "sums", MetricRecord).items():
        fits = isinstance(pair, list) and len(pair) == 2 and all(abs(value) <= LARGEST for value in pair)
        _expect(fits and 0 <= pair[1] <= n_train, "sums: expected a sum and a number of samples")
        result[name] = (float(pair[0]), int(pair[1]))
    return result


def take_scores(content: RecordDict, result: Scores, row: int, n_train: int) -> None:
    """Writes a client's scores on each split into its row; Refused: nothing was written."""
    record = _record(content, "scores", MetricRecord)
    single = all(isinstance(value, int | float) for value in record.values())
    parts = {f"{split}/{measure}": rows for split, part in result.measures.items() for measure, rows in part.items()}
    parts |= {f"{split}/size": rows for split, rows in result.sizes.items()}
    parts |= {f"column/{name}": rows for name, rows in result.columns.items()}
    _expect(single and record.keys() == parts.keys(), "scores: other numbers than asked for")
    sizes = [record[f"{split}/size"] for split in result.sizes]
    whole = all(isinstance(size, int) and 0 <= size <= LARGEST for size in sizes)
    _expect(whole and record["train/size"] == n_train, "scores: expected numbers of samples")
    for key, rows in parts.items():
        rows[row] = record[key]


def description_in(content: RecordDict) -> Described:
    """What a client says of itself."""
    record = _record(content, "client", ConfigRecord)
    kinds = Described.__annotations__
    _expect({key: type(value) for key, value in record.items()} == kinds, f"client: expected {', '.join(kinds)}")
    result = Described(**{key: record[key] for key in kinds})
    named = result.name == one_line(result.name)[:200] != ""
    _expect(named and result.place >= -1 and 0 < result.n_train <= LARGEST, "client: expected a name and samples")
    try:
        schema_of([result])
    except Exception as error:  # whatever a wrong form makes the classes of a schema raise
        raise Refused(f"form: {first_line(error)}") from None
    return result


def schema_of(result: list[Described]) -> Schema:
    """The schema of clients whose samples have the form of the first one's."""
    form: dict[str, Any] = json.loads(result[0].form)
    target = form["task"]["_target_"]  # what the server makes of a description, and nothing else
    kind: Any = getattr(tasks, target.rpartition(".")[2], None)
    is_task = isinstance(kind, type) and target == f"{kind.__module__}.{kind.__name__}"
    _expect(is_task and json.dumps(form["task"]).count("_target_") == 1, "form: no task")
    n_train = torch.tensor([one.n_train for one in result])
    return Schema.from_state({**form, "seen": n_train > 0, "n_train": n_train, "names": [one.name for one in result]})


def _record(content: RecordDict, key: str, kind: type) -> Any:
    record = content.get(key)
    _expect(isinstance(record, kind), f"{key}: missing")
    return record


def _expect(fits: bool, line: str) -> None:
    if not fits:
        raise Refused(line)
