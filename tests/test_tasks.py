"""Losses, scores and mixtures of tasks agree with NumPy; missing labels count as if a sample did not have them."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedem_lightning.data.tasks import Classification, LanguageModel, MultiLabel, Regression
from fedem_lightning.evaluate.scores import ClientMeans

RNG = np.random.default_rng(0)
N, Y, L, K, M = 6, 4, 7, 3, 2
PI = np.array([[0.2, 0.8], [0.5, 0.5], [1.0, 0.0], [0.9, 0.1], [0.3, 0.7], [0.6, 0.4]])


def with_missing(y: np.ndarray, missing: float) -> np.ndarray:
    """A third of the labels is missing, but of no sample the first."""
    gone = RNG.random(y.shape) < 1 / 3
    gone.reshape(len(y), -1)[:, 0] = False
    return np.where(gone, missing, y)


LABELS = {
    "multilabel": with_missing(RNG.integers(0, 2, (N, K)), -100),
    "language": with_missing(RNG.integers(0, Y, (N, L)), -100),
    "sequence": with_missing(RNG.integers(0, Y, (N, L)), -100),
    "regression": with_missing(RNG.normal(size=(N, K)), np.nan),
}
OUTPUTS = {  # of M models
    "multilabel": RNG.normal(size=(M, N, K)),
    "language": RNG.normal(size=(M, N, L, Y)),
    "sequence": RNG.normal(size=(M, N, L, Y)),
    "regression": RNG.normal(size=(M, N, K)),
}
TASKS: dict[str, Any] = {
    "multilabel": MultiLabel(K),
    "language": LanguageModel(Y, L),
    "sequence": Classification(Y, L),
    "regression": Regression(K),
}
NAMES = pytest.mark.parametrize("name", TASKS)


def probabilities(name: str, outputs: np.ndarray) -> np.ndarray:
    """p(. | x) with the classes last, [..., 2] or [..., Y]."""
    if name == "multilabel":
        p = 1 / (1 + np.exp(-outputs))
        return np.stack([1 - p, p], axis=-1)
    return np.exp(outputs) / np.exp(outputs).sum(axis=-1, keepdims=True)


def known_of(name: str, i: int) -> list[tuple[int, ...]]:
    """The places of the known labels of sample i, one by one."""
    y = LABELS[name][i]
    missing = np.isnan(y) if name == "regression" else y == -100
    return [place for place in np.ndindex(y.shape) if not missing[place]]


def loss_of(name: str, prediction: np.ndarray, i: int) -> float:
    """The loss of a model's prediction for sample i, written out label by label."""
    y = LABELS[name][i]
    if name == "regression":
        return sum((prediction[place] - y[place]) ** 2 for place in known_of(name, i)) / 2
    return -sum(np.log(prediction[(*place, int(y[place]))]) for place in known_of(name, i))


def tensors(name: str) -> tuple[Tensor, Tensor]:
    y = LABELS[name]
    return torch.from_numpy(OUTPUTS[name]), torch.from_numpy(y if name == "regression" else y.astype(np.int64))


def predictions(name: str) -> np.ndarray:
    return OUTPUTS[name] if name == "regression" else probabilities(name, OUTPUTS[name])


@NAMES
def test_losses_are_sums_over_known_labels(name: str) -> None:
    outputs, y = tensors(name)
    for m in range(M):
        expected = [loss_of(name, predictions(name)[m, i], i) for i in range(N)]
        np.testing.assert_allclose(TASKS[name].losses(outputs[m], y), expected)


@NAMES
def test_a_mixture_is_one_of_probabilities_or_of_means(name: str) -> None:
    """Eq. 5 of FedEM, for every label of its own."""
    task, (outputs, _) = TASKS[name], tensors(name)
    mixed = task.mix(torch.stack([task.predict(o) for o in outputs]), torch.from_numpy(PI))
    expected = np.stack([sum(PI[i, m] * predictions(name)[m, i] for m in range(M)) for i in range(N)])
    answer = task.answer(mixed).numpy()
    np.testing.assert_allclose(answer, expected[..., 1] if name == "multilabel" else expected)
    np.testing.assert_allclose(task.predict(task.outputs(mixed)), mixed)


@NAMES
def test_scores_are_means_over_known_labels(name: str) -> None:
    task, (outputs, y) = TASKS[name], tensors(name)
    scores = task.scores(task.predict(outputs[0]), y)
    prediction = predictions(name)[0]
    for i in range(N):
        places = known_of(name, i)
        if name == "regression":
            error = np.mean([(prediction[i][place] - LABELS[name][i][place]) ** 2 for place in places])
            np.testing.assert_allclose(scores["mse"][i], error)
            np.testing.assert_allclose(scores["loss"][i], loss_of(name, prediction[i], i))
            continue
        right = [prediction[i][place].argmax() == LABELS[name][i][place] for place in places]
        np.testing.assert_allclose(scores["accuracy"][i], np.mean(right))
        np.testing.assert_allclose(scores["loss"][i], loss_of(name, prediction[i], i) / len(places))


@NAMES
def test_missing_labels_change_nothing_and_have_no_gradient(name: str) -> None:
    """Outputs at labels that are missing have no influence, whatever they are."""
    task, (outputs, y) = TASKS[name], tensors(name)
    one = outputs[0].clone().requires_grad_()
    task.losses(one, y).sum().backward()
    assert one.grad is not None
    missing = torch.isnan(y) if name == "regression" else y == -100
    assert one.grad.isfinite().all()
    assert (one.grad[missing] == 0).all()
    assert (one.grad[~missing] != 0).all()


def test_the_perplexity_of_a_client_is_that_of_its_known_positions() -> None:
    """Not the mean of its sequences' perplexities, nor of their means: the second client has long and short ones."""
    task, (outputs, y) = TASKS["language"], tensors("language")
    y = y.clone()
    y[3, 1:] = -100
    client = torch.tensor([0, 0, 1, 1, 1, 2])
    means = ClientMeans(4, task)
    means.update(task.scores(task.predict(outputs[0]), y), client)
    found, p = means.compute(), predictions("language")[0]
    for c in range(3):
        places = [(i, j) for i in range(N) for j in range(L) if client[i] == c and y[i, j] != -100]
        log_p = [np.log(p[i, j, y[i, j]]) for i, j in places]
        right = [p[i, j].argmax() == int(y[i, j]) for i, j in places]
        np.testing.assert_allclose(found["loss"][c], -np.mean(log_p))
        np.testing.assert_allclose(found["perplexity"][c], np.exp(-np.mean(log_p)))
        np.testing.assert_allclose(found["accuracy"][c], np.mean(right))
    assert np.isnan(found["perplexity"][3])
