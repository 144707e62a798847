"""Every algorithm with every aggregation: which have an effect, and when they are the mean."""

from typing import Any

import pytest
import torch

from fedem_lightning import (
    Aggregation,
    FedAvg,
    FedEM,
    FederatedAlgorithm,
    Median,
    MultiKrum,
    NormClipping,
    TrimmedMean,
    UserCentric,
    UserError,
    check_algorithm,
)
from fedem_lightning.aggregate import Update
from fedem_lightning.data import Block
from helpers.conformance import ROWS, Noisy, Row
from helpers.every_method import SLOW, each
from helpers.federations import make_data, make_model, models_of, parameters, train

SIZES = (9, 14, 30, 25, 8, 12, 7)
RULES = [NormClipping(), Median(), TrimmedMean(0.3), MultiKrum(1)]


def served(model: FederatedAlgorithm) -> torch.Tensor:
    """What all clients predict with, and the components, as one vector."""
    mixture = model.personal_models(torch.arange(model.n_clients)).mixture.double()
    return torch.cat([models_of(model).flatten(), mixture.flatten(), parameters(model.components)])


SENDING = [row for row in ROWS if row.kind.sends_models]


@each(SENDING, SLOW)
def test_every_method_that_sends_updates_trains_with_every_rule(row: Row) -> None:
    data = row.data(sizes=SIZES)
    plain = served(train(row.model(data), data, 1))
    rules = (NormClipping(), MultiKrum(1)) if row.kind is UserCentric else (NormClipping(), Median(), MultiKrum(1))
    for rule in rules:
        found = served(train(row.model(data, aggregation=rule), data, 1))
        assert found.isfinite().all()
        assert not torch.equal(found, plain)


def test_the_common_properties_hold_with_a_robust_rule() -> None:
    """Engines, order of clients, state, resumption and unseen clients."""
    assert "check_resume" in check_algorithm(FedEM, aggregation="norm_clipping")


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


class Silent(FedAvg):
    """It does not say that its clients send nothing."""

    def client_update(self, block: Block, round_: int) -> Update | None:  # type: ignore[override]
        return None


def test_a_method_of_ones_own_without_updates_is_refused_too() -> None:
    data = make_data()
    with pytest.raises(UserError, match="aggregation: Silent sends no updates, expected mean, got Median"):
        train(make_model(Silent, data, aggregation="median"), data, 1)
    train(make_model(Silent, data), data, 1)
