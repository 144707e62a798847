"""Pretrained bodies: what trains and is sent, where components start, data of features, engines, files."""

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedem_lightning import (
    FedAvg,
    FedEM,
    FederatedDataModule,
    LoRA,
    Pretrained,
    UserError,
    embedded,
    load_clients,
)
from fedem_lightning.export import main as export
from fedem_lightning.local.engine import VmapEngine
from fedem_lightning.models.backbones.pretrained import hugging_face
from fedem_lightning.models.components import make_components, model_state
from fedem_lightning.models.parts import model_bytes
from fedem_lightning.models.stacked import StackedBackbone
from fedem_lightning.models.tensors import trained_parameters
from fedem_lightning.run.run_folder import check_checkpoint
from fedem_lightning.settings.recipes import recipe
from fedem_lightning.settings.remaking import make
from helpers.encoders import CONFIG, minilm, tiny_texts
from helpers.federations import make_trainer, train_and_test

transformers = pytest.importorskip("transformers")
pytest.importorskip("peft")


def encoder(**options: Any) -> Any:
    return Pretrained(hugging_face(CONFIG), 3, **options)


def run(kind: Any = FedEM, rounds: int = 2, data: Any = None, network: Any = None, **options: Any) -> Any:
    """A trained and tested model."""
    data = data or tiny_texts()
    torch.manual_seed(0)
    of_fedem = {"n_components": 3, "initialization": "shared"} if kind is FedEM else {}
    model = kind(network or encoder, n_clients=4, **{"batch_size": 8, "engine": "loop", **of_fedem, **options})
    train_and_test(model, data, rounds)
    return model


def losses(model: Any) -> np.ndarray:
    return np.asarray(model.clients[["train_loss", "test_loss"]])


# --- what trains ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("trains", "parts"),
    [("head", {"head"}), ("adapters", {"head", "lora_A", "lora_B"}), ("all", {"head", "body"})],
)
def test_what_trains(trains: str, parts: set[str]) -> None:
    network = encoder(trains=trains)
    names = set(trained_parameters(network))
    kinds = {next((p for p in ("lora_A", "lora_B") if p in name), name.split(".")[0]) for name in names}
    assert kinds == parts
    assert set(model_state(network)) == names  # position_ids are constants, and no part of a client's model
    model = FedAvg(network, n_clients=4)
    assert model_bytes(model.components[0]) == 4 * sum(p.numel() for p in network.parameters() if p.requires_grad)


def test_components_start_at_the_pretrained_point() -> None:
    for given in (functools.partial(encoder, trains="adapters"), encoder(trains="adapters")):
        first, second, _ = (trained_parameters(c) for c in make_components(given, 3, seed=0))
        for name, tensor in first.items():
            assert bool((tensor == 0).all()) == ("lora_B" in name)
            assert torch.equal(tensor, second[name]) == ("lora_B" in name)


def test_lora_chooses_layers() -> None:
    network = encoder(trains="adapters", adapters=LoRA(rank=2, targets=["query"]))
    names = {name.split(".lora_")[0].rsplit(".", 1)[-1] for name in trained_parameters(network) if "lora" in name}
    assert names == {"query"}
    assert trained_parameters(network)["body.encoder.layer.0.attention.self.query.lora_A.default.weight"].shape == (
        2,
        16,
    )
    with pytest.raises(UserError, match=r"adapters: targets \['nothing'\] do not fit .*; layers are encoder.layer.0"):
        encoder(trains="adapters", adapters=LoRA(targets=["nothing"]))
    with pytest.raises(UserError, match="adapters: they go with trains=adapters, got trains=head"):
        encoder(adapters=LoRA(rank=2))
    shapes = [p.shape[0] for n, p in encoder(trains="adapters", adapters=3).named_parameters() if "lora_A" in n]
    assert set(shapes) == {3}


def test_lora_equals_its_equation() -> None:
    """W x + (alpha / r) B A x, written out."""
    network = Pretrained(nn.Sequential(nn.Linear(4, 3)), 2, 3, trains="adapters", adapters=LoRA(rank=2, alpha=6.0))
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.copy_(torch.randn(parameter.shape))
    t = {name: p.detach().numpy() for name, p in network.named_parameters()}
    x = torch.randn(5, 4)
    w, b = t["body.0.base_layer.weight"], t["body.0.base_layer.bias"]
    delta = 3.0 * t["body.0.lora_B.default.weight"] @ t["body.0.lora_A.default.weight"]
    z = x.numpy() @ (w + delta).T + b
    np.testing.assert_allclose(network(x).detach(), z @ t["head.weight"].T + t["head.bias"], rtol=1e-4, atol=1e-5)


# --- pooling ----------------------------------------------------------------------------------------------------------


class Sequence(nn.Module):
    """Features that are the tokens themselves, [B, L, 1]."""

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> tuple[Tensor, None]:
        return input_ids.unsqueeze(-1).float(), None


