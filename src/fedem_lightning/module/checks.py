"""Checks before the first round: options must be in range, and the method must be defined for the federation."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pytorch_lightning as pl
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from fedem_lightning.data.federation import Federation
from fedem_lightning.data.randomness import cohort_size
from fedem_lightning.data.tasks import BinaryClassification, Classification, MultiLabel, Task
from fedem_lightning.method import Method
from fedem_lightning.models.embedded import check_body
from fedem_lightning.models.tensors import called
from fedem_lightning.settings.errors import UserError, given, require

_NO_FEDERATION = (
    "the Trainer's data: expected a FederatedDataModule, got {}; FederatedDataModule.from_arrays(x, y, client) makes "
    "one; samples of a known client are predicted by model.client(NAME).predict(x)"
)


def check_data(trainer: pl.Trainer) -> Any:
    """What the Trainer was given as data; UserError if it cannot yield a federation."""
    loops: dict[str, Any] = {"fit": trainer.fit_loop, "validate": trainer.validate_loop, "test": trainer.test_loop}
    loops["predict"] = trainer.predict_loop
    assert trainer.state.fn is not None
    source = loops[trainer.state.fn.value]._data_source.instance
    batches = isinstance(source, DataLoader | Dataset | Sequence | Mapping | Tensor | np.ndarray)
    yields = isinstance(source, Iterable | pl.LightningDataModule | pl.LightningModule) and not batches
    require(source is None or yields, _NO_FEDERATION.format(given(source)))
    return source


def check_capabilities(algorithm: Method, federation: Federation) -> None:
    """Raises UserError if the model was made for another federation, or the method is not defined for this one."""
    batches = f"batches of {type(federation).__name__}"  # of a loader: the one batch of a round is all clients
    require(isinstance(federation, Federation), _NO_FEDERATION.format(batches))
    other = f"n_clients: the model was made for {algorithm.n_clients} clients, the data has {federation.n_clients}"
    require(federation.n_clients == algorithm.n_clients, other)
    name, aggregation, faults = type(algorithm).__name__, algorithm.aggregation, algorithm.faults
    sends, no_server = algorithm.sends_models, f"{name} has no server that averages clients' models"
    if federation.keys is None:  # a client of its own does not aggregate
        aggregation.check(cohort_size(algorithm.participation, len(federation.clients())))
    plain = f"aggregation: {no_server}, expected mean, got {type(aggregation).__name__}"
    require(sends or aggregation.is_plain, plain)
    if aggregation.samples_independently:
        check_released(algorithm, federation)
    if faults is not None:
        require(sends or not faults.corrupts, f"faults: {no_server}, so {type(faults).__name__} changes nothing")
        faults.check(federation)
    require(sends or algorithm.compression is None, f"compression: {no_server}")
    sgd, free = algorithm.local.optimizer, algorithm.local.takes_steps and not algorithm.needs_sgd
    needs = f"{name} needs plain gradient steps, expected sgd (ClientSGD), got {type(sgd).__name__}"
    require(free or not sgd.adaptive, f"algorithm.client_optimizer: {needs}")
    if algorithm.remote is not None:
        algorithm.remote.check(algorithm)


def check_released(algorithm: Method, federation: Federation) -> None:
    """Raises UserError if more leaves clients than the mean of updates, to which alone a private mean adds noise."""
    single = f"aggregation: {type(algorithm.aggregation).__name__} adds noise to the mean of updates alone"
    for part in (algorithm, algorithm.adaptation):
        more = f"{single}, but by {type(part).__name__} more may leave clients (private_ok, see docs/privacy.md)"
        require(part is None or part.private_ok, more)
    require(not federation.released, f"{single}, but the data also release {', '.join(federation.released)}")


def check_everybody_trains(algorithm: Method, federation: Federation) -> None:
    """Raises UserError if a client that trains may be left out of a round."""
    n_seen, needs = len(federation.clients()), f"{type(algorithm).__name__} needs every client in every round"
    share = f"algorithm.participation: {needs}, got {algorithm.participation}"
    require(cohort_size(algorithm.participation, n_seen) >= n_seen, share)
    require(algorithm.faults is None or algorithm.faults.answers, f"faults: {needs}, but some do not answer")


def check_classes(algorithm: Method, federation: Federation) -> None:
    """Raises UserError if labels are no classes."""
    name, kind = type(algorithm).__name__, type(federation.task).__name__
    classes = "accuracy" in federation.task.measures and not isinstance(federation.task, MultiLabel)
    require(classes, f"dataset.task: {name} needs classes as labels, expected classification or binary, got {kind}")


@torch.enable_grad()  # the outputs know their last operation; see `check_logits`
def check_fit(backbone: nn.Module, federation: Federation) -> Tensor:
    """Runs two samples through the backbone, in eval mode: [2, ...]; UserError: it does not fit data or task."""
    index = federation.splits["train"].positions(federation.clients()[:2])[0][:2]
    dtype = next((p.dtype for p in backbone.parameters()), torch.float32)
    x, y = federation.samples.features(index, dtype), federation.samples.labels(index)
    task, was_training = federation.task, backbone.training
    kind = type(task).__name__
    try:
        outputs = called(backbone.eval(), x)
        given = tuple(outputs.shape[1:]) if isinstance(outputs, Tensor) else f"a {type(outputs).__name__}, no tensor"
        fits = isinstance(outputs, Tensor) and outputs.ndim > 1 and outputs.shape[-1] == task.n_outputs
        fits = fits and task.losses(outputs, y).shape == index.shape
    except Exception as error:  # a network may raise any error on samples of the wrong shape
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
        floats = isinstance(x, dict) or x.is_floating_point()
        hint = "" if floats else "; x are whole numbers, which stay so: give floats if the network needs them"
        shape = f"backbone: it does not take samples of shape {federation.in_shape} for {kind}"
        raise UserError(f"{shape} ({reason}){hint}") from error
    finally:
        backbone.train(was_training)
    check_body(backbone, federation.samples, index)
    require(fits, f"backbone: {kind} needs {task.n_outputs} outputs for a sample, the backbone gives {given}")
    return outputs


def check_logits(outputs: Tensor, task: Task) -> None:
    """Raises UserError if no gradient comes back from outputs [n, ..., Y], or a classifier's are probabilities.

    These end in a softmax or a sigmoid. Log-probabilities are logits, too. Of a softmax one sample alone does not tell.
    """
    cut = "backbone: its outputs have no gradient: its forward detaches them, or does not use its parameters"
    require(outputs.requires_grad, cut)
    message = "backbone: its outputs are probabilities, but the loss takes logits: leave the {} at its end out"
    kinds = Classification | BinaryClassification | MultiLabel
    sigmoid = isinstance(task, kinds) and "Sigmoid" in type(outputs.grad_fn).__name__
    require(not sigmoid, message.format("sigmoid"))
    if not isinstance(task, Classification) or len(outputs) < 2:
        return
    sums = outputs.double().sum(dim=-1)
    logits = bool((outputs < 0).any()) or not torch.allclose(sums, torch.ones_like(sums), rtol=0, atol=1e-4)
    require(logits, message.format("softmax"))
