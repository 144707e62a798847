"""Pretrained bodies: what trains and is sent, where components start, features that are computed once, engines."""

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedem_lightning import (
    DFedEM,
    Ditto,
    FedAvg,
    FedEM,
    FedGMM,
    HypCluster,
    LoRA,
    Pretrained,
    TimmModel,
    Transformer,
    UserError,
    load_clients,
)
from fedem_lightning.engine import VmapEngine
from fedem_lightning.engine.stacked import StackedBackbone
from fedem_lightning.export import main as export
from fedem_lightning.models import cached_features
from fedem_lightning.models.cached_features import CachedFeatures, with_features
from fedem_lightning.models.components import make_components, model_state
from fedem_lightning.models.tensors import called, trained_parameters
from fedem_lightning.run.resuming import check_checkpoint
from helpers.encoders import CONFIG, minilm, tiny_texts
from helpers.federations import make_trainer

transformers = pytest.importorskip("transformers")
pytest.importorskip("peft")


def encoder(**options: Any) -> Any:
    return Transformer(3, config=CONFIG, **options)


def run(kind: Any = FedEM, rounds: int = 2, data: Any = None, network: Any = None, **options: Any) -> Any:
    """A trained and tested model."""
    data = data or tiny_texts()
    torch.manual_seed(0)
    model = kind(network or encoder, n_clients=4, **{"n_components": 3, "batch_size": 8, "engine": "loop", **options})
    trainer = make_trainer(rounds)
    trainer.fit(model, data)
    trainer.test(model, data, verbose=False)
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
    assert model.message_bytes == 4 * sum(p.numel() for p in network.parameters() if p.requires_grad)


def test_frozen_tensors_are_the_same_in_all_components() -> None:
    for given in (encoder, encoder()):
        components: Any = make_components(given, 3, seed=0)
        words = [component.body.embeddings.word_embeddings.weight for component in components]
        assert words[0] is words[1] is words[2]


def test_components_start_at_the_pretrained_point() -> None:
    for given in (functools.partial(encoder, trains="adapters"), encoder(trains="adapters")):
        first, second, _ = (trained_parameters(c) for c in make_components(given, 3, seed=0))
        for name, tensor in first.items():
            assert bool((tensor == 0).all()) == ("lora_B" in name)
            assert torch.equal(tensor, second[name]) == ("lora_B" in name)


def test_a_head_that_the_user_has_trained_is_kept() -> None:
    network = encoder(trains="adapters")
    nn.init.ones_(network.head.weight)
    first, second = (trained_parameters(c) for c in make_components(network, 2, seed=0))
    assert all(torch.equal(tensor, second[name]) for name, tensor in first.items())


