"""What a user of Lightning meets: classes and options that cannot be meant, what comes back, what is logged."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd
import pytest
import pytorch_lightning as pl
import torch
import yaml
from pytorch_lightning.callbacks import BatchSizeFinder, EarlyStopping, EMAWeightAveraging, ModelCheckpoint
from pytorch_lightning.loggers import CSVLogger
from torch import nn

from fedem_lightning import (
    ClientSGD,
    FedAvg,
    FedEM,
    FederatedAlgorithm,
    FederatedDataModule,
    FedProx,
    Finetune,
    Linear,
    SyntheticMixture,
    UserError,
)
from fedem_lightning.data.tasks import Classification
from fedem_lightning.module.fitting import prepare
from fedem_lightning.module.trainer_options import check_trainer
from helpers.federations import grouped, make_data, make_model, make_trainer, parameters, stored, train

# --- classes and networks ---------------------------------------------------------------------------------------------


class Nothing(FederatedAlgorithm):
    """Says nothing of its clients."""


def test_a_class_without_client_update_is_refused_when_it_is_made() -> None:
    with pytest.raises(UserError, match=r"^Nothing does not define client_update, see docs/adding_an_algorithm.md$"):
        make_model(cast(Any, Nothing), make_data())


@pytest.mark.parametrize("returned", [{"weight": 1}, (1, 2), torch.zeros(1)])
def test_what_clients_send_is_sent_or_none(returned: Any) -> None:
    class Mine(FedAvg):
        def client_update(self, block: Any, round_: int) -> Any:
            return returned

    expected = f"^Mine.client_update returned {type(returned).__name__}, expected Update"
    with pytest.raises(UserError, match=expected):
        train(make_model(Mine, make_data()), make_data(), 1)


@pytest.mark.parametrize("stage", ["fit", "validate", "test"])
@pytest.mark.parametrize("n_outputs", [2, 9, 11])
def test_a_network_with_other_outputs_is_refused_without_the_command_line_too(stage: str, n_outputs: int) -> None:
    data = make_data(n_classes=10)
    model = FedAvg(Linear(data.in_shape, n_outputs), data.n_clients)
    with pytest.raises(UserError, match=rf"needs 10 outputs for a sample, the backbone gives \({n_outputs},\)$"):
        getattr(make_trainer(1, limit_val_batches=1), stage)(model, data)


def test_a_network_of_other_features_is_refused_and_left_as_it_was() -> None:
    data, model = make_data(), FedAvg(nn.Sequential(nn.BatchNorm1d(9), nn.Linear(9, 3)), 4)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(UserError, match=r"^backbone: it does not take samples of shape \(4,\) for Classification \("):
        prepare(model, data.federation)
    assert model.components[0].training
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


class Module(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> Any:
        return self.linear(x)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return self(batch[0]).sum()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


@pytest.mark.filterwarnings("ignore:You passed in a `val_dataloader`")
def test_a_lightning_module_of_ones_own_is_a_network_and_no_method() -> None:
    with pytest.raises(
        UserError, match=r"^the Trainer's model: Module would get all clients as one batch; .*FedAvg\(Mod"
    ):
        make_trainer(1).fit(Module(), make_data())
    with pytest.warns(
        UserWarning, match="^backbone: Module is a LightningModule, of which forward alone is used"
    ) as said:
        model = FedAvg(Module(), 4)
    assert len(said) == 1
    torch.manual_seed(0)
    plain_model: Any = FedAvg(nn.Sequential(nn.Linear(4, 3)), 4)
    model.components[0].linear.load_state_dict(plain_model.components[0][0].state_dict())
    assert torch.equal(parameters(train(model, make_data(), 2)), parameters(train(plain_model, make_data(), 2)))


DEFAULTS = """
import pytorch_lightning as pl
from fedem_lightning import FedAvg, Linear, SyntheticMixture
data = SyntheticMixture(n_clients=4, dimension=5, test_size=9)
pl.Trainer(max_epochs=1, enable_progress_bar=False).fit(FedAvg(Linear(data.in_shape, data.n_outputs), 4), data)
"""


def test_what_a_trainer_says_by_default(tmp_path: Path) -> None:
    """Of Lightning's lines those that recommend, that are 0 or that nobody can act on are left out."""
    command = [sys.executable, "-c", DEFAULTS]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=True)
    said = done.stdout + done.stderr
    assert "model: 1 x Linear, 6 parameters each\n" in done.stdout
    assert not [word for word in ("Tip", "LeafSpec", "FLOPs") if word in said]
    assert "GPU available" in said
    assert "smaller than the logging interval" in said


