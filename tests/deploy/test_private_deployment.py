"""A deployment with noise: what clients are sent tells them neither cohorts nor noise."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch

from fedem_lightning import FedAvg, PrivateMean
from fedem_lightning.cohort import draw_cohort
from fedem_lightning.deploy.node import Node
from fedem_lightning.deploy.server import RemoteDataModule
from helpers.federations import make_data, make_model, make_trainer
from helpers.remote import ByteLink, nodes_of

ROUNDS = 12


def server(link: ByteLink, participation: float = 0.5) -> tuple[Any, RemoteDataModule]:
    data = RemoteDataModule(link, len(link.connected()), run="run")
    model = make_model(FedAvg, data, participation=participation, aggregation=PrivateMean(noise_multiplier=0.1))
    model.remote = data.remote
    return model, data


def cohorts(link: ByteLink) -> list[list[int]]:
    """Who was asked to train, by round."""
    asked = [(request.facts["round"], n) for n, request, _ in link.log if request.facts["kind"] == "train"]
    return [sorted(n for round_, n in asked if round_ == r) for r in range(ROUNDS)]


def test_a_client_cannot_tell_the_cohorts_from_what_it_is_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs, made = [], Node._algorithm
    guesses: list[list[int]] = []

    def guessing(node: Node, request: Any, before: Any = None) -> Any:
        algorithm = made(node, request, before)
        if request.facts["kind"] == "train" and algorithm is not None:
            like = copy.deepcopy(algorithm)
            like.participation = 0.5
            everyone: Any = type("Everyone", (), {"clients": lambda self: torch.arange(4)})()
            guesses.append(draw_cohort(like, everyone, request.facts["round"]).tolist())
        return algorithm

    monkeypatch.setattr(Node, "_algorithm", guessing)
    for name in ("a", "b"):
        link = ByteLink(nodes_of(make_data(), tmp_path / name))
        model, data = server(link)
        make_trainer(ROUNDS).fit(model, data)
        runs.append(cohorts(link))
        assert len(model.cohort_secret) == 64
        assert all(model.cohort_secret.encode() not in request.to_bytes() for _, request, _ in link.log)
    asked = [who for who in runs[0] for _ in who] + [who for who in runs[1] for _ in who]
    assert sum(guess == who for guess, who in zip(guesses, asked, strict=True)) < len(asked) / 2  # by chance 1 in 8
    assert runs[0] != runs[1]  # the same seed
    sizes = [len(cohort) for run in runs for cohort in run]
    assert 1 < sum(sizes) / len(sizes) < 3


@pytest.mark.filterwarnings("ignore:.*loaded with.*")
def test_the_cohorts_go_on_after_a_restart_of_the_server(tmp_path: Path) -> None:
    link = ByteLink(nodes_of(make_data(), tmp_path))
    model, data = server(link)
    trainer = make_trainer(ROUNDS)
    trainer.fit_loop.max_epochs = 2
    trainer.fit(model, data)
    trainer.save_checkpoint(tmp_path / "last.ckpt")
    planned = [draw_cohort(model, data.federation, round_).tolist() for round_ in range(2, ROUNDS)]
    again, data = server(link)
    make_trainer(ROUNDS).fit(again, data, ckpt_path=tmp_path / "last.ckpt", weights_only=True)
    assert cohorts(link)[2:] == planned
    assert again.cohort_secret == model.cohort_secret


def test_a_simulation_is_a_function_of_the_seed() -> None:
    data = make_data()
    models = [make_model(FedAvg, data, participation=0.5, aggregation=PrivateMean()) for _ in range(2)]
    for model in models:
        make_trainer(3).fit(model, data)
        assert model.cohort_secret == ""
    for name, tensor in models[0].state_dict().items():
        assert torch.equal(tensor, models[1].state_dict()[name]), name
