"""What leaves clients under `aggregation=private`: one client's data move it by no more than the noise is for."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pytorch_lightning.callbacks import EarlyStopping, ModelCheckpoint

from fedem_lightning import (
    FEROMA,
    KNN,
    L2SGD,
    MOCHA,
    Dapper,
    DFedEM,
    Ditto,
    FedAMP,
    FedAvg,
    FedDyn,
    FedEM,
    FederatedAlgorithm,
    FederatedDataModule,
    FedFOMO,
    FedProto,
    Finetune,
    HypCluster,
    Interpolate,
    Local,
    PrivateMean,
    TableDataModule,
    UserError,
)
from fedem_lightning.evaluate.scores import scored_models
from helpers.conformance import ROWS, Row, own_rows, with_groups
from helpers.every_method import FAST, SLOW
from helpers.federations import make_data, make_model, make_trainer, parameters

CLIP, LAST = 0.05, 3  # S, and the client whose data differ
OTHERS = torch.tensor([0, 1, 2])
NO_SERVER = (DFedEM, FEROMA, FedAMP, FedFOMO, FedProto, Local, MOCHA)


def variant(kind: Any, **options: Any) -> Row:
    row = next(row for row in ROWS if row.kind is kind)
    return dataclasses.replace(row, options={**row.options, **options})


METHODS = [
    *ROWS,
    variant(FedEM, initialization="clusters"),
    variant(FedEM, initialization="shared"),
    variant(HypCluster, initialization="sampled"),
    variant(L2SGD, probability=None),
]
ADAPTATIONS = [
    Finetune(),
    Interpolate(),
    Interpolate("own"),
    KNN(neighbours=2),
    Dapper(ratio=2.0),
]
RELEASING_KINDS = (
    "AFL",
    "Agnostic",
    "Clustered",
    "DensityFedEM",
    "FedDBE",
    "FedGMM",
    "FedNova",
    "FedPAC",
    "FedRC",
    "HypCluster",
    "Oracle",
    "QFFL",
    "Scaffold",
)
RELEASING = [
    *(row for row in METHODS if row.kind.__name__ in (*RELEASING_KINDS, "UserCentric")),
    *(row for row in METHODS if row.options.get("initialization") == "clusters" and row.kind is FedEM),
    METHODS[-1],
]


def named(row: Row) -> str:
    return "-".join([row.kind.__name__, *(str(value) for value in row.options.values() if isinstance(value, str))])


def data_of(row: Row, other: bool) -> FederatedDataModule:
    """Four clients; the last one has other samples, and more of them, if `other`."""
    n_classes = 3 if row.sgd else 2
    sizes = (7, 12, 9, 29 if other else 11)
    parts = [np.random.default_rng((t, other and t == LAST)).normal(size=(n, 4)) for t, n in enumerate(sizes)]
    x = np.concatenate(parts)
    y = np.abs((x[:, 0] * 2).astype(int)) % n_classes
    options: dict[str, Any] = {"n_classes": n_classes, "domain": np.arange(len(x)) % 2}
    options |= {} if row.sgd else {"task": "binary"}
    return with_groups(FederatedDataModule.from_arrays(x, y, np.repeat(np.arange(4), sizes), **options))


def trained(
    row: Row, other: bool, takes_part: bool, monkeypatch: pytest.MonkeyPatch, **options: Any
) -> tuple[Any, ...]:
    """The others' scored models after two rounds without the last client, and the method after a third one."""
    data, rule = data_of(row, other), PrivateMean(noise_multiplier=1.0, clip=CLIP)
    model = row.model(data, aggregation=rule, **options)
    everybody = torch.arange(4)
    monkeypatch.setattr(
        "fedem_lightning.module.round.draw_cohort",
        lambda self, _, round_: everybody if takes_part and round_ == 2 else everybody[:LAST],
    )
    trainer = make_trainer(2)
    trainer.fit(model, data)
    with torch.no_grad():
        before = dict(scored_models(model, data.federation.block(OTHERS, "train")).models)
    model.train()
    trainer.fit_loop.max_epochs = 3
    trainer.fit(model, data)
    return before, model


FROM_MEANS = ("mean_gradient",)
"""FedDyn's h, a function of the noisy means alone."""