def test_features_of_a_sequence_are_means_over_what_the_mask_counts() -> None:
    network = Pretrained(Sequence(), 2, 1)
    ids, mask = torch.tensor([[1, 3, 9], [4, 9, 9]]), torch.tensor([[1, 1, 0], [1, 0, 0]])
    assert network.features(input_ids=ids, attention_mask=mask).flatten().tolist() == [2.0, 4.0]


# --- data of features -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [FedEM, FedAvg])
def test_heads_on_features_are_what_the_whole_network_trains(kind: Any, capsys: pytest.CaptureFixture[str]) -> None:
    network = encoder().double()
    whole, heads = (run(kind, data=d, network=network) for d in (tiny_texts(), embedded(tiny_texts(), network)))
    said = "the frozen body has computed the features of 120 samples once, 16 numbers each"
    assert capsys.readouterr().out.count(said) == 1
    np.testing.assert_allclose(losses(heads), losses(whole), rtol=1e-9)
    assert heads.federation_digest == whole.federation_digest
    x = {name: part[:6].numpy() for name, part in tiny_texts().federation.samples.x.items()}  # type: ignore[attr-defined]
    np.testing.assert_allclose(heads.client("1").predict(x), whole.client("1").predict(x), rtol=1e-6)


def images(**options: Any) -> FederatedDataModule:
    pixels = np.random.default_rng(0).integers(0, 255, (40, 8, 8), dtype=np.uint8)
    y = (pixels.reshape(40, -1).mean(axis=1) > 127).astype(int)
    return FederatedDataModule.from_arrays(pixels, y, np.arange(40) % 4, **options)


class Tokens(nn.Module):
    """Features [B, 8, 8] of an image: its rows; or the first of them, [B, 8]."""

    def __init__(self, first: bool = False) -> None:
        super().__init__()
        self.scale, self.first = nn.Parameter(torch.ones(())), first

    def forward(self, x: Tensor) -> Tensor:
        rows = self.scale * x.squeeze(1)
        return rows[:, 0] if self.first else rows


def test_bodies_with_equal_tensors_and_other_features_are_two() -> None:
    """A cache by the body's tensors gave the second network the features of the first."""
    data, found = images(), {}
    for first in (False, True):
        torch.manual_seed(0)
        network: Any = Pretrained(Tokens(first), 2, 8)
        found[first] = losses(run(FedAvg, data=embedded(data, network), network=network))
        np.testing.assert_allclose(found[first], losses(run(FedAvg, data=data, network=network)), rtol=1e-5)
    assert not np.allclose(found[False], found[True], rtol=1e-3)
    with pytest.raises(UserError, match="the data have the features of a frozen body, and this network has another"):
        run(FedAvg, data=embedded(data, Pretrained(Tokens(), 2, 8)), network=network)


def test_a_frozen_body_has_no_dropout() -> None:
    """Also where components have dropout layers of this package in place of torch's."""
    body = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Dropout(0.9))
    component: Any = make_components(Pretrained(body.eval(), 2, 8), 1, seed=0)[0]
    x = torch.rand(3, 1, 8, 8)
    torch.testing.assert_close(component.train().features(x), body(x))


def test_the_body_runs_once_a_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[int] = []
    features = Pretrained.features

    def counted(self: Pretrained, **x: Tensor) -> Tensor:
        rows.append(len(x["input_ids"]))
        return features(self, **x)

    monkeypatch.setattr(Pretrained, "features", counted)
    data, network = tiny_texts(), encoder()
    model: Any = run(data=embedded(data, network), network=network)
    assert sum(rows) <= 120 + 3 * 2 * 2  # two samples of each check before a round or a score
    rows.clear()
    samples: Any = data.federation.samples
    model.client("1").predict({name: part[:6].numpy() for name, part in samples.x.items()})
    assert rows == [6]  # for all three components


def test_what_has_no_features_is_one_line() -> None:
    head, all_of_it = Pretrained(Tokens(), 2, 8), Pretrained(Tokens(), 2, 8, trains="all")
    for data, network, line in (
        (images(), all_of_it, "body: expected a Pretrained network with trains=head"),
        (embedded(images(), head), head, "data: expected samples that lie in memory, and are no features yet"),
    ):
        with pytest.raises(UserError, match=line):
            embedded(data, network)
    with pytest.raises(UserError, match="width: expected the number of the body's features"):
        Pretrained(Tokens(), 2)


