"""Checkpoints that explain themselves: every method through load, client, personalize and predict."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn

from fedem_lightning import (
    MOCHA,
    ClientSGD,
    FedAvg,
    FedEM,
    Oracle,
    UserError,
    load,
    load_clients,
)
from fedem_lightning.evaluate.scores import scored_models
from fedem_lightning.models.personal_models import client_model
from fedem_lightning.serving.model_files import write_clients
from helpers.conformance import ROWS, Row
from helpers.every_method import each
from helpers.federations import make_data, make_model, stored, train

SGD = ClientSGD(lr=0.1, momentum=0.9, state="keep")
NEEDS_OTHERS = "needs the training samples of the run's clients"
EVERY = each(ROWS)
SERVING = each([row for row in ROWS if row.kind not in (MOCHA, Oracle) and row.options.get("similarity") != "cosine"])


def trained(row: Row, folder: Path, **options: Any) -> tuple[Any, Any, Path]:
    """A model after three rounds, its data (the last client is unseen), and its checkpoint."""
    unseen = {} if row.kind is MOCHA else {"unseen_fraction": 0.2}
    data = row.data(sizes=(9, 17, 6, 13, 12), **unseen, **options)
    model = row.model(data, client_optimizer=SGD)
    train(model, data, 3).trainer.save_checkpoint(folder / "a.ckpt")
    return model, data, folder / "a.ckpt"


def samples_of(data: Any, client: int, split: str) -> tuple[np.ndarray, np.ndarray]:
    index = data.federation.splits[split].positions(torch.tensor([client]))[0].numpy()
    samples = stored(data.federation)
    return samples.x.numpy()[index], samples.y.numpy()[index]


@EVERY
def test_a_loaded_model_serves_its_clients(row: Row, tmp_path: Path) -> None:
    """With the predictions of the model that was trained, from the file alone."""
    model, data, path = trained(row, tmp_path)
    again = load(path)
    assert type(again) is type(model)
    assert not again.training
    schema = again.schema
    assert schema is not None
    assert schema.names == data.federation.names
    assert schema.task == data.federation.task
    x, client = stored(data.federation).x[:7], int(data.federation.clients()[1])
    if again.adaptation is not None:
        with pytest.raises(UserError, match=r"client: with adaptation=.* use personalize\(x, y, name="):
            again.client(schema.name(client))
        with pytest.raises(UserError, match="clients tune their models on samples"):
            load_clients(path)
        return
    served = again.client(schema.name(client))
    expected = client_model(model.personal_models(torch.tensor([client])), schema, "expected")(x)
    torch.testing.assert_close(served(x), expected, rtol=0, atol=0)
    np.testing.assert_array_equal(served.predict(x.numpy()), expected.numpy())
    together = load_clients(path)
    assert together.names == tuple(data.federation.names[t] for t in data.federation.clients().tolist())
    torch.testing.assert_close(together.model(served.name)(x), expected, rtol=0, atol=0)
    write_clients(tmp_path / "clients.safetensors", together)
    torch.testing.assert_close(load_clients(tmp_path / "clients.safetensors").model(served.name)(x), expected)


@SERVING
def test_an_unseen_client_gets_the_model_of_the_test(row: Row, tmp_path: Path) -> None:
    """From its samples and the file it is the model with which `Trainer.test` scores it, to the bit."""
    model, data, path = trained(row, tmp_path)
    federation = data.federation
    (unseen,) = federation.clients(seen=False).tolist()
    parts = [samples_of(data, unseen, split) for split in ("train", "val")]
    x, y = (np.concatenate(both) for both in zip(*parts, strict=True))
    split = np.repeat([0, 1], [len(part[0]) for part in parts])
    again = load(path)
    assert again.schema is not None
    before = {name: tensor.clone() for name, tensor in again.state_dict().items()}
    samples, name = again.schema.samples_of(x, y), federation.names[unseen]
    ours = again.trained_model.personalize_many(samples, np.zeros(len(x), dtype=np.int64), split, (name,)).model(name)
    for key, tensor in again.state_dict().items():
        torch.testing.assert_close(tensor, before[key], rtol=0, atol=0, equal_nan=True)
    model.trainer.test(model, data, verbose=False)
    scored = scored_models(model, federation.block(torch.tensor([unseen]), "train"))
    expected = client_model(scored, again.schema, "expected")
    torch.testing.assert_close(ours(stored(data.federation).x), expected(stored(data.federation).x), rtol=0, atol=1e-15)


@SERVING
def test_new_clients_do_not_affect_one_another(row: Row, tmp_path: Path) -> None:
    _, data, path = trained(row, tmp_path)
    again = load(path)
    assert again.schema is not None
    (x, y), (u, v) = (samples_of(data, client, "train") for client in (1, 3))
    alone, everything = again.personalize(x, y), stored(data.federation).x
    both = again.schema.samples_of(np.concatenate([x, u]), np.concatenate([y, v]))
    owner = np.repeat([0, 1], [len(x), len(u)])
    pair = again.trained_model.personalize_many(both, owner, np.zeros(len(owner), dtype=np.int64), ("new", "other"))
    assert pair.names == ("new", "other")
    torch.testing.assert_close(pair.model("new")(everything), alone(everything), rtol=0, atol=1e-15)
    again.personalize(u, v)  # the room of a single new client is used again
    torch.testing.assert_close(
        again.personalize(x, y)(stored(data.federation).x), alone(stored(data.federation).x), rtol=0, atol=0
    )


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (next(r for r in ROWS if r.kind is Oracle), "Oracle needs data whose true groups are known"),
        (next(r for r in ROWS if r.options.get("similarity") == "cosine"), NEEDS_OTHERS),
        (next(r for r in ROWS if r.kind is MOCHA), "MOCHA"),
    ],
    ids=["Oracle", "UserCentric", "MOCHA"],
)
def test_what_a_method_cannot_do_is_one_line(row: Row, message: str, tmp_path: Path) -> None:
    _, data, path = trained(row, tmp_path)
    with pytest.raises(UserError, match=message) as error:
        load(path).personalize(*samples_of(data, 1, "train"))
    assert "\n" not in str(error.value)


# What is refused


@pytest.fixture(scope="module")
def fedem(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    data = make_data(sizes=(20, 25, 30), unseen_fraction=1 / 3)
    path = tmp_path_factory.mktemp("fedem") / "a.ckpt"
    train(make_model(FedEM, data, n_components=2), data, 1).trainer.save_checkpoint(path)
    return data, path


def test_names_are_checked(fedem: tuple[Any, Path]) -> None:
    data, path = fedem
    model, seen = load(path), data.federation.clients().tolist()
    (unseen,) = data.federation.clients(seen=False).tolist()
    with pytest.raises(UserError, match=r"client: nobody is none of the 2 clients that trained \("):
        model.client("nobody")
    with pytest.raises(UserError, match=rf"client: {unseen} took no part in training; personalize"):
        model.client(str(unseen))
    with pytest.raises(UserError, match=rf"client: {seen[0]} took part in training and has its model"):
        model.personalize(*samples_of(data, seen[0], "train"), name=str(seen[0]))


def test_no_samples_are_allowed(fedem: tuple[Any, Path]) -> None:
    found = load(fedem[1]).personalize(np.zeros((0, 4)), np.zeros(0, dtype=np.int64))
    assert found.weights.tolist() == [0.5, 0.5]


def test_a_model_that_was_not_trained_knows_no_clients() -> None:
    data = make_data()
    with pytest.raises(UserError, match="the model has not been trained"):
        make_model(FedEM, data).client("0")


def test_paths_are_checked(fedem: tuple[Any, Path], tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nowhere: no such run or file"):
        load(tmp_path / "nowhere")
    with pytest.raises(UserError, match=r"no checkpoint here; expected a run's folder or a .ckpt file"):
        load(tmp_path)
    (tmp_path / "broken.ckpt").write_bytes(fedem[1].read_bytes()[:500])
    with pytest.raises(UserError, match=r"broken.ckpt is no intact checkpoint"):
        load(tmp_path / "broken.ckpt")
    (tmp_path / "broken.safetensors").write_bytes(b"nothing")
    with pytest.raises(UserError, match=r"no intact .safetensors file"):
        load_clients(tmp_path / "broken.safetensors")
    (tmp_path / "sweep" / "1_a" / "checkpoints").mkdir(parents=True)
    (tmp_path / "sweep" / "1_a" / "checkpoints" / "round-000001.ckpt").write_bytes(fedem[1].read_bytes())
    with pytest.raises(UserError, match=r"a folder of 1 runs, expected one of them, e.g. .*1_a"):
        load(tmp_path / "sweep")
    assert load(tmp_path / "sweep" / "1_a").n_clients == 3


@pytest.mark.parametrize("change", [{"format": "pt"}, {"schema": '{"task":'}, {"network": "5"}])
def test_broken_files_of_clients_models(change: dict[str, str], fedem: tuple[Any, Path], tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    write_clients(path, load(fedem[1]).trained_model.clients_models())
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata()
    save_file(load_file(path), path, metadata | change)
    with pytest.raises(UserError, match=r"a\.safetensors: |backbone: the file's") as error:
        load_clients(path)
    assert "\n" not in str(error.value)


# Networks, recipes and trust


class Own(nn.Module):
    """A network of the user's."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x)


