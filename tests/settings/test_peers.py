"""Names of methods that other frameworks use: what is said of them is true, here and in Python."""

import pytest

from fedem_lightning.run.command_line import composed
from fedem_lightning.settings.keys import choices
from fedem_lightning.settings.peers import NEAREST, SAME, fold, nearest


@pytest.mark.parametrize("means", sorted({*SAME.values(), *NEAREST.values()}))
def test_what_the_table_says_can_be_written(means: str) -> None:
    assert composed([f"algorithm={means.split()[0]}", *means.split()[1:]]).algorithm.title


def test_the_tables_have_folded_names_that_are_none_of_ours() -> None:
    ours = {fold(name) for name in choices()["algorithm"]}
    assert all(name == fold(name) for name in (*SAME, *NEAREST))
    assert not (SAME.keys() & NEAREST.keys()) | ((SAME.keys() | NEAREST.keys()) & ours)


def test_the_nearest_name() -> None:
    names = ["fedem", "pfedme", "fedper", "fedrep", "lg_fedavg"]
    typed = ["fedme", "pFedMe", "FedPer", "LG-FedAvg", "fedpre", "nothing"]
    assert [nearest(name, names) for name in typed] == ["fedem", "pfedme", "fedper", "lg_fedavg", "fedper", None]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("PerAvg", "here it is PerFedAvg"),
        ("SCAFFOLD", "here it is Scaffold"),
        (
            "FedAvgM",
            r"here it is FedAvg with what algorithm=fedavg \+algorithm.server_optimizer.momentum=0.9 sets .*",
        ),
        ("MOON", "no such method yet; the nearest is FedProx"),
    ],
)
def test_an_import_by_a_peers_name(name: str, said: str) -> None:
    with pytest.raises(ImportError, match=rf"^fedem_lightning.{name}: {said}$"):
        exec(f"from fedem_lightning import {name}")