@pytest.mark.parametrize(
    ("trains", "line"),
    [("head", "their heads\n"), ("adapters", "their heads and the matrices A of their adapters\n")],
)
def test_the_run_says_how_components_start(trains: str, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    run(rounds=1, network=functools.partial(encoder, trains=trains))
    assert f"components start at the same pretrained body; they differ in {line}" in capsys.readouterr().out


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
    network = Pretrained(nn.Sequential(nn.Linear(4, 3)), 3, 2, trains="adapters", adapters=LoRA(rank=2, alpha=6.0))
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.copy_(torch.randn(parameter.shape))
    t = {name: p.detach().numpy() for name, p in network.named_parameters()}
    x = torch.randn(5, 4)
    w, b = t["body.0.base_layer.weight"], t["body.0.base_layer.bias"]
    delta = 3.0 * t["body.0.lora_B.default.weight"] @ t["body.0.lora_A.default.weight"]
    z = x.numpy() @ (w + delta).T + b
    np.testing.assert_allclose(network(x).detach(), z @ t["head.weight"].T + t["head.bias"], rtol=1e-4, atol=1e-5)


def test_convolutions_have_adapters() -> None:
    body = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
    network = Pretrained(body, 4, 2, trains="adapters", adapters=LoRA(rank=2))
    assert {name.split(".")[2] for name in trained_parameters(network) if "lora" in name} == {"lora_A", "lora_B"}
    before = body[1].running_mean.clone()  # type: ignore[operator]
    assert network.train()(torch.rand(3, 1, 6, 6)).shape == (3, 2)
    assert torch.equal(body[1].running_mean, before)  # type: ignore[arg-type]


# --- pooling ----------------------------------------------------------------------------------------------------------


class Sequence(nn.Module):
    """Features that are the tokens themselves, [B, L, 1]."""

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> tuple[Tensor, None]:
        return input_ids.unsqueeze(-1).float(), None


@pytest.mark.parametrize(("pooling", "expected"), [("mean", [2.0, 4.0]), ("first", [1.0, 4.0])])
def test_pooling(pooling: Any, expected: list[float]) -> None:
    network = Pretrained(Sequence(), 1, 2, pooling=pooling)
    ids, mask = torch.tensor([[1, 3, 9], [4, 9, 9]]), torch.tensor([[1, 1, 0], [1, 0, 0]])
    assert network.features(input_ids=ids, attention_mask=mask).flatten().tolist() == expected


def test_padding_changes_nothing() -> None:
    network, sample = encoder().eval(), tiny_texts().federation.samples.features(torch.arange(4), torch.float32)
    longer = {name: torch.nn.functional.pad(part, (0, 5)) for name, part in sample.items()}
    torch.testing.assert_close(called(network, longer), called(network, sample))


# --- features that are computed once ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [FedEM, FedAvg, HypCluster, DFedEM, Ditto])
def test_cached_features_change_nothing(kind: Any, capsys: pytest.CaptureFixture[str]) -> None:
    options: dict[str, Any] = {} if kind in (FedAvg, Ditto) else {"n_components": 2}
    found = []
    for cache in (True, False):
        torch.manual_seed(0)
        model = kind(functools.partial(encoder, cache=cache), n_clients=4, batch_size=8, engine="loop", **options)
        data, trainer = tiny_texts(), make_trainer(2)
        trainer.fit(model, data)
        trainer.test(model, data, verbose=False)
        found.append(losses(model))
        said = "the frozen body has computed the features of 120 samples once, 16 numbers each"
        assert (said in capsys.readouterr().out) == cache
    np.testing.assert_allclose(found[0], found[1], rtol=1e-9)


def test_the_body_runs_once_a_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[int] = []
    features = Pretrained.features

    def counted(self: Pretrained, **x: Tensor) -> Tensor:
        rows.append(len(x["input_ids"]))
        return features(self, **x)

    monkeypatch.setattr(Pretrained, "features", counted)
    model = run(rounds=3)
    assert sum(rows) <= 120 + 3 * 2 * 2  # two samples of each check before a round or a score
    assert model.local.engine.name == "loop"
    assert list(model.local.network.state_dict()) == ["head.weight", "head.bias"]


def test_algorithms_with_one_body_share_its_features(capsys: pytest.CaptureFixture[str]) -> None:
    data, network = tiny_texts(), encoder()
    models = [FedAvg(network, 4) for _ in range(2)]
    for model in models:
        make_trainer(1).fit(model, data)
    assert models[0]._features[1] is models[1]._features[1]  # type: ignore[index]
    other = FedAvg(encoder(), 4)
    make_trainer(1).fit(other, data)
    assert other._features[1] is not models[0]._features[1]  # type: ignore[index]
    assert capsys.readouterr().out.count("the frozen body has computed") == 2


def test_equal_samples_are_seen_once_and_large_features_lie_in_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    federation = tiny_texts().federation
    samples: Any = federation.samples
    for part in samples.parts.values():
        part.x[60:] = part.x[:60]
    samples.length[60:] = samples.length[:60]
    network = encoder()
    in_memory: Any = with_features(federation, network).samples
    assert (in_memory.rows.shape, in_memory.rows.is_shared()) == ((60, 16), False)
    monkeypatch.setattr(cached_features, "IN_MEMORY", 100)
    in_file: Any = with_features(federation, network).samples
    index = torch.arange(120)
    for made in (in_memory, in_file, in_file.to("cpu")):
        torch.testing.assert_close(
            made.features(index, torch.float32)["features"], network.features(**samples.features(index, torch.float32))
        )
    assert in_file.fingerprint()[0] is samples.y


def test_where_features_are_not_cached() -> None:
    images = np.random.default_rng(0).integers(0, 255, (40, 8, 8), dtype=np.uint8)
    from fedem_lightning import FederatedDataModule

    data = FederatedDataModule.from_arrays(images, np.arange(40) % 2, np.arange(40) % 4)
    body = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU())

    def network() -> nn.Module:
        return Pretrained(body, 4, 2)

    cached = FedAvg(network, n_clients=4)
    make_trainer(1).fit(cached, data)
    assert isinstance(cached._features[1].samples, CachedFeatures)  # type: ignore[index]
    for made in (FedGMM(network, n_clients=4, n_components=2), FedAvg(lambda: Pretrained(body, 4, 2, cache=False), 4)):
        make_trainer(1).fit(made, data)
        assert made._features is None
    data.federation.augmentation = lambda x, keys: x
    augmented = FedAvg(network, n_clients=4)
    make_trainer(1).fit(augmented, data)
    assert augmented._features is None


