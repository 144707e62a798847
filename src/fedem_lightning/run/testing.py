"""Checks that every algorithm must pass, for a method in a project of your own.

Call `check_algorithm(Ditto, strength=0.1)` in a test. The checks find most mistakes: state that is not saved or not
declared, results that depend on the engine or on the order of clients, unseen clients that change the training.
"""

import copy
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytorch_lightning as pl
import torch
from torch import Tensor

from fedem_lightning.data import FederatedDataModule
from fedem_lightning.data.randomness import sample_cohort
from fedem_lightning.local.optimizers import ClientSGD
from fedem_lightning.models.backbones import MLP
from fedem_lightning.models.components import Backbone
from fedem_lightning.module.algorithm import FederatedAlgorithm
from fedem_lightning.module.fitting import prepare
from fedem_lightning.run.callbacks import RoundCheckpoint


@dataclass(frozen=True)
class Case:
    """An algorithm to check: its class and its options."""

    kind: type[FederatedAlgorithm]
    backbone: Backbone | None
    options: dict[str, Any]

    def model(self, data: FederatedDataModule, **options: Any) -> FederatedAlgorithm:
        """The method with networks whose initial values are always the same."""
        torch.manual_seed(0)
        defaults: dict[str, Any] = {"batch_size": 4, "client_optimizer": ClientSGD(lr=0.3, momentum=0.9)}
        made = defaults | copy.deepcopy(self.options) | options
        return self.kind(self.backbone or MLP(data.in_shape, data.n_outputs, [5]), data.n_clients, **made)

    def trained(self, data: FederatedDataModule, rounds: int = 2, **options: Any) -> FederatedAlgorithm:
        """The method after training for some rounds."""
        model = self.model(data, **options)
        _trainer(rounds).fit(model, data)
        return model


def check_algorithm(
    kind: type[FederatedAlgorithm],
    *,
    backbone: Backbone | None = None,
    samples_clients: bool = True,
    serves_unseen: bool = True,
    **options: Any,
) -> list[str]:
    """Checks the common properties of all algorithms for one method, on a tiny federation, in float64.

    Args:
        kind: class of the method.
        backbone: a network for samples of 4 features and 2 classes, or a function that makes one; None: a hidden layer
            of 5 units, the body, and a linear layer, the head.
        samples_clients: whether a round may leave clients out.
        serves_unseen: whether unseen clients get a model.
        options: options of the class.

    Returns:
        The names of the checks that passed.

    Raises:
        AssertionError: a property does not hold; the message says which.

    """
    checks: list[Callable[[Case], None]] = [check_training, check_engines, check_order, check_state, check_resume]
    checks += [check_sampling] if samples_clients else []
    checks += [check_unseen] if serves_unseen else []
    for check in checks:
        check(Case(kind, backbone, options))
    return [check.__name__ for check in checks]


def check_training(case: Case) -> None:
    """Checks that a round is finite, changes the personal models, and is counted once by Lightning."""
    data = _data()
    model = case.model(data).double()
    prepare(model, data.federation)
    before = _served(model)
    _trainer(1).fit(model, data)
    after = _served(model)
    _require(case, all(rows.isfinite().all() for rows in after.values()), "a round gives numbers that are not finite")
    moved = any(not torch.equal(before[name], rows) for name, rows in after.items())
    _require(case, moved, "a round does not change what clients predict with (personal_models)")
    steps = model.trainer.global_step
    _require(case, steps == 1, f"server_update calls server.step {steps} times in a round, expected once")


def check_engines(case: Case) -> None:
    """Checks that results do not depend on the engine and the size of blocks."""
    one, other = (_served(case.trained(_data(), engine=engine)) for engine in ("loop", "vmap"))
    _agree(case, one, other, "the engines loop and vmap differ")


def check_order(case: Case) -> None:
    """Checks that results do not depend on the order of clients."""
    order = torch.tensor([2, 0, 3, 1])
    # full batches, because the order of a client's samples depends on its index
    one, other = (_served(case.trained(_data(o), batch_size=100)) for o in (torch.arange(4), order))
    _agree(case, {name: rows[order] for name, rows in one.items()}, other, "the result depends on the clients' order")


def check_state(case: Case) -> None:
    """Checks that checkpoints hold everything that personal models need."""
    data = _data()
    model, fresh = case.trained(data), case.model(data).double()
    prepare(fresh, data.federation)
    fresh.load_state_dict(model.state_dict())
    unsaved = "state is lost in a checkpoint: declare it with self.per_client, or as a buffer"
    _agree(case, _served(model), _served(fresh), unsaved, exact=True)


