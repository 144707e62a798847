"""Pretrained bodies with a new head: encoders of Hugging Face, networks of timm, and a user's own.

The body is frozen, or has LoRA adapters (Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", ICLR 2022),
or trains as a whole. Only what trains is copied for every component, kept by clients, averaged and sent.
"""

import copy
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedem_lightning.models.backbones.layers import is_frozen_norm
from fedem_lightning.settings.errors import UserError, imported, one_line, require
from fedem_lightning.settings.ranges import Positive, PositiveInt
from fedem_lightning.settings.recipes import Recorded, import_path, recorded, remember


class LoRA(Recorded):
    """Adapters of linear and convolution layers: W x + (alpha / r) B A x, with W frozen, A drawn and B = 0.

    Args:
        rank: r.
        alpha: sets the scale.
        targets: the layers: endings of their names, or a regular expression for whole names; None: all linear and
            convolution layers of the body.

    """

    def __init__(
        self, rank: PositiveInt = 8, alpha: Positive = 16.0, targets: Sequence[str] | str | None = None
    ) -> None:
        self.rank, self.alpha, self.targets = rank, alpha, targets

    def into(self, body: nn.Module) -> None:
        """Puts adapters beside the layers of a network; everything else in it is frozen."""
        peft = imported("peft", "hf", "adapters")
        kinds = (nn.Linear, nn.Conv2d)
        layers = [name for name, layer in body.named_modules() if name and isinstance(layer, kinds)]
        targets = layers if self.targets is None else self.targets
        chosen = targets if isinstance(targets, str) else list(targets)
        try:
            config = peft.LoraConfig(r=self.rank, lora_alpha=self.alpha, target_modules=chosen)
            peft.inject_adapter_in_model(config, body)
        except ValueError as error:
            some = ", ".join(layers[:4])
            line = f"adapters: targets {chosen!r} do not fit ({one_line(error):.150}); layers are {some}, ..."
            raise UserError(line) from error
        for name, parameter in body.named_parameters():
            parameter.requires_grad_("lora_" in name)