def test_a_new_client_and_a_checkpoint_with_cached_features(tmp_path: Path) -> None:
    data = tiny_texts()
    model = FedEM(encoder, n_clients=4, n_components=2, engine="loop")
    trainer = make_trainer(2, "32-true")
    trainer.fit(model, data)
    trainer.save_checkpoint(tmp_path / "a.ckpt")
    again = FedEM.load_from_checkpoint(tmp_path / "a.ckpt", backbone=encoder)
    samples: Any = data.federation.samples
    x = {name: part[:6].numpy() for name, part in samples.x.items()}
    np.testing.assert_array_equal(model.client("1").predict(x), again.client("1").predict(x))
    assert model.schema is not None
    assert model.schema.in_shape == {"input_ids": (12,), "attention_mask": (12,)}
    np.testing.assert_allclose(
        model.personalize(x, samples.y[:6]).predict(x), again.personalize(x, samples.y[:6]).predict(x)
    )


def test_a_checkpoint_needs_no_other_file(tmp_path: Path) -> None:
    transformers.AutoModel.from_config(transformers.BertConfig(**{**CONFIG, "model_type": "bert"})).save_pretrained(
        tmp_path / "bert"
    )
    network = functools.partial(Transformer, 3, path=str(tmp_path / "bert"), trains="adapters")
    model = FedAvg(network(), n_clients=4)
    trainer = make_trainer(1, "32-true")
    trainer.fit(model, tiny_texts())
    trainer.save_checkpoint(tmp_path / "a.ckpt")
    for file in (tmp_path / "bert").iterdir():
        file.unlink()
    again: Any = FedAvg.load_from_checkpoint(tmp_path / "a.ckpt")
    for name, tensor in model.components.state_dict().items():
        assert torch.equal(tensor, again.components.state_dict()[name]), name
    check_checkpoint(tmp_path / "a.ckpt", again, tiny_texts().federation)  # as `evaluate` does
    out = str(tmp_path / "0.safetensors")
    export([str(tmp_path / "a.ckpt"), "--client", "0", "--format", "safetensors", "--out", out])
    assert load_clients(tmp_path / "0.safetensors").names == ("0",)


# --- engines ----------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:There is a performance drop because")  # attention under vmap, on a CPU
@pytest.mark.parametrize("trains", ["adapters", *(pytest.param(t, marks=pytest.mark.slow) for t in ("head", "all"))])
def test_stacked_vmap_and_loop_agree(trains: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """M = 3 encoders with adapters on four clients: one batched product for all learners, vmap, one after the other."""
    network = functools.partial(encoder, trains=trains, cache=False)
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


def test_timm() -> None:
    pytest.importorskip("timm")
    network: Any = TimmModel(5, "resnet10t", pretrained=False)
    assert network(torch.rand(2, 3, 32, 32)).shape == (2, 5)
    assert set(trained_parameters(network)) == {"head.weight", "head.bias"}
    assert not network.train().body.training
    with pytest.raises(UserError, match=r"backbone.name: timm cannot make no_such_network"):
        TimmModel(5, "no_such_network", pretrained=False)


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({}, "backbone.path: expected a model's folder, or its name on the Hub"),
        ({"path": "no/such/folder/here"}, "backbone.path: no encoder in no/such/folder/here"),
        ({"config": {"model_type": "no such type"}}, "backbone.path: no encoder in config"),
    ],
)
def test_wrong_encoders(options: Any, line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(UserError, match=line):
        Transformer(3, **options)


def test_all_minilm() -> None:
    """The real encoder: its features of a text are those of its own package, up to their length."""
    folder = minilm()
    network: Any = Transformer(2, path=folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    texts = ["Could you please have a look at this?", "No."]
    x = dict(tokenizer(texts, padding=True, return_tensors="pt"))
    z = network.eval().features(input_ids=x["input_ids"], attention_mask=x["attention_mask"])
    assert z.shape == (2, 384)
    bert = transformers.AutoModel.from_pretrained(folder).eval()
    hidden, mask = bert(**x).last_hidden_state, x["attention_mask"].unsqueeze(-1)
    torch.testing.assert_close(z, (hidden * mask).sum(dim=1) / mask.sum(dim=1), rtol=1e-4, atol=1e-5)
    whole = sum(p.numel() for p in network.parameters())
    lora: Any = Transformer(
        2, path=folder, trains="adapters", adapters=LoRA(8, targets=".*attention.*(query|key|value|dense)")
    )
    assert whole > 22_000_000
    assert sum(p.numel() for p in trained_parameters(lora).values()) < 0.02 * whole