def check_resume(case: Case) -> None:
    """Checks that a resumed run ends with the same bits as a run without a stop."""
    data = _data()
    straight, resumed = case.model(data), case.model(data)
    with tempfile.TemporaryDirectory() as folder:
        saving = {"callbacks": [RoundCheckpoint(1, keep=9, dirpath=folder)], "enable_checkpointing": True}
        _trainer(3, **saving).fit(straight, data)
        _trainer(3).fit(resumed, data, ckpt_path=Path(folder) / "round-000002.ckpt", weights_only=True)
    _agree(case, _served(straight), _served(resumed), "a resumed run differs from one without a stop", exact=True)


def check_sampling(case: Case) -> None:
    """Checks that clients outside the cohort keep their state."""
    data = _data()
    model = case.model(data, participation=2).double()
    prepare(model, data.federation)
    before = [rows.clone() for rows in model.states.rows()]
    _trainer(1).fit(model, data)
    others = torch.ones(4, dtype=torch.bool)
    others[sample_cohort(data.federation.clients(), 2, model.seed, 0)] = False
    for was, now in zip(before, model.states.rows(), strict=True):
        kept = was.shape != now.shape or torch.equal(now[others], was[others])
        _require(case, kept, "a client outside the cohort changes its state")


def check_unseen(case: Case) -> None:
    """Checks that unseen clients have models and scores, do not change the training, and are personalised each time."""
    data = _data(unseen_fraction=0.5)
    model, trainer = case.trained(data), _trainer(0)
    seen = data.federation.clients()
    before = {name: rows[seen].clone() for name, rows in _served(model).items()}
    trainer.test(model, data, verbose=False)
    first = model.clients
    _require(case, bool(first.test_loss.notna().all()), "an unseen client has no score")
    after = {name: rows[seen] for name, rows in _served(model).items()}
    if not model.personalizes_seen:
        _agree(case, before, after, "unseen clients change the models of seen ones", exact=True)
    trainer.test(model, data, verbose=False)
    again = np.array_equal(first.test_loss, model.clients.test_loss)
    _require(case, again, "personalize_clients goes on from the last test, expected: it starts anew")


def _data(order: Tensor | None = None, **options: Any) -> FederatedDataModule:
    """A federation of four clients with two classes from a linear rule; client i is client order[i] by default."""
    sizes, rng = np.array([7, 12, 5, 20]), np.random.default_rng(0)
    client = np.repeat(np.arange(4), sizes)
    x = rng.normal(size=(len(client), 4))
    y = (x[:, 0] + 0.3 * rng.normal(size=len(client)) > 0).astype(np.int64)
    split = np.concatenate([np.arange(size) % 5 // 3 for size in sizes])  # 0 train, 1 val
    split[np.flatnonzero(split == 1)[::2]] = 2  # test
    if order is not None:
        client = np.argsort(order.numpy())[client]
    options = {"n_classes": 2, "domain": np.arange(len(client)) % 2, "split": split, **options}
    data = FederatedDataModule.from_arrays(x, y, client, **options)
    data.federation.truth["group"] = np.arange(4) % 2
    return data


def _trainer(rounds: int, **options: Any) -> pl.Trainer:
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "limit_val_batches": 0}
    given: dict[str, Any] = {**quiet, "enable_checkpointing": False, **options}
    return pl.Trainer(max_epochs=rounds, accelerator="cpu", precision="64-true", **given)


def _served(model: FederatedAlgorithm) -> dict[str, Tensor]:
    """Copies of all clients' personal models, [T, M, ...]."""
    result = model.personal_models(torch.arange(model.n_clients))
    named = {**result.models, "mixture": result.mixture}
    return {name: rows.detach().double().clone() for name, rows in named.items()}


def _agree(case: Case, one: dict[str, Tensor], other: dict[str, Tensor], wrong: str, exact: bool = False) -> None:
    rtol, atol = (0.0, 0.0) if exact else (1e-7, 1e-9)
    for name, rows in one.items():
        close = torch.allclose(rows, other[name], rtol=rtol, atol=atol, equal_nan=True)
        _require(case, close, f"{wrong} (in {name})")


def _require(case: Case, holds: bool, wrong: str) -> None:
    assert holds, f"{case.kind.__name__}: {wrong}"
