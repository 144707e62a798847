"""The contract of an algorithm: one page, client state declared once, old names refused."""

from typing import Any

import pytest
import pytorch_lightning as pl
import torch

from fedem_lightning import DFedEM, FedAvg, FedEM, FederatedAlgorithm, FedGMM, HypCluster
from fedem_lightning.algorithms.facts import known_pi
from fedem_lightning.run.results import _n_served_models
from helpers.federations import make_data, make_model, train


def test_the_base_class_has_few_members() -> None:
    ours = [name for name in vars(FederatedAlgorithm) if not name.startswith("_")]
    members = [name for name in ours if not hasattr(pl.LightningModule, name)]
    assert len(members) <= 26


def test_how_many_models_serve_all_clients() -> None:
    data = make_data()
    assert _n_served_models(make_model(FedAvg, data)) == 1
    assert _n_served_models(make_model(HypCluster, data, n_components=2)) == 2
    assert _n_served_models(make_model(FedEM, data)) is None


@pytest.mark.parametrize("kind", [FedEM, HypCluster, DFedEM, FedGMM])
def test_methods_that_mix_have_weights_of_their_components(kind: Any) -> None:
    data = make_data()
    model = train(make_model(kind, data, n_components=2), data, 1)
    assert known_pi(model).shape == (4, 2)
    torch.testing.assert_close(known_pi(model).sum(dim=1), torch.ones(4).to(known_pi(model)))
    assert known_pi(make_model(FedAvg, data)) is None