# --- strings ----------------------------------------------------------------------------------------------------------

WORDS = np.repeat(["b", "a"], 6)
COLUMNS = {
    "objects": WORDS.astype(object),
    "arrow": pd.Series(WORDS, dtype="string[pyarrow]"),
    "categories": pd.Series(pd.Categorical(WORDS)),
}


def arrays(**more: Any) -> dict[str, Any]:
    return {"x": np.zeros((12, 2)), "y": np.arange(12) % 3, "client": np.arange(12) % 2, **more}


@pytest.mark.parametrize("kind", COLUMNS)
def test_clients_domains_and_labels_may_be_strings_of_any_kind(kind: str) -> None:
    column = COLUMNS[kind]
    federation = FederatedDataModule.from_arrays(**arrays(client=column, domain=column)).federation
    assert tuple(federation.names) == federation.domains.names == ("a", "b")
    assert federation.domains.of_sample.tolist() == [1] * 6 + [0] * 6
    labelled = FederatedDataModule.from_arrays(**arrays(y=column)).federation
    assert stored(labelled).y.tolist() == [1] * 6 + [0] * 6
    assert labelled.notes == {"classes": ["a", "b"]}
    assert labelled.task == Classification(2)


@pytest.mark.parametrize(
    ("column", "wrong"),
    [
        (["a", None] * 6, "only strings, or only whole numbers, got NoneType and str"),
        (np.array([1, None] * 6, dtype=object), "only strings, or only whole numbers, got NoneType and int"),
    ],
)
@pytest.mark.parametrize("name", ["client", "y", "domain"])
def test_a_missing_value_is_named(column: Any, wrong: str, name: str) -> None:
    with pytest.raises(UserError, match=f"^{name}: expected {wrong}$"):
        FederatedDataModule.from_arrays(**arrays(**{name: column}))


# --- options of the Trainer -------------------------------------------------------------------------------------------

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "half a round": ({"limit_train_batches": 0.5}, "limit_train_batches: .* got 0.5; fewer clients: algorithm.partici"),
    "no test": ({"limit_test_batches": 0}, "limit_test_batches: .* expected 1, got 0"),
    "clipping": ({"gradient_clip_val": 1.0}, "gradient_clip_val: .* use algorithm.client_optimizer.max_grad_norm"),
    "steps": ({"max_steps": 2}, "max_steps: a step is a round here; use trainer.max_epochs"),
    "several quick rounds": ({"fast_dev_run": 3}, "fast_dev_run: .* use trainer.max_epochs=3"),
    "evaluation within rounds": ({"val_check_interval": 0.5}, "val_check_interval: .* check_val_every_n_epoch"),
    "shared statistics": ({"sync_batchnorm": True, "strategy": "ddp", "devices": 2}, "sync_batchnorm: .* false"),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", REFUSED)
def test_options_that_cannot_be_meant_say_what_to_use(name: str) -> None:
    options, message = REFUSED[name]
    trainer = make_trainer(2, **{"limit_val_batches": 1, **options})
    with pytest.raises(UserError, match=f"^trainer.{message}"):
        check_trainer(trainer)


@pytest.mark.parametrize("stage", ["fit", "validate", "test"])
def test_options_are_checked_before_anything_runs(stage: str) -> None:
    data = make_data()
    with pytest.raises(UserError, match=r"^trainer.gradient_clip_val"):
        getattr(make_trainer(2, gradient_clip_val=1.0), stage)(make_model(FedAvg, data), data)


CALLBACKS: dict[str, Callable[[], pl.Callback]] = {
    "BatchSizeFinder": BatchSizeFinder,
    "WeightAveraging": EMAWeightAveraging,
}


@pytest.mark.parametrize("name", CALLBACKS)
def test_callbacks_that_cannot_be_meant_say_what_to_use(name: str) -> None:
    data = make_data()
    with pytest.raises(UserError, match=f"^{name}: "):
        train(make_model(FedAvg, data), data, 2, callbacks=[CALLBACKS[name]()])