class Pretrained(Recorded, nn.Module):
    """A pretrained body, and a new linear head on its features.

    A body of which nothing trains runs as in evaluation, without dropout, also in training. Its features depend on the
    sample alone: `embedded` computes them once, and the network takes them in place of samples.

    Args:
        body: a network, or a function that makes one. Its outputs are features [B, d], or [B, L, d] of a sequence,
            or [B, d, h, w] of an image, of which the mean is taken: of a sequence over the positions that
            `attention_mask` counts. Of several outputs the first counts. An encoder of Hugging Face takes dictionaries:
            `input_ids` and `attention_mask` [n, L].
        n_outputs: number of outputs.
        width: d; None: what a network of timm or Hugging Face says.
        trains: "head": the body is frozen; "adapters": it is, and has LoRA adapters; "all": it trains.
        adapters: of trains="adapters": a `LoRA`, or its rank; None: `LoRA()`.

    """

    def __init__(
        self,
        body: nn.Module | Callable[[], nn.Module],
        n_outputs: PositiveInt,
        width: PositiveInt | None = None,
        trains: Literal["head", "adapters", "all"] = "head",
        adapters: LoRA | PositiveInt | None = None,
    ) -> None:
        super().__init__()
        fits = adapters is None or trains == "adapters"
        require(fits, f"adapters: they go with trains=adapters, got trains={trains}")
        if not isinstance(body, nn.Module):
            try:
                body = body()
            except Exception as error:  # unknown names, no weights, no network: each library in its own way
                raise UserError(f"body: cannot be made ({one_line(error):.200})") from error
        require(isinstance(body, nn.Module), f"body: the function returned {body!r:.50}, expected a network")
        config: Any = getattr(body, "config", None)
        self.adds_mask = False  # whether the body gets its mask as numbers that attention adds
        if hasattr(config, "to_dict"):  # of Hugging Face: a file has the configuration, and needs no folder
            pooler = getattr(body, "pooler", None) is not None
            made_with = {"config": config.to_dict(), "pooler": pooler}
            self.made_with["body"] = remember(body.float(), import_path(hugging_face), made_with)
            self.adds_mask = _takes_added_mask(body)
        result = [
            getattr(one, n, None) for one, n in ((body, "num_features"), (config, "hidden_size"), (config, "dim"))
        ]
        d = width or next((n for n in result if isinstance(n, int)), None)
        require(d is not None, "width: expected the number of the body's features, which it does not say")
        self.body, self.head = body.requires_grad_(trains == "all"), nn.Linear(d or 0, n_outputs)
        if trains == "adapters":
            (adapters if isinstance(adapters, LoRA) else LoRA(adapters or 8)).into(body)
        self.frozen_body = trains == "head"
        self._drawn = self.head.weight.detach().clone()  # to tell whether the user has changed it
        warnings.filterwarnings("ignore", message=r"Found \d+ module\(s\) in eval mode")  # Lightning's; it is meant so

    def train(self, mode: bool = True) -> Self:
        """Frozen parts stay in eval mode: no dropout, and no new statistics."""
        if self.frozen_body:
            if self.body.training:  # a large body takes a while to walk
                self.body.eval()
            self.training = mode
            self.head.train(mode)
            return self
        super().train(mode)
        for layer in self.body.modules():
            if isinstance(layer, _BatchNorm) and is_frozen_norm(layer):
                layer.eval()
        return self

    def features(self, *args: Tensor, **named: Tensor) -> Tensor:
        """The features of samples, [B, d]."""
        mask = named.get("attention_mask")
        if self.adds_mask and mask is not None:
            named["attention_mask"] = _added_to_attention(mask, next(self.body.parameters()).dtype)
        z = self.body(*args, **named)
        if not isinstance(z, Tensor):
            z = next(iter(z.values())) if isinstance(z, Mapping) else z[0]
        if z.ndim == 4:
            return z.mean(dim=(2, 3))
        if z.ndim != 3:
            return z
        if mask is None:
            return z.mean(dim=1)
        weight = mask.unsqueeze(-1).to(z.dtype)
        return (z * weight).sum(dim=1) / weight.sum(dim=1).clamp(min=1)

    def forward(self, *args: Tensor, features: Tensor | None = None, **named: Tensor) -> Tensor:
        """Outputs [B, n_outputs], from what the body takes or from its features [B, d]."""
        return self.head(self.features(*args, **named) if features is None else features)

    def redrawn(self) -> Self:
        """A copy with the same frozen tensors, a new head and new A; the same values if the head has been changed."""
        frozen = {id(p): p for p in self.parameters() if not p.requires_grad}
        new = copy.deepcopy(self, frozen)
        if torch.equal(self.head.weight.detach().to(self._drawn), self._drawn):
            new.head.reset_parameters()
            for layer in new.body.modules():
                for name in getattr(layer, "lora_A", ()):
                    layer.reset_lora_parameters(name, init_lora_weights=True)  # type: ignore[operator]
        return new


@recorded
def hugging_face(config: Mapping[str, Any], pooler: bool = False) -> nn.Module:
    """An encoder of Hugging Face with drawn weights, as files name it: by the configuration of its config.json.

    `pooler`: whether it has the layer for another task that some encoders have at their end.
    """
    transformers, known = imported("transformers", "hf", "backbone"), dict(config)
    kind = transformers.AutoConfig.for_model(known.pop("model_type", ""), **known)
    if not pooler:
        try:
            return transformers.AutoModel.from_config(kind, add_pooling_layer=False)
        except TypeError:  # this kind has no such layer
            pass
    return transformers.AutoModel.from_config(kind)


@torch.no_grad()
def _takes_added_mask(body: nn.Module) -> bool:
    """Whether an encoder takes such a mask. A mask [B, L] it would look at, which `torch.func.vmap` forbids."""
    mask = torch.tensor([[1, 1, 0]])
    sample, was_training = {"input_ids": torch.zeros_like(mask)}, body.training
    try:
        plain, added = (
            body.eval()(**sample, attention_mask=m)[0] for m in (mask, _added_to_attention(mask, torch.float32))
        )
        return bool(torch.allclose(plain[:, :2], added[:, :2], atol=1e-5))
    except Exception:  # other inputs, or no such mask: each encoder says it in its own way
        return False
    finally:
        body.train(was_training)


def _added_to_attention(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """A mask [B, L] as numbers that attention adds: 0, and the lowest one for padding; [B, 1, 1, L]."""
    lowest = torch.finfo(dtype).min
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(mask == 0, lowest)[:, None, None]
