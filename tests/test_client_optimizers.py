"""The clients' optimisers against torch's, for one learner and for stacks, in every engine, kept over rounds or not."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from fedem_lightning import (
    AFL,
    L2SGD,
    MOCHA,
    QFFL,
    ClientAdam,
    ClientAdamW,
    ClientOptimizer,
    ClientSGD,
    DFedEM,
    FedAvg,
    FedNova,
    FedRep,
    Scaffold,
    UserError,
)
from fedem_lightning.aggregate import Models
from helpers.conformance import Row
from helpers.every_method import A_FEW
from helpers.federations import make_data, make_model, models_of, parameters, train

EXACT: dict[str, Any] = {"rtol": 1e-9, "atol": 1e-12}
ADAM: dict[str, Any] = {"lr": 0.02, "betas": (0.8, 0.95), "eps": 1e-6, "weight_decay": 0.1}
OPTIMIZERS: list[tuple[ClientOptimizer, Any, dict[str, Any]]] = [
    (ClientSGD(0.2), torch.optim.SGD, {"lr": 0.2}),
    (
        ClientSGD(0.2, 0.9, weight_decay=0.05),
        torch.optim.SGD,
        {"lr": 0.2, "momentum": 0.9, "weight_decay": 0.05},
    ),
    (ClientAdam(), torch.optim.Adam, {}),
    (ClientAdam(**ADAM), torch.optim.Adam, ADAM),
    (ClientAdamW(), torch.optim.AdamW, {}),
    (ClientAdamW(**ADAM), torch.optim.AdamW, ADAM),
]
NAMES = ["sgd", "momentum", "adam", "adam with options", "adamw", "adamw with options"]
EVERY = pytest.mark.parametrize(("optimizer", "kind", "options"), OPTIMIZERS, ids=NAMES)
KEPT = ClientAdamW(lr=0.05, state="keep", max_grad_norm=0.3)

NEED_SGD = (AFL, L2SGD, QFFL, FedNova, Scaffold, MOCHA, DFedEM)


def by_torch(kind: Any, options: dict[str, Any], thetas: list[torch.Tensor], grads: Any, longest: float | None) -> Any:
    """The parameters of one learner after steps along `grads`, by torch."""
    params = [torch.nn.Parameter(theta.clone()) for theta in thetas]
    optimizer = kind(params, **options)
    for step in grads:
        for p, g in zip(params, step, strict=True):
            p.grad = g.clone()
        if longest is not None:
            torch.nn.utils.clip_grad_norm_(params, longest)
        optimizer.step()
    return [p.detach() for p in params]


@pytest.mark.parametrize("longest", [None, 1.5])
@pytest.mark.parametrize("axes", [0, 1, 2])
@EVERY
def test_steps_are_torchs(
    optimizer: ClientOptimizer, kind: Any, options: dict[str, Any], axes: int, longest: float | None
) -> None:
    """One learner, and stacks [2, ...] and [2, 3, ...]; a number is among the parameters."""
    stack = (2, 3)[:axes]
    optimizer = replace(optimizer, max_grad_norm=longest)
    shapes = ((4, 2), (3,), ())
    params: Models = {f"p{i}": torch.randn((*stack, *shape)).double() for i, shape in enumerate(shapes)}
    start = {name: p.clone() for name, p in params.items()}
    scales = torch.logspace(-2, 1, 12)  # gradients below and above the longest
    grads = [[scale * torch.randn((*stack, *shape)).double() for shape in shapes] for scale in scales]
    learner = {"params": params, "momentum": optimizer.init(params, axes)}
    for step in grads:
        given = [g.clone() for g in step]
        optimizer.descend(learner, step, optimizer.lr)
        assert all(map(torch.equal, given, step))  # the caller's gradients stay
    for place in torch.cartesian_prod(*(torch.arange(n) for n in (*stack, 1, 1))).tolist():
        at = tuple(place[:axes])
        expected = by_torch(
            kind, options, [p[at] for p in start.values()], [[g[at] for g in s] for s in grads], longest
        )
        for p, right in zip(params.values(), expected, strict=True):
            torch.testing.assert_close(p[at], right, **EXACT)


@EVERY
def test_what_is_kept_is_one_optimiser_over_rounds(
    optimizer: ClientOptimizer, kind: Any, options: dict[str, Any]
) -> None:
    """With one client and one step a round, rounds are the steps of one optimiser."""
    data = make_data(sizes=(10,), fractions=(1.0, 0.0, 0.0))
    model = make_model(FedAvg, data, client_optimizer=replace(optimizer, state="keep"), batch_size=100).double()
    net = torch.nn.Linear(4, 3).double()
    net.load_state_dict({k.removeprefix("linear."): v for k, v in model.components[0].state_dict().items()})
    block, steps = data.federation.block(torch.tensor([0]), "train"), kind(net.parameters(), **options)
    for _ in range(5):
        steps.zero_grad()
        torch.nn.functional.cross_entropy(net(block.x(torch.float64)), block.y()).backward()
        steps.step()
    train(model, data, rounds=5)
    torch.testing.assert_close(parameters(model.components), parameters(net), **EXACT)
    restarted = make_model(FedAvg, data, client_optimizer=optimizer, batch_size=100).double()
    differs = not torch.allclose(parameters(train(restarted, data, 5).components), parameters(net))
    assert differs == optimizer.remembers


def test_head_and_body_count_their_own_steps() -> None:
    data = make_data(sizes=(8, 8), fractions=(1.0, 0.0, 0.0))
    model = make_model(FedRep, data, hidden=True, client_optimizer=KEPT, head_epochs=3)
    train(model, data, 2)
    rows = model.kept_momentum[torch.arange(2)]
    counts = {name: rows[f"steps.{name}"].tolist() for name in model.params_of(model.received(torch.arange(1)))}
    assert counts == {
        "layers.0.weight": [[4.0], [4.0]],  # two rounds of one pass in two batches
        "layers.0.bias": [[4.0], [4.0]],
        "layers.2.weight": [[12.0], [12.0]],
        "layers.2.bias": [[12.0], [12.0]],
    }


def test_the_gradient_norm_is_each_learners() -> None:
    """A long gradient of one learner leaves the others' as they are."""
    params = {"w": torch.zeros(2, 1, 2).double()}
    optimizer = ClientSGD(lr=1.0, max_grad_norm=1.0)
    learner = {"params": params, "momentum": optimizer.init(params, 2)}
    long, short = (torch.tensor(row, dtype=torch.float64) for row in ([3.0, 4.0], [0.3, 0.4]))
    optimizer.descend(learner, [torch.stack([long, short]).unsqueeze(1)], 1.0)
    torch.testing.assert_close(params["w"][:, 0], -torch.stack([long / 5, short]), rtol=1e-6, atol=0)
    assert learner["momentum"]["norm of the gradient"].flatten().tolist() == pytest.approx([5.0, 0.5])


@A_FEW
def test_every_algorithm_takes_adamw_or_refuses(row: Row) -> None:
    data = row.data()
    options: dict[str, Any] = {"client_optimizer": ClientAdamW(lr=0.05)}
    if row.kind in NEED_SGD:
        line = rf"^algorithm.client_optimizer: {row.kind.__name__} .*, expected sgd \(ClientSGD\), got ClientAdamW$"
        with pytest.raises(UserError, match=line):
            train(row.model(data, **options), data, 1)
        return
    loop, vmap = (models_of(train(row.model(data, engine=e, **options), data, 2)) for e in ("loop", "vmap"))
    assert loop.isfinite().all()
    torch.testing.assert_close(loop, vmap, rtol=1e-7, atol=1e-9)
    by_sgd = train(row.model(data, client_optimizer=ClientSGD(lr=0.05)), data, 2)
    assert not torch.allclose(loop, models_of(by_sgd))
