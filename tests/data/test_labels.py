"""Labels of samples that have several: what is read, what is missing, what is refused in one line."""

from typing import Any

import numpy as np
import pytest
import torch

from fedem_lightning import FederatedDataModule, UserError
from fedem_lightning.aggregate.faults import LabelFlip
from fedem_lightning.data.schema import Schema
from fedem_lightning.data.tasks import MISSING, LanguageModel, MultiLabel
from helpers.federations import stored

N = 12
RNG = np.random.default_rng(0)
X = RNG.normal(size=(N, 4)).astype(np.float32)
CLIENT = np.arange(N) % 2
CODES = RNG.integers(0, 5, (N, 3))


def made(x: Any, y: Any, task: Any, client: Any = CLIENT, **options: Any) -> FederatedDataModule:
    return FederatedDataModule.from_arrays(x, y, client, task=task, fractions=[0.5, 0.0, 0.5], **options)


def test_labels_of_each_task_are_kept_as_codes() -> None:
    yes = RNG.integers(0, 2, (N, 3))
    for y in (yes, yes.astype(bool), yes.astype(np.float32), yes.tolist()):
        data = made(X, y, "multilabel").federation
        assert data.task == MultiLabel(3)
        assert stored(data).y.dtype == torch.int64
        np.testing.assert_array_equal(stored(data).y, yes)
    assert made(X, CODES * 1.0, "language", n_classes=9).federation.task == LanguageModel(9, 3)


def test_tokens_stay_whole_numbers() -> None:
    x = CODES + 2
    data = made(x, CODES, "language").federation
    assert data.task == LanguageModel(int(x.max()) + 1, 3)  # tokens that no label has need an output, too
    index = torch.arange(N)
    assert data.samples.features(index, torch.float32).dtype == torch.int64
    np.testing.assert_array_equal(data.samples.features(index, torch.float32), x)
    schema = Schema.from_state(Schema.of(data).state())
    assert schema.takes_codes
    assert schema.samples_of(x.astype(np.uint8)).features(index, torch.float32).dtype == torch.int64
    with pytest.raises(UserError, match="x: expected codes, whole numbers as in training, got float64"):
        schema.samples_of(x + 0.5)
    with pytest.raises(UserError, match="x: expected codes of 0 or more, got -100; only labels may be -100"):
        made(np.where(x > 4, -100, x), CODES, "language")


@pytest.mark.parametrize(
    ("x", "y", "task"),
    [
        (X, RNG.integers(0, 2, (N, 3)), "multilabel"),
        (CODES, CODES, "language"),
        (X, RNG.normal(size=(N, 3)), "regression"),
    ],
)
def test_missing_labels_are_counted_and_samples_without_any_refused(x: Any, y: Any, task: Any) -> None:
    y = y.astype(float)
    y.reshape(N, -1)[1, 0] = y.reshape(N, -1)[6, 1] = np.nan
    data = made(x, y, task).federation
    assert data.notes["missing_labels"] == f"2 of {y.size}, left out of losses and scores"
    expected = y if task == "regression" else np.where(np.isnan(y), MISSING, y)
    np.testing.assert_array_equal(stored(data).y, expected)
    y[[2, 5]] = np.nan
    with pytest.raises(UserError, match=r"^y: no label is known of 2 of 12 samples; leave them out$"):
        made(x, y, task)


REFUSED = {
    "2": (X, CODES % 3, "multilabel", "y: label 2 at sample {} is none of 0, 1 and -100 (missing)"),
    "one label": (X, CODES[:, :1] % 2, "multilabel", "task: multilabel needs two labels or more for each sample, the"),
    "flat": (X, CODES[:, 0], "language", "y: language expects labels [n, positions] of 12 samples, got shape [12]"),
    "below": (X, CODES - 9, "language", "y: label {} at sample 0 is outside the "),
    "nothing": (X, np.full((N, 3), -100), "language", "y: no label is known"),
    "a target": (X, np.where(np.arange(N) > 4, np.nan, 0), "regression", "y: NaN or infinity in 7 samples"),
    "classes": (X, CODES % 2, "multilabel", "n_classes: a multilabel task has as many labels as y has columns"),
    "by class": (X, CODES, "language", "partition: dirichlet deals by class, a regression and samples of several"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_wrong_labels_are_refused_in_one_line(name: str) -> None:
    x, y, task, message = REFUSED[name]
    by_class = {"partition": "dirichlet", "n_clients": 2}
    more: dict[str, Any] = {"classes": {"n_classes": 2}, "by class": by_class}
    with pytest.raises(UserError) as error:
        made(x, y, task, None if name == "by class" else CLIENT, **more.get(name, {}))
    line = str(error.value)
    for part in message.split("{}"):
        assert part in line
    assert "\n" not in line


def test_new_labels_have_the_form_of_training() -> None:
    schema = Schema.of(made(X, CODES % 2, "multilabel").federation)
    np.testing.assert_array_equal(schema.labels([[1, 0, np.nan]]), [[1, 0, -100]])
    with pytest.raises(UserError, match="y: expected 3 labels for each sample as in training, got 2"):
        schema.labels([[1, 0]])
    with pytest.raises(UserError, match="y: no label is known of sample 1"):
        schema.labels([[1, 0, 1], [-100, -100, -100]])
    assert Schema.from_state(schema.state()).task == MultiLabel(3)
    assert schema.class_names is None


def test_flipped_labels_leave_missing_ones_alone() -> None:
    y = np.where(np.eye(N, 3) > 0, -100, CODES)
    data = made(CODES, y, "language").federation
    flipped = LabelFlip().with_other_labels(data, torch.arange(2))
    index = data.splits["train"].positions(torch.arange(2))[0]
    expected = np.where(y[index] == -100, -100, 4 - y[index])
    np.testing.assert_array_equal(flipped.samples.labels(index), expected)
