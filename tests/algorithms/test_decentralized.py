"""D-FedEM against NumPy and against FedEM."""

from typing import Any

import numpy as np
import pytest
import torch

from fedem_lightning import (
    ClientSGD,
    DFedEM,
    FedEM,
    Topology,
)
from fedem_lightning.models.client_store import ClientStore
from fedem_lightning.models.parts import model_bytes
from fedem_lightning.module.round import draw_cohort
from helpers.by_hand import ALL_TRAIN, assert_agree, gradient, responsibilities, row, samples, vector
from helpers.federations import make_data, make_model, make_trainer, models_of, train

COMPLETE, RING = Topology(graph="complete"), Topology(graph="ring")
FULL: dict[str, Any] = {"batch_size": 1000}
EVERYBODY = torch.arange(4)


def test_d_fedem_agrees_with_numpy() -> None:
    """Alg. 4 with one full batch a round on a ring of four clients, whose weights are all 1/3."""
    data, lr = make_data(fractions=ALL_TRAIN), 0.4
    model = make_model(DFedEM, data, n_components=2, client_optimizer=ClientSGD(lr=lr), topology=RING, **FULL).double()
    clients = [samples(data, t) for t in range(4)]
    n = np.array([len(y) for _, y in clients])
    theta, pi = np.tile([vector(c) for c in model.components], (4, 1, 1)), np.full((4, 2), 0.5)  # [T, M, D]
    w_ring = (np.ones((4, 4)) - np.eye(4)[[2, 3, 0, 1]]) / 3
    for _ in range(3):
        half = theta.copy()
        for t, (x, y) in enumerate(clients):
            q = responsibilities(pi[t], theta[t], x, y)
            pi[t] = q.mean(axis=0)
            for m in range(2):
                half[t, m] -= lr * 4 * n[t] / n.sum() * gradient(theta[t, m], x, y, q[:, m])
        theta = np.einsum("st,smd->tmd", w_ring, half)
    train(model, data, 3)
    assert_agree(model.pi.numpy(), pi)
    served = model.personal_models(EVERYBODY).models
    assert_agree(np.array([[row(served, t, m) for m in range(2)] for t in range(4)]), theta)


@pytest.mark.parametrize(("sizes", "steps"), [((12, 12, 12, 12), 5), ((7, 12, 4, 20), 1)])
def test_d_fedem_on_the_complete_graph_is_fedem(sizes: tuple[int, ...], steps: int) -> None:
    """Equal sizes: for any number of local steps; other sizes: for one step of plain SGD."""
    data = make_data(sizes=sizes)
    momentum = 0.9 if steps > 1 else 0.0
    sgd = ClientSGD(lr=0.4, momentum=momentum)
    options: dict[str, Any] = {"n_components": 3, "client_optimizer": sgd, "local_steps": steps}
    fedem = train(make_model(FedEM, data, **options), data, 4)
    d_fedem = train(make_model(DFedEM, data, topology=COMPLETE, **options), data, 4)
    torch.testing.assert_close(d_fedem.pi, fedem.pi, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(models_of(d_fedem), models_of(fedem), rtol=1e-9, atol=1e-12)


def test_the_consensus_error_falls_and_mixing_keeps_the_mean() -> None:
    data = make_data(sizes=(20, 20, 20, 20))
    model = make_model(DFedEM, data, topology=RING, client_optimizer=ClientSGD(lr=0.5))
    trainer = make_trainer(1)
    trainer.fit(model, data)
    assert float(trainer.callback_metrics["spectral_gap"]) == pytest.approx(2 / 3, rel=1e-6)
    first, w = model.models.mean(EVERYBODY), torch.from_numpy(RING.mixing(4, np.ones(4, bool), 0))
    errors = [float(trainer.callback_metrics["consensus_error"]), *(model.models.mix(EVERYBODY, w) for _ in range(3))]
    assert errors == sorted(errors, reverse=True)
    assert errors[3] == pytest.approx(errors[1] / 9**2, rel=1e-6)  # the ring of four contracts by 1/3
    torch.testing.assert_close(model.models.mean(EVERYBODY), first, rtol=1e-12, atol=1e-14)


def test_isolated_clients_keep_their_models_and_messages_follow_the_graph() -> None:
    data = make_data(sizes=(9,) * 6)
    model = make_model(DFedEM, data, topology=Topology(graph="ring"), participation=3)
    train(model, data, 1)
    cohort = draw_cohort(model, data.federation, 0).tolist()
    edges = sum((a + 1) % 6 in cohort for a in cohort)
    assert model.statistics.up_bytes == model.statistics.down_bytes == 2 * edges * 3 * model_bytes(model.components[0])
    rows = model.personal_models(torch.arange(6)).models["linear.bias"]
    start = make_model(DFedEM, data).double().personal_models(torch.arange(6)).models["linear.bias"]
    for t in range(6):
        assert torch.equal(rows[t], start[t]) == (t not in cohort)


def test_integers_and_unwritten_rows_in_a_store() -> None:
    store = ClientStore(3, {"w": torch.tensor([2.0, 4.0]), "count": torch.tensor(7)})
    store[torch.tensor([1])] = {"w": torch.tensor([[8.0, 4.0]]), "count": torch.tensor([9])}
    assert store.mean(torch.arange(3))["w"].tolist() == [4.0, 4.0]
    assert store.mean(torch.arange(3))["count"] == 9
    assert store.mix(torch.arange(3), torch.full((3, 3), 1 / 3)) == pytest.approx(0.0)
    assert store[torch.tensor([0])]["w"].tolist() == [[4.0, 4.0]]
    assert store[torch.tensor([0, 1])]["count"].tolist() == [7, 9]
