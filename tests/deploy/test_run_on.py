"""The server's side over any link: what ends a run before the first round."""

from pathlib import Path

import pytest

from fedem_lightning import UserError
from fedem_lightning.deploy.server import run_on
from helpers.federations import make_data
from helpers.remote import ByteLink, nodes_of


def test_a_start_at_clients_is_refused_once_they_are_there(tmp_path: Path) -> None:
    link = ByteLink(nodes_of(make_data(), tmp_path / "nodes"))
    with pytest.raises(UserError, match=r"algorithm.initialization=random does not\), so it cannot"):
        run_on(link, ["algorithm=hypcluster", "backbone=linear"], tmp_path / "run", 4, 1.0)
    assert {request.facts["kind"] for _, request, _ in link.log} == {"describe"}
