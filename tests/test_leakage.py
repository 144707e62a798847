"""What must not reach a model: test samples, the data of unseen clients, labels of validation samples."""

import functools
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest
import torch

import fedem_lightning
from fedem_lightning import (
    MOCHA,
    ClientSGD,
    Dapper,
    FedALA,
    FedAvg,
    FedEM,
    FederatedAlgorithm,
    FederatedDataModule,
    Federation,
    FedFOMO,
    Finetune,
    HypCluster,
    Interpolate,
    Mapper,
    Oracle,
    PerFedAvg,
    UserCentric,
)
from helpers.conformance import ROWS, Row
from helpers.federations import make_data, make_trainer, split_of, stored

N_CLIENTS = 6  # no tensor of these small models has this size for another reason
SEEN_BY_VALIDATION = {
    FedFOMO: "weighs others' models by the loss on the client's validation samples",
    Mapper: "chooses lambda by them",
}
MORE = [  # what has a table of its own, and options under which a method looks at data elsewhere
    Row(Oracle),
    Row(MOCHA, options={"inner_rounds": 1}),
    Row(FedEM, options={"initialization": "clusters", "personalize_steps": 2}),
    Row(HypCluster),
    Row(UserCentric, options={"n_streams": 2, "label_adjusted": True}),
    Row(FedAvg, options={"adaptation": Finetune()}),
]
BY_VALIDATION = [  # adaptations that choose lambda on validation samples
    Row(FedAvg, options={"adaptation": Dapper(lambdas=(0.0, 1.0))}),
    Row(FedAvg, options={"adaptation": Interpolate("own", (0.0, 1.0))}),
    Row(FedAvg, options={"adaptation": Interpolate("mixture", (0.0, 1.0))}),
]
TABLE = [*ROWS, *MORE, *BY_VALIDATION]


def name_of(row: Row) -> str:
    adaptation = row.options.get("adaptation")
    return row.kind.__name__ + (f"-{type(adaptation).__name__}" if adaptation else "")


NEEDS_VALIDATION = {*range(len(TABLE) - len(BY_VALIDATION), len(TABLE))} | {
    case for case, row in enumerate(TABLE) if row.kind in SEEN_BY_VALIDATION
}
FEW = [
    case if row.kind in (FedEM, FedAvg, UserCentric) else pytest.param(case, marks=pytest.mark.slow)
    for case, row in enumerate(TABLE)
]
EVERY = pytest.mark.parametrize("case", range(len(TABLE)), ids=lambda case: name_of(TABLE[case]))
A_FEW = pytest.mark.parametrize("case", FEW, ids=lambda case: name_of(TABLE[case]))


def federation_for(kind: type[FederatedAlgorithm]) -> FederatedDataModule:
    """Four clients that train and two that do not; binary labels and known groups for who needs them."""
    options: dict[str, Any] = {"n_classes": 2, "task": "binary"} if kind is MOCHA else {}
    unseen = 1 / 3 if kind is not MOCHA else 0.0
    data = make_data(sizes=(10, 14, 12, 11, 17, 12), unseen_fraction=unseen, **options)
    data.federation.truth["group"] = np.arange(N_CLIENTS) % 2
    return data


def changed(federation: Federation, what: str) -> None:
    """Changes samples in place.

    what: "nothing"; "test", x and y; "held out", that and the labels of validation samples; "val" and "train", labels;
    "unseen", all that the unseen clients have.
    """
    test, val, train = (split_of(federation, split).index for split in ("test", "val", "train"))
    own = [split.positions(federation.clients(seen=False))[0] for split in federation.splits.values()]
    labels = {"test": [test], "held out": [test, val], "val": [val], "train": [train], "unseen": own}
    features = {"test": [test], "held out": [test], "unseen": own}
    n_classes = int(stored(federation).y.max()) + 1
    for where in labels.get(what, ()):
        stored(federation).y[where] = (stored(federation).y[where] + 1) % n_classes
    for where in features.get(what, ()):
        stored(federation).x[where] += 1.0


State = dict[str, np.ndarray]


def state_of(model: FederatedAlgorithm) -> State:
    """The whole state_dict, and what everybody serves."""
    personal = model.personal_models(torch.arange(N_CLIENTS))
    served = {f"served {name}": rows for name, rows in personal.models.items()}
    every = {**model.state_dict(), **served, "served mixture": personal.mixture}
    return {name: tensor.detach().numpy().copy() for name, tensor in every.items()}


