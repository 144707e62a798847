"""Networks that others have trained, with a new head: encoders of Hugging Face, and networks of timm."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from fedem_lightning.backbones.pretrained import Adapters, Pooling, Pretrained, Trains, added_to_attention
from fedem_lightning.errors import UserError, imported, require
from fedem_lightning.records.recipes import recorded
from fedem_lightning.settings.ranges import PositiveInt


@recorded
def Transformer(
    n_outputs: PositiveInt,
    path: str | None = None,
    trains: Trains = "head",
    adapters: Adapters = None,
    pooling: Pooling = "mean",
    cache: bool = True,
    config: Mapping[str, Any] | None = None,
) -> nn.Module:
    """An encoder of Hugging Face with a new head.

    Its samples are dictionaries: `input_ids` and `attention_mask` [n, L], or what else the encoder takes.

    Args:
        n_outputs: number of outputs.
        path: folder of the model, or its name on the Hub.
        trains, adapters, pooling, cache: see `Pretrained`.
        config: the encoder's configuration, as in its config.json. With a path, None; without one, the encoder's
            weights are drawn, not pretrained.

    Raises:
        UserError: transformers is not installed; there is no such encoder.

    """
    transformers = imported("transformers", "hf", "backbone")
    require(path is not None or config is not None, "backbone.path: expected a model's folder, or its name on the Hub")
    try:
        with _quiet(transformers.utils.logging):
            if path is not None:
                body = _without_pooler(transformers.AutoModel.from_pretrained, path)
            else:
                known = dict(config or {})
                kind = transformers.AutoConfig.for_model(known.pop("model_type", ""), **known)
                body = _without_pooler(transformers.AutoModel.from_config, kind)
    except (OSError, ValueError, KeyError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"backbone.path: no encoder in {path or 'config'} ({reason:.200})") from error
    width: Any = getattr(body.config, "hidden_size", None) or getattr(body.config, "dim", None)
    require(isinstance(width, int), f"backbone.path: {path} does not say the width of its features (hidden_size)")
    made = Pretrained(body.float(), width, n_outputs, trains, adapters, pooling, cache)
    made.adds_mask = _takes_added_mask(body)
    made.found_out = {"config": body.config.to_dict()}  # type: ignore[assignment]
    return made


@torch.no_grad()
def _takes_added_mask(body: nn.Module) -> bool:
    """Whether an encoder takes such a mask. A mask [B, L] it would look at, which `torch.func.vmap` forbids."""
    mask = torch.tensor([[1, 1, 0]])
    sample, was_training = {"input_ids": torch.zeros_like(mask)}, body.training
    try:
        plain, added = (
            body.eval()(**sample, attention_mask=m)[0] for m in (mask, added_to_attention(mask, torch.float32))
        )
        return bool(torch.allclose(plain[:, :2], added[:, :2], atol=1e-5))
    except Exception:  # other inputs, or no such mask: each encoder says it in its own way
        return False
    finally:
        body.train(was_training)


@contextmanager
def _quiet(logging: Any) -> Iterator[None]:
    """Without the bars and tables that transformers prints about weights that it does not use."""
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def _without_pooler(load: Any, source: Any) -> Any:
    """The encoder without the layer that some have behind it, which is for another task."""
    try:
        return load(source, add_pooling_layer=False)
    except TypeError:
        return load(source)


@recorded
def TimmModel(
    n_outputs: PositiveInt,
    name: str | None = None,
    pretrained: bool = True,
    trains: Trains = "head",
    adapters: Adapters = None,
    cache: bool = True,
) -> nn.Module:
    """A network of timm with a new head, for images.

    Args:
        n_outputs: number of outputs.
        name: of the network, such as "vit_small_patch16_224" or "resnet18".
        pretrained: whether it starts from its weights (downloaded by timm).
        trains, adapters, cache: see `Pretrained`.

    Raises:
        UserError: timm is not installed, does not know the network, or cannot load its weights.

    """
    timm = imported("timm", "timm", "backbone")
    require(name is not None, "backbone.name: expected the name of a network of timm, such as resnet18")
    try:
        body = timm.create_model(name, pretrained=pretrained, num_classes=0)
    except Exception as error:  # unknown names, no weights, no network: each in its own way
        reason = " ".join(str(error).split())
        raise UserError(f"backbone.name: timm cannot make {name} ({reason:.200})") from error
    return Pretrained(body, body.num_features, n_outputs, trains, adapters, cache=cache)
