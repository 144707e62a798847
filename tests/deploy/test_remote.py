"""Clients of their own against the simulation: the same algorithm file gives the same models."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from hydra.utils import get_class
from omegaconf import OmegaConf

from fedem_lightning import ClientSGD, FedAvg, FederatedDataModule, UserError
from fedem_lightning.deploy.server import RemoteDataModule
from fedem_lightning.deploy.wire import state_of_client
from fedem_lightning.models.client_store import Owner
from fedem_lightning.settings.shipped import CONFIG_DIR
from helpers.conformance import Row
from helpers.every_method import EVERY
from helpers.federations import make_data, make_model
from helpers.remote import ByteLink, nodes_of, train_and_test

PAGE = Path(__file__).parents[2] / "docs" / "deploy.md"
KEPT = ClientSGD(lr=0.1, momentum=0.9, state="keep")


def trained(row: Row, data: FederatedDataModule, rounds: int = 5, **options: Any) -> Any:
    """The method's model after some rounds, and its clients' table."""
    model = row.model(data, client_optimizer=KEPT, **options)
    train_and_test(model, data, rounds)
    return model


def servers_models(model: Any) -> dict[str, torch.Tensor]:
    """The components, and the models that the server keeps for each client."""
    kept = [name for name, store in model.states.stores().items() if store.owner is Owner.SERVER]
    return {n: t for n, t in model.state_dict().items() if n.startswith(("components.", *(f"{k}.rows" for k in kept)))}


def remote(data: FederatedDataModule, folder: Path) -> tuple[RemoteDataModule, ByteLink]:
    link = ByteLink(nodes_of(data, folder))
    return RemoteDataModule(link, len(link.connected())), link


@EVERY
def test_clients_of_their_own_train_the_models_of_the_simulation(row: Row, tmp_path: Path) -> None:
    data = row.data()
    apart, _ = remote(data, tmp_path)
    if row.model(data).facts.needs_one_machine:
        with pytest.raises(UserError, match="cannot be deployed"):
            trained(row, apart)
        return
    here, there = trained(row, data), trained(row, apart)
    start, moved = servers_models(row.model(data).double()), 0.0
    for (name, a), b in zip(servers_models(here).items(), servers_models(there).values(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12, msg=name)
        moved += float((a - start[name]).abs().sum())
    assert moved > 0.01 or not row.kind.facts.sends_updates
    for split in ("train", "val", "test"):
        column = f"{split}_loss"
        assert there.clients[column].to_numpy() == pytest.approx(here.clients[column].to_numpy(), nan_ok=True), column
    assert list(there.clients.id) == list(here.clients.id)
    assert there.clients.n_train.tolist() == here.clients.n_train.tolist()
    assert there.clients.n_test.tolist() == here.clients.n_test.tolist()


@pytest.mark.skipif(not PAGE.is_file(), reason="docs/ is only in a checkout")
def test_the_page_names_the_methods_that_cannot_be_deployed() -> None:
    documented: dict[str, str] = {}
    for names, why in re.findall(r"^\| (`[^|]+`) \| ([^|]+) \|$", PAGE.read_text(), re.M):
        documented |= {name: why for name in re.findall(r"`(\w+)`", names)}
    refused: dict[str, str] = {}
    for path in (CONFIG_DIR / "algorithm").glob("*.yaml"):
        kind: Any = get_class(OmegaConf.load(path)._target_)
        refused |= {path.stem: kind.facts.needs_one_machine} if kind.facts.needs_one_machine else {}
    assert documented == refused


class Secretive(FedAvg):
    """A method whose server keeps tensors of each form to itself."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.states.declare("total", torch.ones(()), Owner.SERVER_ONLY)
        self.states.declare("table", torch.ones(2, 3), Owner.SERVER_ONLY)
        self.states.declare("scores", torch.ones(self.n_clients), Owner.SERVER_ONLY, client_axis=0)
        self.states.declare("found", torch.ones(0, 5), Owner.SERVER_ONLY)  # sized by the data


def test_a_client_starts_with_the_form_of_what_the_server_keeps_to_itself() -> None:
    data = make_data()
    model = make_model(Secretive, data)
    model.found = torch.ones(7, 5)
    start = state_of_client(model, 2)
    assert not any(start[name].any() for name in ("total", "table", "scores", "found"))
    client = make_model(Secretive, make_data(sizes=(5,)))
    client.load_state_dict(start)
    assert client.scores.shape == (1,)
    assert client.found.shape == (0, 5)
