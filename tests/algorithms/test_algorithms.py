"""The conformance table: every algorithm goes through the same properties, but for those that it is
not defined for; then each one's degenerate cases.
"""

from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import softmax

from fedem_lightning import (
    ClientSGD,
    FedAvg,
    FedEM,
    FederatedDataModule,
    LoopEngine,
    UserCentric,
    UserError,
    VmapEngine,
)
from fedem_lightning.data.randomness import sample_cohort
from fedem_lightning.run.callbacks import RoundCheckpoint
from helpers.by_hand import assert_agree, logits, vector
from helpers.conformance import ROWS, Noisy, Row, own_rows
from helpers.every_method import A_FEW, EVERY, NUMBERED_AT_WILL, SAMPLING, TRAINED_BY_SGD
from helpers.federations import block_of, make_data, make_model, make_trainer, models_of, parameters, spoil, train

SGD = ClientSGD(lr=0.5, momentum=0.9)
SLOW = pytest.mark.slow


def relabelled(data: FederatedDataModule, order: np.ndarray) -> FederatedDataModule:
    """The same samples with clients renumbered: new client i is old client order[i]."""
    federation = data.federation
    parts = [block_of(data, split) for split in federation.splits]
    of_parts = zip(*((b.x(torch.float64), b.y(), b.owner, b.domain()) for b in parts), strict=True)
    x, y, client, domain = (torch.cat(arrays).numpy() for arrays in of_parts)
    split = np.repeat(range(len(parts)), [len(b.index) for b in parts])
    data = FederatedDataModule.from_arrays(x, y, np.argsort(order)[client], split=split, domain=domain, n_classes=3)
    data.federation.truth["group"] = federation.truth["group"][order]
    return data


@NUMBERED_AT_WILL
def test_permuting_clients_permutes_the_result(row: Row) -> None:
    data, order = row.data(), np.array([2, 0, 3, 1])
    permuted = relabelled(data, order)
    # full batches: the order in which a client meets its samples does depend on its number
    options: dict[str, Any] = {"client_optimizer": SGD, "batch_size": 100}
    a, b = (train(row.model(d, **options), d, 3) for d in (data, permuted))
    torch.testing.assert_close(models_of(b), models_of(a)[order], rtol=1e-9, atol=1e-12)
    weights = [model.personal_models(torch.arange(4)).mixture for model in (a, b)]
    torch.testing.assert_close(weights[1], weights[0][order], rtol=1e-9, atol=1e-12)
    for name in row.private:
        torch.testing.assert_close(own_rows(b, name), own_rows(a, name)[order], rtol=1e-9, atol=1e-12)


def engines_and_blocks_agree(row: Row, backbone: str) -> None:
    data = row.data(sizes=(9, 17, 6, 13))
    served = []
    for engine in (LoopEngine(), VmapEngine(), VmapEngine(block_size=2), LoopEngine(block_size=1)):
        torch.manual_seed(0)
        net = Noisy if backbone == "noisy" else row.network(data)
        options: dict[str, Any] = {"client_optimizer": ClientSGD(lr=0.2, momentum=0.9), "local_epochs": 1.6}
        model = row.kind(net, n_clients=4, batch_size=4, engine=engine, **options, **row.options)
        train(model, data, 2)
        assert model.local.engine.name == engine.name
        served.append((models_of(model), model.personal_models(torch.arange(4)).mixture))
    for other in served[1:]:
        torch.testing.assert_close(other, served[0], rtol=1e-7, atol=1e-9)


@EVERY
def test_engines_and_blocks_agree(row: Row) -> None:
    engines_and_blocks_agree(row, "linear")


@pytest.mark.parametrize(
    "row",
    [
        row if row.kind in (FedAvg, UserCentric) or row is ROWS[0] else pytest.param(row, marks=SLOW)
        for row in ROWS
        if row.sgd
    ],
    ids=lambda row: row.kind.__name__,
)
def test_engines_and_blocks_agree_on_batch_norm_and_dropout(row: Row) -> None:
    engines_and_blocks_agree(row, "noisy")


