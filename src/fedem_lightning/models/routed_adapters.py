"""A network with low-rank adapters beside its layers, which a router mixes inside each layer: FLoRAL's forward pass."""

from typing import Any

import torch
from torch import Tensor, nn

from fedem_lightning.data.samples import Inputs
from fedem_lightning.models.parts import Around
from fedem_lightning.models.tensors import Models, call_with
from fedem_lightning.settings.errors import require

ROUTER = "router"
"""Name of the router's logits."""


class RoutedAdapters(Around):
    """Linear and convolution layers, W and b, become W + alpha sum_m p_m B_m A_m and b + alpha sum_m p_m d_m.

    p = softmax(router). Of a convolution B_m A_m is the kernel sum_r B_m[o, r, h] A_m[r, i, w]: columns and rows of the
    image one after the other. A is drawn; B, d and the router start at zero, so that the network is the user's.

    Args:
        network: the user's. Layers whose W is frozen get no adapters.
        n_adapters: M, of each layer.
        rank: of the adapters; below 1: an adapter's share of its layer's parameters, and at least rank 1.
        alpha: the scale.

    """

    def __init__(self, network: nn.Module, n_adapters: int, rank: float, alpha: float) -> None:
        super().__init__()
        self.network, self.alpha = network, alpha
        self.router = nn.Parameter(torch.zeros(n_adapters))
        self.a, self.b, self.d = nn.ParameterDict(), nn.ParameterDict(), nn.ParameterDict()
        self._layers: dict[str, str] = {}  # their names, by the adapters' keys
        for name, layer in network.named_modules():
            if not isinstance(layer, nn.Linear | nn.Conv2d) or not layer.weight.requires_grad:
                continue
            n_out, n_in, height, width = (*layer.weight.shape, 1, 1)[:4]
            rows, columns = n_out * height, n_in * width
            r = int(rank) if rank >= 1 else max(1, int(rank * rows * columns / (rows + columns)))
            key = name.replace(".", "/") or "/"  # a parameter's own name has no dots
            self._layers[key] = name
            bound, w = (6 / columns) ** 0.5, layer.weight.detach()
            self.a[key] = nn.Parameter(w.new_empty(n_adapters, r, n_in, width).uniform_(-bound, bound))
            self.b[key] = nn.Parameter(w.new_zeros(n_adapters, n_out, r, height))
            if layer.bias is not None:
                self.d[key] = nn.Parameter(w.new_zeros(n_adapters, n_out))
        require(bool(self._layers), "backbone: FLoRAL adapts linear and convolution layers, and none trains here")

    @property
    def adapters(self) -> list[str]:
        """Names of the adapters' tensors, each [M, ...]."""
        return [name for name, _ in self.named_parameters() if name.split(".")[0] in ("a", "b", "d")]

    def forward(self, x: Inputs) -> Tensor:
        """The network's outputs with the layers' adapters."""
        p = self.alpha * self.router.softmax(dim=0)  # [M]
        tensors: Models = {}
        for key, name in self._layers.items():
            layer: Any = self.network.get_submodule(name)
            prefix = f"{name}." if name else ""
            change = torch.einsum("m,morh,mriw->oihw", p, self.b[key], self.a[key])
            tensors[f"{prefix}weight"] = layer.weight + change.reshape(layer.weight.shape)
            if key in self.d:
                tensors[f"{prefix}bias"] = layer.bias + torch.einsum("m,mo->o", p, self.d[key])
        return call_with(self.network, tensors, x)
