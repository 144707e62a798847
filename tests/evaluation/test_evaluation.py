import numpy as np
import pytest
import torch

from fedem_lightning import FedAvg, FedEM, Local
from fedem_lightning.evaluate.component_diagnostics import recovery_scores
from fedem_lightning.evaluate.summaries import summarize, summarize_table
from helpers.federations import make_data, make_model, train_and_test


def test_summaries_of_a_worked_example() -> None:
    accuracy = np.array([0.5, 1.0, 0.0, 0.75, np.nan])
    n_train, n_test = np.array([10, 30, 20, 40, 7]), np.array([1, 2, 3, 4, 0])
    sums = summarize(accuracy, n_train, n_test, higher_is_better=True)
    assert sums == pytest.approx(
        {
            "weighted": (5 + 30 + 0 + 30) / 100,
            "pooled": (0.5 + 2 + 0 + 3) / 10,
            "mean": 2.25 / 4,
            "bottom_decile": 0.0,
            "worst": 0.0,
        }
    )
    losses = summarize(accuracy, n_train, n_test, higher_is_better=False)
    assert (losses["worst"], losses["mean"]) == (1.0, 2.25 / 4)
    assert summarize(accuracy, n_train, np.zeros(5, int), True) == {}


@pytest.mark.parametrize(("n_clients", "place"), [(300, 30), (539, 54), (10, 1), (11, 2), (1, 1)])
def test_bottom_decile_is_the_right_client(n_clients: int, place: int) -> None:
    values = np.random.default_rng(0).permutation(n_clients) / n_clients
    ones = np.ones(n_clients, dtype=int)
    assert summarize(values, ones, ones, True)["bottom_decile"] == sorted(values)[place - 1]
    assert summarize(values, ones, ones, False)["bottom_decile"] == sorted(values)[-place]


@pytest.mark.parametrize("kind", [FedEM, FedAvg, Local])
def test_the_clients_table_agrees_with_predictions_one_by_one(kind: type) -> None:
    data = make_data(sizes=(30, 25, 4))  # the last client has no test sample
    model = train_and_test(make_model(kind, data), data, 2)
    table = model.clients
    assert table.id.tolist() == ["0", "1", "2"]
    for t in range(2):
        block = data.federation.block(torch.tensor([t]), "test")
        log_probs = model.predict(block)
        y = block.y()
        assert table.test_accuracy[t] == pytest.approx((log_probs.argmax(1) == y).double().mean().item())
        assert table.test_loss[t] == pytest.approx(-log_probs[torch.arange(len(y)), y].mean().item())
    assert table.n_test.tolist() == [6, 5, 0]
    assert np.isnan(table.test_accuracy[2])
    assert summarize_table(table, "test")["accuracy"]["mean"] == pytest.approx(table.test_accuracy[:2].mean())
    if kind is FedEM:
        np.testing.assert_allclose(table[["pi_0", "pi_1", "pi_2"]].sum(axis=1), 1)


def test_recovery_matches_components_before_it_measures() -> None:
    rng = np.random.default_rng(0)
    true_pi, true_theta = rng.dirichlet(np.full(3, 0.2), size=50), rng.normal(size=(3, 6))
    order = [2, 0, 1]
    truth = {"pi": true_pi, "theta": true_theta, "group": true_pi.argmax(axis=1)}
    scores = recovery_scores(true_pi[:, order], true_theta[order], truth, np.ones(50, bool))
    assert scores["match"] == order
    assert scores["pi_cosine_distance"] == pytest.approx(0, abs=1e-12)
    assert scores["theta_cosine_distance"] == pytest.approx(0, abs=1e-12)
    assert scores["group_accuracy"] == 1.0
    assert recovery_scores(true_pi[:, :2], None, truth, np.ones(50, bool)) == {}
    assert recovery_scores(true_pi, None, {}, np.ones(50, bool)) == {}
    groups_only = recovery_scores(true_pi, None, {"group": truth["group"]}, np.ones(50, bool))
    assert groups_only == {"match": [0, 1, 2], "group_accuracy": 1.0}
