"""Clients that reply garbage: the run ends as if they had not answered, and they are counted and named."""

import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedem_lightning import QFFL, Ditto, FedEM, HypCluster, TopK, UserCentric
from fedem_lightning.deploy.node import Node
from fedem_lightning.deploy.server import RemoteDataModule
from fedem_lightning.deploy.wire import Parcel
from fedem_lightning.rejections import EXCEPTION, INVALID, NOT_FINITE
from helpers.federations import make_data, make_model, make_trainer
from helpers.garbage import garbled
from helpers.remote import ByteLink, nodes_of

CASES: list[tuple[str, Any, dict[str, Any]]] = [
    ("train", FedEM, {}),
    ("score", FedEM, {}),
    ("train", Ditto, {}),
    ("score", Ditto, {}),
    ("train", UserCentric, {"n_streams": 2, "refresh_every": 1}),
    ("score", UserCentric, {"n_streams": 2}),
    ("answer", UserCentric, {"n_streams": 2, "refresh_every": 1}),
    ("train", HypCluster, {"initialization": "random"}),  # groups and reported rows
    ("train", QFFL, {"sampling": "uniform"}),  # extras
    ("train", FedEM, {"compression": TopK(share=0.5)}),  # messages
    ("train", FedEM, {"upload_threshold": 0.9}),  # some of the components
]


class Crowd(ByteLink):
    """Two honest clients, "0" and "1", and as many others, whose replies are made from those of the first.

    Args:
        nodes: the honest ones.
        n_others: number of the others; they describe themselves as clients like the first.
        kind: of the only request that they answer; None: none.

    """

    def __init__(self, nodes: list[Node], n_others: int, kind: str | None) -> None:
        super().__init__(nodes)
        self.n_others, self.kind = n_others, kind
        self.texts: dict[int, str] = {}  # what is wrong with a client's reply, by node
        self.like: dict[str, Parcel] = {}  # the first one's newest reply to each kind of request

    def connected(self) -> list[int]:
        return list(range(len(self.nodes) + self.n_others))

    def ask(self, requests: Mapping[int, Parcel]) -> Iterator[tuple[int, Parcel | None]]:
        honest = {node: request for node, request in requests.items() if node < len(self.nodes)}
        kind = next(iter(requests.values())).facts["kind"]
        for node, reply in super().ask(honest):
            if node == 0:
                self.like[kind] = reply  # type: ignore[assignment]
            yield node, reply
        like = self.like[kind]
        made = list(garbled(kind, like)) if kind == self.kind else []
        for node in requests.keys() - honest.keys():
            i = node - len(self.nodes)
            if kind == "describe":
                yield node, like._replace(facts=like.facts | {"name": f"x{i:04}"})
            elif i < len(made):
                self.texts[node], reply = made[i]
                yield node, reply
            else:
                yield node, None


def played(folder: Path, kind: str | None, n_others: int, method: Any, options: dict[str, Any]) -> tuple[Any, Crowd]:
    """A run of two rounds with its test, and its link."""
    link = Crowd(nodes_of(make_data(sizes=(12, 20)), folder), n_others, kind)
    data = RemoteDataModule(link, 2 + n_others, run="run")
    model = make_model(method, data, **options)
    model.remote = data.remote
    trainer = make_trainer(2, limit_val_batches=1, num_sanity_val_steps=0)
    trainer.fit(model, data)
    trainer.test(model, data, verbose=False)
    return model, link


@pytest.mark.parametrize(("kind", "method", "options"), CASES)
def test_the_run_is_that_without_the_garbage(kind: str, method: Any, options: dict[str, Any], tmp_path: Path) -> None:
    n_others = 220
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        model, link = played(tmp_path / "a", kind, n_others, method, options)
        without, _ = played(tmp_path / "b", None, n_others, method, options)
    assert 40 < len(link.texts) < n_others, len(link.texts)
    for (name, a), b in zip(without.state_dict().items(), model.state_dict().values(), strict=True):
        assert torch.equal(a.nan_to_num(), b.nan_to_num()), name
    honest, other = (model.clients[model.clients.id.isin(["0", "1"])] for model in (model, without))
    assert honest.equals(other)
    assert not honest.isna().any().any()
    assert all(np.isfinite(value) for row in model.curves.values() for value in row.values())
    assert model.curves[2].keys() == without.curves[2].keys()
    assert model.curves[2]["scored_clients"] == 2
    lines = [str(warning.message) for warning in said]
    assert all(len(line) < 1500 and line.isprintable() for line in lines)
    if kind == "score":
        return
    found = {entry["client"]: entry["reason"] for entry in model.statistics.rejections.by_client}
    if kind == "train":
        assert {INVALID, EXCEPTION} <= {found[node] for node in link.texts} <= {INVALID, EXCEPTION, NOT_FINITE}
    assert link.texts.keys() <= found.keys()
    named = "\n".join(lines)
    unnamed = [text for node, text in link.texts.items() if f"client x{node - 2:04}: " not in named]
    assert [text for text in unnamed if not text.endswith(" nan")] == []  # the method itself counts such gradients