class Outcome(NamedTuple):
    trained: State  # after the rounds
    tested: State  # after the test, for which the unseen clients are personalised
    clients: pd.DataFrame


@functools.cache
def outcome(case: int, what: str = "nothing") -> Outcome:
    row, trainer = TABLE[case], make_trainer(2)
    data = federation_for(row.kind)
    changed(data.federation, what)
    model = row.model(data, client_optimizer=ClientSGD(lr=0.2, momentum=0.9, state="keep"), batch_size=8)
    trainer.fit(model, data)
    trained = state_of(model)
    trainer.test(model, data, verbose=False)
    return Outcome(trained, state_of(model), model.clients)


def differing(a: State, b: State, rows: np.ndarray | None = None) -> list[str]:
    """Names of the tensors whose bits differ; with `rows`, of those that have a row a client, in these rows only."""
    assert a.keys() == b.keys()
    per_client = {name: rows is not None and a[name].shape[:1] == (N_CLIENTS,) for name in a}
    bits = [{name: (s[name][rows] if per_client[name] else s[name]).tobytes() for name in s} for s in (a, b)]
    return [name for name in a if bits[0][name] != bits[1][name]]


def scores_of(clients: pd.DataFrame, *splits: str) -> pd.DataFrame:
    """The columns of the clients' table that are measured on these splits."""
    return clients[[name for name in clients if str(name).startswith(tuple(f"{split}_" for split in splits))]]


@EVERY
def test_test_samples_and_labels_of_validation_samples_reach_nobody(case: int) -> None:
    """Neither training, nor the personalisation of unseen clients, nor an adaptation: only their scores are others."""
    what, splits = ("test", ["test"]) if case in NEEDS_VALIDATION else ("held out", ["test", "val"])
    before, after = outcome(case), outcome(case, what)
    assert differing(before.trained, after.trained) == []
    assert differing(before.tested, after.tested) == []
    for split in splits:
        assert not scores_of(before.clients, split).equals(scores_of(after.clients, split))
    others = before.clients.columns.difference(scores_of(before.clients, *splits).columns)
    pd.testing.assert_frame_equal(before.clients[others], after.clients[others], check_exact=True)


@pytest.mark.parametrize("kind", SEEN_BY_VALIDATION, ids=lambda kind: kind.__name__)
def test_who_is_said_to_use_validation_samples_does(kind: type[FederatedAlgorithm]) -> None:
    case = next(i for i, row in enumerate(TABLE) if row.kind is kind)
    assert differing(outcome(case).trained, outcome(case, "val").trained)


@EVERY
def test_unseen_clients_and_a_test_leave_what_was_trained(case: int) -> None:
    """Unseen clients reach nobody, not even once they have been personalised, which the test does."""
    kind, before = TABLE[case].kind, outcome(case)
    seen = federation_for(kind).federation.seen.numpy()
    moved = differing(before.trained, before.tested, seen)
    for_scores: Any = {PerFedAvg: "models.", FedALA: "served."}  # made from the newest w; training does not use them
    if kind in for_scores:
        moved = [name for name in moved if not name.startswith((for_scores[kind], "served "))]
    assert moved == []
    if kind is MOCHA:  # it has no unseen clients
        return
    after = outcome(case, "unseen")
    assert seen.sum() == 4
    assert differing(before.trained, after.trained) == []
    assert differing(before.tested, after.tested, seen) == []
    scores = [scores_of(o.clients, "train", "val", "test") for o in (before, after)]
    assert scores[0][seen].equals(scores[1][seen])
    assert not scores[0][~seen].equals(scores[1][~seen])


@A_FEW
def test_labels_of_training_samples_do_reach_the_models(case: int) -> None:
    """So the comparison of the tests above can see a difference."""
    assert differing(outcome(case).trained, outcome(case, "train").trained) != []


def test_every_algorithm_is_in_the_table() -> None:
    public = (getattr(fedem_lightning, name) for name in fedem_lightning.__all__)
    kinds = {k for k in public if isinstance(k, type) and issubclass(k, FederatedAlgorithm)} - {FederatedAlgorithm}
    assert kinds == {row.kind for row in TABLE}


# --- the data sets ----------------------------------------------------------------------------------------------------
