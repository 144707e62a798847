"""Clients that fail, and servers and clients that start again."""

from pathlib import Path
from typing import Any

import pytest
import torch

from fedem_lightning import ClientSGD, FedEM, UserError
from fedem_lightning.deploy.server import RemoteDataModule
from fedem_lightning.deploy.wire import Parcel, failed
from fedem_lightning.rejections import EXCEPTION, INVALID, NO_ANSWER, NOT_FINITE
from helpers.federations import make_data, make_model, make_trainer
from helpers.remote import ByteLink, nodes_of

KEPT = ClientSGD(lr=0.1, momentum=0.9, state="keep")


def federation(folder: Path) -> tuple[ByteLink, Any, RemoteDataModule]:
    link = ByteLink(nodes_of(make_data(), folder))
    return link, *joined(link)


def joined(link: ByteLink) -> tuple[Any, RemoteDataModule]:
    """A server that meets the clients of a run."""
    data = RemoteDataModule(link, len(link.connected()), run="run")
    model = make_model(FedEM, data, client_optimizer=KEPT)
    model.remote = data.remote
    return model, data


def models(model: Any) -> list[torch.Tensor]:
    return [tensor.clone() for tensor in model.components.state_dict().values()]


def close(a: Any, b: Any) -> bool:
    return all(torch.allclose(x, y, rtol=0, atol=1e-12) for x, y in zip(models(a), models(b), strict=True))


def test_a_client_that_does_not_answer_is_left_out(tmp_path: Path) -> None:
    link, model, data = federation(tmp_path)
    link.silent = {2}
    make_trainer(2).fit(model, data)
    assert model.statistics.rejections.by_reason == {NO_ANSWER: 2}
    assert [entry["client"] for entry in model.statistics.rejections.by_client] == [2]


def test_a_client_that_comes_back_goes_on(tmp_path: Path) -> None:
    link, model, data = federation(tmp_path)
    ask = link.ask

    def sometimes(requests: Any) -> Any:
        kinds = {request.facts["kind"] for request in requests.values()}
        rounds = {request.facts.get("round") for request in requests.values()}
        link.silent = {1} if kinds == {"train"} and rounds == {1} else set()
        return ask(requests)

    link.ask = sometimes  # type: ignore[method-assign]
    make_trainer(3).fit(model, data)
    assert model.statistics.rejections.by_reason == {NO_ANSWER: 1}
    assert [n for n, request, _ in link.log if request.facts.get("round") == 2] == [0, 1, 2, 3]


def test_if_nobody_answers_the_run_stops_with_one_line(tmp_path: Path) -> None:
    link, model, data = federation(tmp_path)
    link.silent = {0, 1, 2, 3}
    with pytest.raises(UserError, match=r"training stopped: in round 1 no client's update was left: 4 no answer"):
        make_trainer(2).fit(model, data)


def test_updates_with_nan_are_left_out(tmp_path: Path) -> None:
    link, model, data = federation(tmp_path)
    answer = link.nodes[1].answer

    def spoiled(request: Parcel) -> Parcel:
        reply = answer(request)
        tensors = {name: t * torch.nan if name.startswith("models.") else t for name, t in reply.tensors.items()}
        return reply._replace(tensors=tensors)

    link.nodes[1].answer = spoiled  # type: ignore[method-assign]
    with pytest.warns(UserWarning, match=r"client 1: its update of round 1 is left out \(not finite: models.linear"):
        make_trainer(2).fit(model, data)
    assert model.statistics.rejections.by_reason == {NOT_FINITE: 2}
    assert all(tensor.isfinite().all() for tensor in models(model))


def test_a_reply_of_another_form_is_left_out(tmp_path: Path) -> None:
    link, model, data = federation(tmp_path)
    answer = link.nodes[2].answer

    def wider(request: Parcel) -> Parcel:
        reply = answer(request)
        tensors = {
            name: t.repeat(1, 1, 2, 1) if name == "models.linear.weight" else t for name, t in reply.tensors.items()
        }
        return reply._replace(tensors=tensors)

    link.nodes[2].answer = wider  # type: ignore[method-assign]
    link.nodes[1].answer = lambda request: Parcel({}, {})  # type: ignore[method-assign]
    with (
        pytest.warns(UserWarning, match=r"client 1: .* \(invalid reply: reply lacks metrics, n_groups, rejected\)"),
        pytest.warns(
            UserWarning, match=r"client 2: .*models.linear.weight: expected .* \[1, 3, 3, 4\], got .*, 6, 4\]"
        ),
    ):
        make_trainer(1).fit(model, data)
    assert model.statistics.rejections.by_reason == {INVALID: 2}