def test_a_network_of_ones_own_is_given_again(tmp_path: Path) -> None:
    data = make_data()
    model = FedAvg(Own(), n_clients=4)
    train(model, data, 1).trainer.save_checkpoint(tmp_path / "a.ckpt")
    with pytest.raises(UserError, match=r"does not say how to make .*Own again, .*load\(..., backbone="):
        load(tmp_path / "a.ckpt")
    again = load(tmp_path / "a.ckpt", backbone=Own())
    x = stored(data.federation).x[:3]
    assert torch.equal(again.client("0")(x), model.client("0")(x))
    write_clients(tmp_path / "c.safetensors", again.trained_model.clients_models())
    with pytest.raises(UserError, match=r"load\(..., backbone="):
        load_clients(tmp_path / "c.safetensors")
    torch.testing.assert_close(
        load_clients(tmp_path / "c.safetensors", backbone=Own()).model("0")(x), model.client("0")(x)
    )


def test_load_from_checkpoint_needs_no_arguments(fedem: tuple[Any, Path]) -> None:
    again = FedEM.load_from_checkpoint(fedem[1])
    assert again.components[0].linear.weight.shape == (3, 4)
    assert again.local.batch_size == 4
    assert FedEM.load_from_checkpoint(fedem[1], batch_size=7).local.batch_size == 7


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"threshold": None, "e_step": {"_target_": "fedem_lightning.gone.EStep", "level": "sample"}}, None),
        ({"perturbation": 0.1}, None),
        ({"perturbation": 0.0}, "perturbation: the file has FedEM.perturbation=0.0, an option that commit 45f9539f"),
        ({"threshold": 0.3}, "threshold: the file has FedEM.threshold=0.3, an option that commit 45f9539f has"),
        (
            {"e_step": {"_target_": "fedem_lightning.gone.EStep", "level": "x"}},
            "e_step: the file has FedEM.e_step",
        ),
    ],
)
def test_options_that_are_gone_had_their_defaults(
    given: dict[str, Any], line: str | None, fedem: tuple[Any, Path], tmp_path: Path
) -> None:
    checkpoint = torch.load(fedem[1], weights_only=True)
    checkpoint["recipe"] |= given
    checkpoint["recipe"]["backbone"]["_target_"] = "fedem_lightning.models.backbones.elsewhere.Linear"  # it has moved
    torch.save(checkpoint, tmp_path / "old.ckpt")
    if line is None:
        assert load(tmp_path / "old.ckpt").n_clients == 3
        return
    with pytest.raises(UserError, match=f"^{line}"):
        load(tmp_path / "old.ckpt")
