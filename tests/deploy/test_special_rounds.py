"""User-centric aggregation with clients of their own: questions in special rounds, and one model for each client."""

from pathlib import Path
from typing import Any

import pytest
import torch

from fedem_lightning import ClientSGD, FederatedDataModule, UserCentric
from fedem_lightning.deploy.server import RemoteDataModule
from fedem_lightning.deploy.wire import with_prefix
from helpers.federations import grouped, make_model, make_trainer
from helpers.remote import ByteLink, nodes_of

OPTIONS: dict[str, Any] = {"client_optimizer": ClientSGD(lr=0.3)}


def trained(data: FederatedDataModule, rounds: int = 4, **options: Any) -> Any:
    model = make_model(UserCentric, data, **OPTIONS, **options)
    model.remote = data.remote
    make_trainer(rounds).fit(model, data)
    return model


@pytest.mark.parametrize(
    "options",
    [
        {"n_streams": 2},
        {"n_streams": "auto", "similarity": "common", "refresh_every": 2},
        {"n_streams": 2, "similarity": "cosine", "warmup_rounds": 2},
        {"n_streams": 2, "label_adjusted": True, "members_only": True, "participation": 0.5},
    ],
)
def test_streams_and_models_are_those_of_the_simulation(options: dict[str, Any], tmp_path: Path) -> None:
    data = grouped()
    link = ByteLink(nodes_of(data, tmp_path))
    here, there = trained(data, **options), trained(RemoteDataModule(link, len(link.connected())), **options)
    assert there.stream.tolist() == here.stream.tolist()
    for name in ("w", "weights", "noise"):
        torch.testing.assert_close(there.get_buffer(name), here.get_buffer(name), rtol=0, atol=1e-10)
    everyone = torch.arange(8)
    for name, rows in here.models.read(everyone).items():
        torch.testing.assert_close(there.models.read(everyone)[name], rows, rtol=0, atol=1e-10)
    assert there.statistics.special_rounds == here.statistics.special_rounds > 0
    assert there.statistics.up_bytes == here.statistics.up_bytes


def test_a_client_receives_its_own_model_alone(tmp_path: Path) -> None:
    data = grouped()
    link = ByteLink(nodes_of(data, tmp_path))
    model = trained(RemoteDataModule(link, len(link.connected())), n_streams=2)
    numbers = sum(p.numel() for p in model.components[0].parameters())
    for _, request, reply in link.log:
        if request.facts["kind"] == "describe":
            continue
        received = with_prefix(request.tensors, "sent.")
        assert not any(name.startswith(("w", "gradients.")) for name in received if name != "weights")
        start = with_prefix(request.tensors, "start.")
        kept = {name: t for name, t in start.items() if name == "w" or name.startswith("gradients.rows")}
        assert not any(t.any() for t in kept.values())
        if request.facts["kind"] == "train":
            models = [t for name, t in received.items() if ".rows_" in name or name.startswith("components.")]
            assert sum(t.numel() for t in models) == numbers
            assert received["weights"].shape == (2, 1)
            assert set(reply.tensors) == {"weights", "models.linear.weight", "models.linear.bias"}
        else:
            assert set(reply.tensors) == {"answer.linear.weight", "answer.linear.bias", "answer..noise"}


@pytest.mark.parametrize("n_streams", [None, 2])
def test_a_client_without_an_answer_is_averaged_by_nobody(n_streams: int | None, tmp_path: Path) -> None:
    data = grouped()
    link = ByteLink(nodes_of(data, tmp_path))
    apart = RemoteDataModule(link, len(link.connected()))
    link.silent.add(3)
    with pytest.warns(UserWarning, match=r"gradients of 1 of 8 clients are missing or not finite \(3\)"):
        model = trained(apart, n_streams=n_streams)
    assert not model.weights[:, 3].any()
    assert model.statistics.rejections.by_reason == {"no answer": 5}
    link.silent.clear()
    make_trainer(5).fit(model, apart)
    assert all(rows.isfinite().all() for rows in model.models.read(torch.arange(8)).values())


def test_an_answer_of_another_form_is_left_out(tmp_path: Path) -> None:
    data = grouped()
    link = ByteLink(nodes_of(data, tmp_path))
    apart = RemoteDataModule(link, len(link.connected()))
    link.nodes[5].answer = lambda request: link.nodes[4].answer(request)._replace(tensors={"answer.x": torch.ones(1)})  # type: ignore[method-assign]
    with (
        pytest.warns(UserWarning, match=r"gradients of 1 of 8 clients are missing"),
        pytest.warns(UserWarning, match=r"client 5: its answer to the server's question is left out \(invalid reply: "),
    ):
        model = trained(apart, rounds=1, n_streams=2)
    assert not model.weights[:, 5].any()