def test_a_schedule_needs_the_number_of_rounds() -> None:
    data = make_data()
    model = make_model(FedAvg, data, client_optimizer=ClientSGD(schedule="cosine"))
    with pytest.raises(UserError, match=r"^trainer.max_epochs: algorithm.client_optimizer.schedule=cosine needs"):
        train(model, data, -1, max_time={"seconds": 1})


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("options", "rounds"),
    [
        ({"fast_dev_run": True}, 1),
        ({"limit_train_batches": 1.0, "limit_val_batches": 0, "limit_test_batches": 1}, 3),
        ({"val_check_interval": 2, "check_val_every_n_epoch": None}, 3),
        ({"profiler": "simple"}, 3),
        pytest.param({"profiler": "pytorch"}, 3, marks=pytest.mark.slow),
        ({"num_sanity_val_steps": 2, "inference_mode": True}, 3),
    ],
)
def test_other_options_work(
    options: dict[str, Any], rounds: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # a profiler writes there
    data = make_data()
    model, plain_model = make_model(FedAvg, data), make_model(FedAvg, data)
    trainer = make_trainer(3, **{"limit_val_batches": 1, **options})
    trainer.fit(model, data)
    assert len(model.statistics.round_seconds) == rounds
    train(plain_model, data, rounds)
    for one, other in zip(model.parameters(), plain_model.parameters(), strict=True):
        assert torch.equal(one, other)
    assert "test/accuracy" in trainer.test(model, data, verbose=False)[0]


# --- what comes back --------------------------------------------------------------------------------------------------


MEASURES = ("accuracy", "accuracy_pooled", "accuracy_bottom_decile", "loss")


def test_validate_is_about_validation_and_test_about_the_test() -> None:
    data = make_data(sizes=(21, 33, 40, 26, 35), unseen_fraction=0.4)  # n_test / n_train differs from client to client
    model, trainer = make_model(FedAvg, data), make_trainer(2, limit_val_batches=1)
    trainer.fit(model, data)
    curves = {name: float(value) for name, value in trainer.callback_metrics.items()}
    splits = ("train", "val")
    names = [f"{split}/{measure}" for split in splits for measure in MEASURES]
    (found,) = trainer.validate(model, data, verbose=False)
    assert found == pytest.approx({name: curves[name] for name in names})

    (found,) = trainer.test(model, data, verbose=False)
    expected = {}
    for population, prefix in (("seen", "test"), ("unseen", "test_unseen")):
        table = model.clients[model.clients.population == population]
        for measure, worst in (("accuracy", "min"), ("loss", "max")):
            scores = table[f"test_{measure}"]
            expected[f"{prefix}/{measure}"] = np.average(scores, weights=table.n_train)
            expected[f"{prefix}/{measure}_pooled"] = (table.n_test * scores).sum() / table.n_test.sum()
            expected[f"{prefix}/{measure}_mean"] = scores.mean()
            expected[f"{prefix}/{measure}_bottom_decile"] = getattr(scores, worst)()  # of three clients, and of two
    assert found == pytest.approx(expected, rel=1e-6)
    assert found["test/accuracy"] != found["test/accuracy_pooled"]
    for name in ("test/accuracy", "test/accuracy_pooled"):
        assert found[name] == pytest.approx(curves[name])


@pytest.mark.parametrize("name", ["train/loss", "val/accuracy_pooled", "test/loss", "val_accuracy", "val_loss"])
def test_callbacks_may_monitor_the_documented_names(name: str, tmp_path: Path) -> None:
    data = make_data(sizes=(20, 30, 40))
    best = ModelCheckpoint(tmp_path, "best", monitor=name, mode="max")
    stop = EarlyStopping(monitor=name, mode="max", patience=1, min_delta=10)  # nothing gets better by so much
    options = {"callbacks": [best, stop], "enable_checkpointing": True, "limit_val_batches": 1}
    model = train(make_model(FedAvg, data), data, 20, check_val_every_n_epoch=2, num_sanity_val_steps=0, **options)
    assert len(model.statistics.round_seconds) == 4
    assert stop.stopped_epoch == 3
    assert Path(best.best_model_path) == tmp_path / "best.ckpt"
    assert best.best_model_score is not None
    assert float(best.best_model_score) == pytest.approx(float(stop.best_score), abs=10)


# --- hyper-parameters -------------------------------------------------------------------------------------------------


def test_loggers_record_what_a_run_was_made_with(tmp_path: Path) -> None:
    data = SyntheticMixture(n_clients=4, dimension=5, test_size=9, seed=3)
    sgd = ClientSGD(lr=0.3, momentum=0.5, schedule="cosine")
    model = FedProx(
        lambda: Linear(data.in_shape, data.n_outputs), 4, mu=0.7, client_optimizer=sgd, adaptation=Finetune(2), seed=1
    )
    logger = CSVLogger(tmp_path, name="", version="")
    make_trainer(1, logger=logger, log_every_n_steps=1).fit(model, data)
    recorded = yaml.safe_load((tmp_path / "hparams.yaml").read_text())
    expected = {
        "algorithm": "FedProx",
        "backbone": {"_target_": "fedem_lightning.models.backbones.networks.Linear", "in_shape": [5], "n_outputs": 1},
        "mu": 0.7,
        "client_optimizer": {"_target_": "fedem_lightning.local.optimizers.ClientSGD", **vars(sgd)},
        "server_optimizer": {"_target_": "torch.optim.sgd.SGD", "_partial_": True, "lr": 1.0},
        "adaptation": {"_target_": "fedem_lightning.evaluate.adapt.base.Finetune", "epochs": 2},
        "batch_size": 128,
    }
    assert {name: recorded[name] for name in expected} == expected
    data_expected = {"class": "SyntheticMixture", "n_clients": 4, "dimension": 5, "alpha": 0.4, "seed": 3}
    assert recorded["data"].items() >= data_expected.items()
    assert recorded == {**model.hparams, **data.hparams}


@pytest.mark.parametrize("end", [nn.Softmax(dim=-1), nn.LogSoftmax(dim=-1), nn.Sigmoid(), nn.Identity()], ids=str)
def test_a_network_that_ends_in_a_softmax_or_a_sigmoid_is_refused_before_it_trains(end: nn.Module) -> None:
    data = make_data()
    torch.manual_seed(0)
    model = FedAvg(nn.Sequential(nn.Linear(4, 3), end), 4)
    if isinstance(end, nn.Softmax | nn.Sigmoid):
        with pytest.raises(UserError, match=r"^backbone: its outputs are probabilities, but the loss takes logits"):
            make_trainer(1).fit(model, data)
        model.statistics.round_seconds = [1.0]  # as after an earlier version's round: its scores stay readable
        make_trainer(1).test(model, data, verbose=False)
        make_trainer(2).fit(model, data)
    else:
        train(model, data, 1)


# --- learning rates ---------------------------------------------------------------------------------------------------


def test_a_fit_says_that_nobody_chose_the_learning_rate(capsys: pytest.CaptureFixture[str]) -> None:
    data = make_data()
    model = train(make_model(FedAvg, data), data, 1)
    line = "learning rate 0.1, the default, nobody chose it for these data; client_optimizer=ClientSGD(lr=...) sets"
    assert capsys.readouterr().out.startswith(line)
    make_trainer(1).fit(model, data)  # it goes on
    train(make_model(FedAvg, data, client_optimizer=ClientSGD(lr=0.1)), data, 1)
    assert "learning rate" not in capsys.readouterr().out


# --- a second fit -----------------------------------------------------------------------------------------------------


def test_a_model_that_is_fitted_again_goes_on_with_its_rounds() -> None:
    data = grouped(n_clients=6)
    options: dict[str, Any] = {"n_components": 2, "initialization": "shared", "participation": 0.5}
    straight = train(make_model(FedEM, data, **options), data, 5)
    again = make_model(FedEM, data, **options)
    for rounds in (3, 2):  # a Trainer of its own each
        make_trainer(rounds).fit(again, data)
    assert again.statistics.planned_rounds == 5
    assert [cells["round"] for _, cells in sorted(again.curves.items())] == [1, 2, 3, 4, 5]
    torch.testing.assert_close(again.pi, straight.pi, rtol=0, atol=0)
    torch.testing.assert_close(parameters(again), parameters(straight), rtol=0, atol=0)
