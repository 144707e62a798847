"""Precision: float32 and bf16-mixed against float64, with the same models, data and shuffling."""

import numpy as np
import pytest
import torch

from fedem_lightning import ClientSGD, FedEM, Linear, SyntheticMixture
from helpers.federations import make_trainer


def trained(precision: str) -> FedEM:
    data = SyntheticMixture(n_clients=10, dimension=8, test_size=200)
    torch.manual_seed(0)
    model = FedEM(Linear(data.in_shape, data.n_outputs), 10, client_optimizer=ClientSGD(lr=0.1, momentum=0.9))
    trainer = make_trainer(50, precision)
    trainer.fit(model, data)
    trainer.test(model, data, verbose=False)
    return model


@pytest.fixture(scope="module")
def exact() -> FedEM:
    return trained("64-true")


@pytest.mark.parametrize(
    ("precision", "relative", "weights", "points"), [("32-true", 2e-5, 2e-5, 0.1), ("bf16-mixed", 2e-2, 2e-2, 1.0)]
)
def test_lower_precisions_stay_near_float64_after_50_rounds(
    precision: str, relative: float, weights: float, points: float, exact: FedEM
) -> None:
    model = trained(precision)
    theta, theta_64 = (torch.cat([p.double().flatten() for p in m.components.parameters()]) for m in (model, exact))
    assert 0 < (theta - theta_64).norm() < relative * theta_64.norm()
    assert (model.pi - exact.pi).abs().max() < weights
    scores = [100 * np.average(m.clients.test_accuracy, weights=m.clients.n_train) for m in (model, exact)]
    assert abs(scores[0] - scores[1]) < points