@EVERY
@pytest.mark.parametrize(
    ("state", "schedule"), [pytest.param("restart", "cosine", marks=pytest.mark.slow), ("keep", "constant")]
)
def test_a_resumed_run_has_the_same_bits(row: Row, state: Any, schedule: Any, tmp_path: Any) -> None:
    data = row.data()
    sgd = ClientSGD(lr=0.5, momentum=0.9, state=state, schedule=schedule)
    options: dict[str, Any] = {"client_optimizer": sgd, "participation": 0.5 if row.samples else 1.0}
    if row.server:
        options["server_optimizer"] = lambda p: torch.optim.Adam(p, lr=0.1)
    straight, second = row.model(data, **options), row.model(data, **options)
    trainer = make_trainer(4, callbacks=[RoundCheckpoint(2, keep=9, dirpath=tmp_path)], enable_checkpointing=True)
    trainer.fit(straight, data)
    make_trainer(4).fit(second, data, ckpt_path=tmp_path / "round-000002.ckpt", weights_only=True)
    assert torch.equal(parameters(second), parameters(straight))
    assert len(second.statistics.round_seconds) == 4
    assert second.statistics.up_bytes == straight.statistics.up_bytes


@SAMPLING
def test_sampling_leaves_the_other_clients_alone(row: Row) -> None:
    data = row.data(sizes=(9, 9, 9, 9, 9))
    model = row.model(data, client_optimizer=SGD, participation=2)
    before = {name: own_rows(model, name) for name in row.private}
    train(model, data, 1)
    cohort = sample_cohort(data.federation.clients(), 2, seed=0, round_=0)
    others = torch.tensor([t for t in range(5) if t not in cohort])
    for name, rows in before.items():
        after = own_rows(model, name)
        assert torch.equal(after[others], rows[others])
        assert (after[cohort] != rows[cohort]).flatten(1).any(dim=1).all()


@A_FEW
def test_messages_are_counted(row: Row) -> None:
    data = row.data()
    model = train(row.model(data), data, 2)
    numbers = 4 * 5 + 5 + 5 * 3 + 3 if row.hidden else (4 + 1) * data.n_outputs
    size = 4 * numbers * 8  # of a model in float64, for 4 clients
    assert model.statistics.up_bytes == pytest.approx((2 * row.messages + row.once) * size)
    down = row.messages if row.down is None else row.down
    once = row.once if row.once_down is None else row.once_down
    assert model.statistics.down_bytes == pytest.approx((2 * down + once) * size)


@TRAINED_BY_SGD
def test_updates_that_are_not_finite_are_rejected(row: Row) -> None:
    data = row.data(sizes=(9, 9, 9))
    spoil(data, np.nan if row.hidden else 1e300)  # client 0's gradient overflows, or ReLU may hide it
    with pytest.raises(
        UserError, match=r"training diverged: (in round 1 no client's update was|no starting point is) finite"
    ):
        train(row.model(data, client_optimizer=ClientSGD(lr=1e200, weight_decay=1e200)), data, 3)
    model = row.model(data, client_optimizer=ClientSGD(lr=1e10, momentum=0.9, state="keep"))
    train(model, data, 1)
    assert model.statistics.rejections.total == 1
    assert parameters(model.kept_momentum).isfinite().all()
    assert parameters(model.components).isfinite().all()
    for name in row.private:
        assert own_rows(model, name).isfinite().all()


@A_FEW
def test_wrong_values_are_named(row: Row) -> None:
    data = row.data()
    if row.samples:
        with pytest.raises(UserError, match="participation: 9 clients a round, but only 4 train"):
            train(row.model(data, participation=9), data, 1)
    else:
        with pytest.raises(UserError, match=r"participation: .* needs every client in every round, got 0.5"):
            train(row.model(data, participation=0.5), data, 1)
    with pytest.raises(UserError, match="made for 3 clients, the data has 4"):
        train(row.kind(row.network(data), n_clients=3, **row.options), data, 1)