# --- files ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("trains", ["head", "adapters"])
def test_a_checkpoint_needs_no_other_file(trains: Any, tmp_path: Path) -> None:
    """The body's folder may be gone; a client's model takes texts, from the run and from its own file."""
    config = transformers.BertConfig(**{k: v for k, v in CONFIG.items() if k != "model_type"})
    transformers.AutoModel.from_config(config).save_pretrained(tmp_path / "bert")
    body = functools.partial(transformers.AutoModel.from_pretrained, str(tmp_path / "bert"))
    network, data = Pretrained(body, 3, trains=trains), tiny_texts()
    model = FedEM(network, n_clients=4, n_components=2, initialization="shared")
    trainer = make_trainer(1, "32-true")
    trainer.fit(model, embedded(data, network) if trains == "head" else data)
    trainer.save_checkpoint(tmp_path / "a.ckpt")
    for file in (tmp_path / "bert").iterdir():
        file.unlink()
    again: Any = FedEM.load_from_checkpoint(tmp_path / "a.ckpt")
    for name, tensor in model.components.state_dict().items():
        assert torch.equal(tensor, again.components.state_dict()[name]), name
    check_checkpoint(tmp_path / "a.ckpt", again, data.federation)  # as `evaluate` does
    export([str(tmp_path / "a.ckpt"), "--client", "0", "--format", "safetensors", "--out", str(tmp_path / "out")])
    samples: Any = data.federation.samples
    x = {name: part[:6].numpy() for name, part in samples.x.items()}
    expected = model.client("0").predict(x)
    for served in (again.client("0"), load_clients(next((tmp_path / "out").glob("*.safetensors"))).model("0")):
        np.testing.assert_array_equal(served.predict(x), expected)
    new, newer = (one.personalize(x, samples.y[:6]).predict(x) for one in (model, again))
    np.testing.assert_allclose(new, newer)


# --- engines ----------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:There is a performance drop because")  # attention under vmap, on a CPU
@pytest.mark.parametrize("trains", ["adapters", *(pytest.param(t, marks=pytest.mark.slow) for t in ("head", "all"))])
def test_stacked_vmap_and_loop_agree(trains: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """M = 3 encoders with adapters on four clients: one batched product for all learners, vmap, one after the other."""
    network = functools.partial(encoder, trains=trains)
    loop = run(network=network)
    stacked = run(network=network, engine="vmap")
    assert stacked.local.engine.name == "vmap"
    assert (stacked.local.engine._stacked is not None) == (trains != "all")  # LayerNorm and Embedding would train
    np.testing.assert_allclose(losses(stacked), losses(loop), rtol=1e-9)
    monkeypatch.setattr(StackedBackbone, "of", classmethod(lambda cls, backbone: None))
    plain = run(network=network, engine=VmapEngine())
    assert plain.local.engine.name == "vmap"
    np.testing.assert_allclose(losses(plain), losses(loop), rtol=1e-9)


# --- networks of others -----------------------------------------------------------------------------------------------


def test_timm(tmp_path: Path) -> None:
    timm = pytest.importorskip("timm")
    create = functools.partial(timm.create_model, model_name="resnet10t", pretrained=True, num_classes=0)
    recipe_ = {"_target_": "fedem_lightning.Pretrained", "n_outputs": 5, "body": recipe(create)}
    network: Any = make(recipe_, key="backbone")  # a file downloads nothing
    assert network(torch.rand(2, 3, 32, 32)).shape == (2, 5)
    assert set(trained_parameters(network)) == {"head.weight", "head.bias"}
    assert not network.train().body.training
    with pytest.raises(UserError, match=r"^body: cannot be made \(Unknown model \(no_such_network\)\)"):
        Pretrained(functools.partial(timm.create_model, "no_such_network"), 5)


def test_wrong_bodies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(UserError, match=r"body: cannot be made .*no/such/folder/here"):
        Pretrained(functools.partial(transformers.AutoModel.from_pretrained, "no/such/folder/here"), 3)
    with pytest.raises(UserError, match="body: the function returned 3, expected a network"):
        Pretrained(lambda: 3, 3)  # type: ignore[arg-type, return-value]


def test_all_minilm() -> None:
    """The real encoder: its features of a text are those of its own package, up to their length."""
    folder = minilm()
    load = functools.partial(transformers.AutoModel.from_pretrained, folder, add_pooling_layer=False)
    network: Any = Pretrained(load, 2)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    texts = ["Could you please have a look at this?", "No."]
    x = dict(tokenizer(texts, padding=True, return_tensors="pt"))
    z = network.eval().features(input_ids=x["input_ids"], attention_mask=x["attention_mask"])
    assert z.shape == (2, 384)
    bert = transformers.AutoModel.from_pretrained(folder).eval()
    hidden, mask = bert(**x).last_hidden_state, x["attention_mask"].unsqueeze(-1)
    torch.testing.assert_close(z, (hidden * mask).sum(dim=1) / mask.sum(dim=1), rtol=1e-4, atol=1e-5)
    whole = sum(p.numel() for p in network.parameters())
    adapters = LoRA(8, targets=".*attention.*(query|key|value|dense)")
    lora: Any = Pretrained(load, 2, trains="adapters", adapters=adapters)
    assert whole > 22_000_000
    assert sum(p.numel() for p in trained_parameters(lora).values()) < 0.02 * whole