def test_a_client_that_comes_back_at_another_address_is_known_by_its_name(tmp_path: Path) -> None:
    link, model, data = federation(tmp_path)
    trainer = make_trainer(1)
    trainer.fit(model, data)
    link.nodes.append(link.nodes[1])
    link.silent = {1}
    trainer.fit_loop.max_epochs = 2
    trainer.fit(model, data)
    assert model.statistics.rejections.total == 0
    assert [n for n, request, _ in link.log if request.facts.get("round") == 1] == [0, 4, 2, 3]


def test_an_exception_of_a_client_is_named(tmp_path: Path) -> None:
    link, model, data = federation(tmp_path)
    link.nodes[3].federation.samples = None  # type: ignore[assignment]
    with pytest.warns(UserWarning, match=r"client 3: its update of round 1 is left out \(exception: .*Error"):
        make_trainer(1).fit(model, data)
    assert model.statistics.rejections.by_reason == {EXCEPTION: 1}


@pytest.mark.filterwarnings("ignore:.*loaded with.*")
def test_a_server_that_starts_again_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    _, whole, data = federation(tmp_path / "whole")
    make_trainer(5).fit(whole, data)
    link, model, data = federation(tmp_path / "parts")
    trainer = make_trainer(5, limit_train_batches=1)
    trainer.fit_loop.max_epochs = 3
    model.statistics.plan(5)
    trainer.fit(model, data)
    trainer.save_checkpoint(tmp_path / "last.ckpt")
    trainer.fit_loop.max_epochs = 4
    trainer.fit(model, data)  # a round that the checkpoint does not have; then the server ends
    again, data = joined(link)
    make_trainer(5).fit(again, data, ckpt_path=tmp_path / "last.ckpt", weights_only=True)
    assert close(again, whole)


def test_a_client_that_has_lost_its_state_starts_anew(tmp_path: Path) -> None:
    link, model, data = federation(tmp_path)
    trainer = make_trainer(1)
    trainer.fit(model, data)
    for path in (tmp_path / "2" / "run").iterdir():
        path.unlink()
    trainer.fit_loop.max_epochs = 2
    trainer.fit(model, data)
    assert model.statistics.rejections.total == 0
    asked = [request for n, request, _ in link.log if n == 2 and request.facts["kind"] == "train"]
    assert ["start.pi" in request.tensors for request in asked] == [True, False, True]


@pytest.mark.filterwarnings("ignore:client .. its update")
def test_a_server_cannot_call_what_a_client_does_not_trust(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, model, data = federation(tmp_path)
    monkeypatch.setattr("fedem_lightning.deploy.remote.recipe_of", lambda algorithm: {"_target_": "os.getcwd"})
    with pytest.raises(UserError, match=r"^client 0: algorithm: the file wants to call os.getcwd"):
        make_trainer(1).fit(model, data)


def test_a_users_mistake_at_one_client_ends_nobody_elses_run(tmp_path: Path) -> None:
    link, model, data = federation(tmp_path)
    link.nodes[2].answer = lambda request: failed(UserError("data: mine.npz is gone"))  # type: ignore[method-assign]
    with pytest.warns(UserWarning, match=r"client 2: its update of round 1 is left out \(exception: data: mine.npz is"):
        make_trainer(2).fit(model, data)
    assert model.statistics.rejections.by_reason == {EXCEPTION: 2}


def test_nobody_takes_the_place_of_a_client_that_is_there(tmp_path: Path) -> None:
    link, model, data = federation(tmp_path)
    link.nodes.append(link.nodes[1])
    with pytest.warns(UserWarning, match="another client 1 is refused: the client of that name is still connected"):
        make_trainer(1).fit(model, data)
    assert sorted({n for n, request, _ in link.log if request.facts["kind"] == "train"}) == [0, 1, 2, 3]
    assert model.statistics.rejections.total == 0


def test_no_client_brings_a_column_of_metrics(tmp_path: Path) -> None:
    link, model, data = federation(tmp_path)
    answer = link.nodes[0].answer

    def boastful(request: Parcel) -> Parcel:
        reply = answer(request)
        if request.facts["kind"] == "train":
            reply.facts["metrics"] |= {"round": [100.0, 1], "objective": [0.0, 0]}
        return reply

    link.nodes[0].answer = boastful  # type: ignore[method-assign]
    make_trainer(1).fit(model, data)
    assert set(model.round_metrics.means()) == {"objective"}