def servers_state(model: Any) -> dict[str, torch.Tensor]:
    """The method's buffers that are no client's, and those of the aggregation."""
    own = {*model.states.of("client", "both"), "has_frozen", *FROM_MEANS}
    found = {name: tensor for name, tensor in model.named_buffers(recurse=False) if name not in own}
    return found | dict(model.aggregation.named_buffers(prefix="aggregation"))


def refusal(row: Row, **options: Any) -> str:
    """The line with which a run ends before its first round; empty: it trains."""
    data = data_of(row, other=False)
    try:
        make_trainer(1).fit(row.model(data, aggregation=PrivateMean(clip=CLIP), **options), data)
    except UserError as error:
        return str(error)
    return ""


def check(row: Row, monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
    one, there = trained(row, False, True, monkeypatch, **options)
    two, gone = trained(row, True, False, monkeypatch, **options)
    for name, models in one.items():  # what the others are told before it takes part
        torch.testing.assert_close(models, two[name], rtol=0, atol=0, msg=name)
    moved = float((parameters(there.components) - parameters(gone.components)).norm())
    reach = 2 if row.kind is FedDyn else 1  # its server takes the noisy mean's way twice
    assert 0 < moved <= reach * CLIP / 4 * (1 + 1e-9)  # S / (q T): the noise's deviation is z times that
    for name, tensor in servers_state(there).items():
        torch.testing.assert_close(tensor, servers_state(gone)[name], rtol=0, atol=0, equal_nan=True, msg=name)
    for name in row.private:
        kept, others = own_rows(there, name)[OTHERS], own_rows(gone, name)[OTHERS]
        assert float((kept - others).flatten(1).norm(dim=1).max()) <= CLIP / 4


@pytest.mark.parametrize(
    "row",
    [pytest.param(row, marks=() if row.kind in FAST or row in RELEASING else SLOW, id=named(row)) for row in METHODS],
)
def test_a_clients_data_move_what_leaves_clients_by_its_clipped_update_or_the_method_is_refused(
    row: Row, monkeypatch: pytest.MonkeyPatch
) -> None:
    if row.kind in NO_SERVER:
        assert "no server that averages" in refusal(row)
    elif "shared" in row.options:
        assert "a private mean would add noise by component" in refusal(row)
    elif row in RELEASING:
        assert f"adds noise to the mean of updates alone, but by {row.kind.__name__} more may leave" in refusal(row)
    else:
        check(row, monkeypatch)


@pytest.mark.parametrize("adaptation", ADAPTATIONS, ids=lambda adaptation: type(adaptation).__name__)
@pytest.mark.parametrize("kind", [FedEM, Ditto])
def test_an_adaptation_tells_clients_nothing_of_others_or_is_refused(
    kind: Any, adaptation: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    if isinstance(adaptation, Dapper):
        said = refusal(variant(kind), adaptation=adaptation)
        assert "but by Dapper more may leave clients" in said
    else:
        check(variant(kind), monkeypatch, adaptation=adaptation)


def test_a_method_of_ones_own_that_does_not_say_it_is_refused() -> None:
    class Own(FederatedAlgorithm):
        client_update = FedAvg.client_update

    said = refusal(dataclasses.replace(variant(FedAvg), kind=Own))
    assert "by Own more may leave clients (private_ok" in said


def test_what_else_a_run_releases_is_refused(tmp_path: Path) -> None:
    """Means over all clients' rows, and a round that is chosen by scores."""
    rows = [f"{client},{i % 7},{i % 2}" for client in "abcd" for i in range(12)]
    (tmp_path / "table.csv").write_text("\n".join(["client,age,y", *rows]))
    table = TableDataModule(tmp_path / "table.csv", label="y", client="client")
    stop = EarlyStopping(monitor="val/loss")
    cases: list[tuple[Any, dict[str, Any], list[Any], str]] = [
        (table, {}, [], r"but the data also release .*; scale .* and use dataset=npz$"),
        (make_data(), {}, [stop], "but EarlyStopping chooses a round by val/loss"),
    ]
    for data, options, callbacks, said in cases:
        model = make_model(FedAvg, data, aggregation=PrivateMean(), **options)
        with pytest.raises(UserError, match=f"^aggregation: .* {said}"):
            make_trainer(1, callbacks=callbacks).fit(model, data)
    data, steps = make_data(), ModelCheckpoint(tmp_path / "steps", monitor="step")
    model = make_model(FedAvg, data, aggregation=PrivateMean())
    make_trainer(1, callbacks=[steps], enable_checkpointing=True).fit(model, data)
