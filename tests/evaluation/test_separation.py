"""Whether components differ by client or by label: by hand, and on mixtures that are known to do one or the other."""

from typing import Any

import numpy as np
import pytest
import torch

from fedem_lightning import FedEM, FederatedDataModule
from fedem_lightning.evaluation.component_diagnostics import agreement
from fedem_lightning.evaluation.separation import MixtureGain, information_share
from fedem_lightning.evaluation.summaries import mean_tests
from fedem_lightning.run.summary import _component_lines
from fedem_lightning.tasks import Classification
from helpers.federations import make_model, make_trainer


@pytest.mark.parametrize(
    ("joint", "share"),
    [
        ([[1, 1], [1, 1]], 0.0),
        ([[2, 0], [0, 3]], 1.0),
        # p = [[3/8, 1/8], [1/8, 3/8]]: I = ln 2 - H(1/4), H = ln 2
        ([[3, 1], [1, 3]], 1 - (0.25 * np.log(4) + 0.75 * np.log(4 / 3)) / np.log(2)),
    ],
)
def test_information_by_hand(joint: list[list[float]], share: float) -> None:
    assert information_share(np.array(joint, dtype=float)) == pytest.approx(share)


def permuted(n_clients: int = 4, n: int = 60) -> FederatedDataModule:
    """Two classes in equal numbers; the feature has the label's sign, and the other sign for odd clients."""
    client = np.repeat(np.arange(n_clients), n)
    y = np.tile([0, 1], n_clients * n // 2)
    x = ((2 * y - 1) * np.where(client % 2, -1.0, 1.0))[:, None] * np.array([[1.0, 0.0]])
    return FederatedDataModule.from_arrays(x, y, client, n_classes=2)


def shares(model: Any, data: FederatedDataModule) -> dict[str, float]:
    """What `agreement` says of labels and clients with mixture weights."""
    components = model.evaluation_components(data.federation)
    found = agreement(model, data.federation, components, model.pi)
    assert {"agreement": found.pop("agreement")} == agreement(model, data.federation, components)
    return {name: share for name, share in found.items() if name.startswith("explained")}


def scored(data: FederatedDataModule, weights: list[list[list[float]]]) -> dict[str, float]:
    """Two components with these weights [M, Y, d] or constant outputs, and equal pi."""
    model: Any = make_model(FedEM, data, n_components=2)
    trainer = make_trainer(1, precision="32-true")
    trainer.fit(model, data)
    with torch.no_grad():
        model.pi.fill_(0.5)
        for component, value in zip(model.components, weights, strict=True):
            component.linear.weight.copy_(torch.tensor([row[:2] for row in value]))
            component.linear.bias.copy_(torch.tensor([row[2] for row in value]))
    return shares(model, data)


def test_components_that_predict_one_class_each_differ_by_label() -> None:
    found = scored(permuted(), [[[0, 0, 9], [0, 0, -9]], [[0, 0, -9], [0, 0, 9]]])
    assert found == pytest.approx({"explained_by_label": 1.0, "explained_by_client": 0.0}, abs=0.05)
    (line,) = _component_lines(found)
    assert line.startswith("components differ by label, not by client: labels explain 100% of which component fits")


def test_components_for_two_kinds_of_clients_differ_by_client() -> None:
    found = scored(permuted(), [[[-9, 0, 0], [9, 0, 0]], [[9, 0, 0], [-9, 0, 0]]])
    assert found == pytest.approx({"explained_by_label": 0.0, "explained_by_client": 1.0}, abs=0.05)
    assert _component_lines(found) == []


def test_nothing_is_said_where_one_component_has_all_samples() -> None:
    data = permuted()
    model: Any = make_model(FedEM, data, n_components=2)
    make_trainer(1, precision="32-true").fit(model, data)
    with torch.no_grad():
        model.pi.copy_(torch.tensor([1.0, 0.0]).expand(4, 2))
    assert shares(model, data) == {}


# --- what mixing gains ------------------------------------------------------------------------------------------------


def test_gains_by_hand() -> None:
    """Two components that are sure of one class each, and one of two clients that mixes them."""
    pi = torch.tensor([[0.6, 0.4], [0.2, 0.8], [1.0, 0.0]])
    predictions = torch.tensor([[[0.7, 0.3]] * 6, [[0.1, 0.9]] * 6])  # [M, n, Y]
    y, owner = torch.tensor([1, 1, 0, 1, 0, 0]), torch.tensor([0, 0, 0, 1, 1, 2])
    gain = MixtureGain(pi, Classification(2))
    gain.add(predictions[:, :4], y[:4], owner[:4])
    gain.add(predictions[:, 4:], y[4:], owner[4:])
    # Eq. 5 predicts class 1 with 0.54, 0.78, 0.3; the strongest component with 0.3, 0.9, 0.3; equal weights with 0.6
    mixed, strongest, equal = np.array([2 / 3, 0.5, 1]), np.array([1 / 3, 0.5, 1]), np.array([2 / 3, 0.5, 0])
    found = gain.gains()
    for name, other in (("strongest", strongest), ("equal", equal)):
        expected = mean_tests(mixed - other, np.zeros(3, dtype=int), 1)
        entry = found[f"gain_over_{name}"]
        assert entry["mean"] == pytest.approx((mixed - other).mean(), abs=1e-6)
        assert (entry["low"], entry["high"]) == pytest.approx((expected.low[0], expected.high[0]), abs=1e-6)


def test_nothing_is_said_without_mixing_or_with_a_single_client() -> None:
    for pi, owner in ((torch.eye(2), [0, 1, 1]), (torch.tensor([[0.6, 0.4], [0.5, 0.5]]), [0, 0, 0])):
        gain = MixtureGain(pi, Classification(2))
        gain.add(torch.rand(2, 3, 2), torch.tensor([0, 1, 1]), torch.tensor(owner))
        assert gain.gains() == {}
    entry = {"mean": 0.0123, "low": -0.001, "high": 0.0256}
    assert _component_lines({"gain_over_strongest": entry, "gain_over_equal": entry}) == [
        "mixing components gains 1.2 (-0.1 to 2.6) points of accuracy over each client's strongest one, 1.2 (-0.1 to "
        "2.6) over equal weights (95 % intervals over clients)"
    ]