# --- degenerate cases -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("precision", ["64-true", "32-true"])
def test_fedem_with_one_component_is_fedavg_bit_for_bit(precision: str) -> None:
    data = make_data()
    options: dict[str, Any] = {"client_optimizer": SGD, "participation": 0.75, "local_epochs": 2}
    fedem = train(make_model(FedEM, data, n_components=1, **options), data, 5, precision=precision)
    fedavg = train(make_model(FedAvg, data, **options), data, 5, precision=precision)
    assert torch.equal(parameters(fedem.components), parameters(fedavg.components))
    assert torch.equal(fedem.pi, torch.ones_like(fedem.pi))
    for split in ("train", "test"):
        for model in (fedem, fedavg):
            make_trainer(0, precision=precision).test(model, data, verbose=False)
        assert fedem.clients[f"{split}_loss"].equals(fedavg.clients[f"{split}_loss"])


def test_fedem_predicts_with_a_mixture_of_probabilities() -> None:
    """Eq. 5 in NumPy: neither logits nor parameters are mixed."""
    data = make_data()
    model = make_model(FedEM, data, n_components=3, client_optimizer=SGD)
    train(model, data, 3)
    block = data.federation.block(torch.tensor([3, 1]), "test")
    x, pi = block.x(torch.float64).numpy(), model.pi[block.clients[block.owner]].numpy()
    each = [softmax(logits(vector(component), x), axis=1) for component in model.components]
    assert_agree(model.predict(block).exp().numpy(), np.einsum("nm,mny->ny", pi, each))


def test_the_objective_of_eq_6_is_logged() -> None:
    data = make_data()
    model = make_model(FedEM, data, client_optimizer=ClientSGD(lr=0.3))
    trainer = make_trainer(1)
    make_trainer(0).test(model, data, verbose=False)  # before any round: pi is uniform
    table = model.clients
    trainer.fit(model, data)
    expected = np.average(table.train_loss, weights=table.n_train)
    assert float(trainer.callback_metrics["objective"]) == pytest.approx(expected, rel=1e-5)


def test_unseen_clients_get_the_papers_e_step_from_uniform_weights() -> None:
    data = make_data(sizes=(30,) * 4, unseen_fraction=0.5)
    trainer, model = make_trainer(3), make_model(FedEM, data, client_optimizer=SGD, personalize_steps=1)
    trainer.fit(model, data)
    for _ in range(2):  # anew, not further
        trainer.test(model, data, verbose=False)
    unseen = data.federation.clients(seen=False)
    for t in unseen:
        losses = model.losses(data.federation.block(t.unsqueeze(0), "train"))
        expected = torch.softmax(-losses, dim=1).mean(dim=0)
        torch.testing.assert_close(model.pi[t], expected)


def test_more_steps_raise_the_likelihood_of_unseen_clients() -> None:
    """EM on pi alone never lowers the likelihood of the samples it sees."""
    data, losses = make_data(sizes=(30,) * 4, unseen_fraction=0.5), []
    seen = data.federation.seen.numpy()
    for steps in (1, 5, 50):
        model = make_model(FedEM, data, personalize_steps=steps, client_optimizer=SGD)
        train(model, data, 3).trainer.test(model, data, verbose=False)
        losses.append(model.clients.train_loss.to_numpy())
    assert (losses[0][~seen] > losses[1][~seen]).all()
    assert (losses[1][~seen] >= losses[2][~seen]).all()
    np.testing.assert_array_equal(losses[0][seen], losses[2][seen])
    with pytest.raises(UserError, match=r"personalize_steps: expected "):
        make_model(FedEM, data, personalize_steps=0)


@pytest.mark.parametrize(("participation", "size"), [(1.0, 10), (1, 10), (0.3, 3), (0.01, 1), (4, 4), (10, 10)])
def test_cohorts(participation: float, size: int) -> None:
    clients = torch.arange(5, 15)
    cohorts = [sample_cohort(clients, participation, seed=0, round_=k) for k in range(20)]
    assert {len(c) for c in cohorts} == {size}
    assert all(torch.equal(c, c.unique()) and set(c.tolist()) <= set(clients.tolist()) for c in cohorts)
    assert torch.equal(cohorts[3], sample_cohort(clients, participation, seed=0, round_=3))
    if size < 10:
        assert len(torch.cat(cohorts).unique()) > size
