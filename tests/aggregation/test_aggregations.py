"""Every algorithm with every aggregation: which have an effect, and when they are the mean."""

from typing import Any

import numpy as np
import pytest
import torch

from fedem_lightning import (
    Aggregation,
    ClientSGD,
    FedAvg,
    FedEM,
    FederatedAlgorithm,
    Median,
    MultiKrum,
    NormClipping,
    TrimmedMean,
    UserError,
    load,
)
from fedem_lightning.aggregation import Update
from fedem_lightning.callbacks import RoundCheckpoint
from fedem_lightning.data import Block
from fedem_lightning.steps.checkpoints import read_checkpoint
from fedem_lightning.testing import check_algorithm
from helpers.conformance import ROWS, Noisy, Row
from helpers.every_method import SLOW, each
from helpers.federations import make_data, make_model, parameters, train

SIZES = (9, 14, 30, 25, 8, 12, 7)
RULES = [NormClipping(), Median(), TrimmedMean(0.3), MultiKrum(1)]


def served(model: FederatedAlgorithm) -> torch.Tensor:
    """What all clients predict with, and the components, as one vector."""
    found = model.personal_models(torch.arange(model.n_clients))
    rows = [t.double().flatten() for t in (*found.models.values(), found.mixture)]
    return torch.cat([*rows, parameters(model.components)])


SENDING = [row for row in ROWS if row.kind.sends_models]


@each(SENDING, SLOW)
def test_every_method_that_sends_updates_trains_with_every_rule(row: Row) -> None:
    data = row.data(sizes=SIZES)
    plain = served(train(row.model(data), data, 1))
    for rule in (NormClipping(), Median(), MultiKrum(1)):
        found = served(train(row.model(data, aggregation=rule), data, 1))
        assert found.isfinite().all()
        assert not torch.equal(found, plain)


@pytest.mark.parametrize(
    ("kind", "rule"),
    [
        (FedEM, "norm_clipping"),
        pytest.param(FedAvg, "norm_clipping", marks=pytest.mark.slow),
        pytest.param(FedAvg, "multi_krum", marks=pytest.mark.slow),
        pytest.param(FedEM, "median", marks=pytest.mark.slow),
    ],
)
def test_the_common_properties_hold_with_a_robust_rule(kind: type[FederatedAlgorithm], rule: str) -> None:
    """Engines, order of clients, state, resumption and unseen clients."""
    enough = rule != "multi_krum"  # it needs more clients than the checks of cohorts and unseen clients leave
    assert "check_resume" in check_algorithm(kind, samples_clients=enough, serves_unseen=enough, aggregation=rule)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)
def test_buffers_and_dropout_go_through_every_rule(rule: Aggregation) -> None:
    data = make_data(sizes=SIZES)
    torch.manual_seed(0)
    model: Any = FedAvg(Noisy(), data.n_clients, batch_size=4, aggregation=rule)
    train(model, data, 1)
    assert parameters(model.components).isfinite().all()
    largest = int(data.federation.splits["train"].counts().max())
    counted = int(model.components[0].norm.num_batches_tracked)
    assert counted == -(-largest // 4) or isinstance(rule, MultiKrum)  # it may leave out the largest client
    assert counted > 0


def test_a_median_round_of_fedavg_by_hand() -> None:
    """The clients' models come from one-client federations; the server's is their median."""
    data, sgd = make_data(sizes=SIZES), ClientSGD(lr=0.3)
    alone = []
    for t in range(data.n_clients):
        block = data.federation.block(torch.tensor([t]), "train")
        alone.append(make_model(FedAvg, data, client_optimizer=sgd).double().client_update(block, 0).models)
    model = train(make_model(FedAvg, data, client_optimizer=sgd, aggregation="median"), data, 1)
    for name, parameter in model.components[0].named_parameters():
        rows = torch.stack([models[name][0, 0] for models in alone]).numpy()
        np.testing.assert_allclose(parameter.detach(), np.median(rows, axis=0), rtol=1e-12)


def test_a_checkpoint_says_how_the_server_combines_updates(tmp_path: Any) -> None:
    data, rule = make_data(sizes=SIZES), MultiKrum(faulty=1, selected=3)
    saving = {"callbacks": [RoundCheckpoint(1, dirpath=tmp_path)], "enable_checkpointing": True}
    train(make_model(FedAvg, data, aggregation=rule), data, 1, **saving)
    path = tmp_path / "round-000001.ckpt"
    recipe = read_checkpoint(path)["recipe"]["aggregation"]
    assert recipe == {"_target_": "fedem_lightning.aggregation.rules.MultiKrum", "faulty": 1, "selected": 3}
    loaded = load(path).aggregation
    assert isinstance(loaded, MultiKrum)
    assert (loaded.faulty, loaded.selected) == (1, 3)
    assert isinstance(FedAvg.load_from_checkpoint(path).aggregation, MultiKrum)


class Silent(FedAvg):
    """It does not say that its clients send nothing."""

    def client_update(self, block: Block, round_: int) -> Update | None:  # type: ignore[override]
        return None


def test_a_method_of_ones_own_without_updates_is_refused_too() -> None:
    data = make_data()
    with pytest.raises(UserError, match="aggregation: Silent sends no updates, expected mean, got Median"):
        train(make_model(Silent, data, aggregation="median"), data, 1)
    train(make_model(Silent, data), data, 1)
