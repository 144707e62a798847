"""Networks of linear layers for many learners at once, as batched matrix products.

The learners are folded into the batch axis, so everything without parameters (activations, reshaping, a user's own
forward) runs unchanged; layers with parameters multiply each learner's rows by its own weights. The result is that of
`torch.func.vmap`, without the cost of dispatching each operation through it.
"""

import copy

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.conv import _ConvNd
from torch.utils._pytree import tree_map

from fedem_lightning.data.randomness import fold, passes
from fedem_lightning.data.samples import Inputs
from fedem_lightning.data.tasks import Loss
from fedem_lightning.models.backbones.layers import Dropout
from fedem_lightning.models.backbones.networks import LSTM
from fedem_lightning.models.backbones.pretrained import Pretrained
from fedem_lightning.models.components import dropout_keys, model_state
from fedem_lightning.models.mixture_network import ComponentLosses, MixtureNetwork, component_name, unpacked
from fedem_lightning.models.tensors import Models, call_with


class StackedLinear(nn.Linear):
    """`nn.Linear` with weight [A, M, out, in] and bias [A, M, out]; A, M = 1 if shared, frozen ones have no A and M."""

    shape: tuple[int, int, int]  # A clients, M models of each, B samples of each

    def forward(self, input: Tensor) -> Tensor:
        """Outputs: [A M B, ..., in], or [A B, ..., in] if a client's models share their input, -> [A M B, ..., out].

        They are [A B, ..., out] if the models share both their input and the layer, which then runs once.
        """
        a, m, b = self.shape
        if self.weight.ndim == 2 and (self.bias is None or self.bias.ndim == 1):
            return super().forward(input)
        if a > 1 and self.weight.shape[:2] == (1, 1) and (self.bias is None or self.bias.shape[:2] == (1, 1)):
            return F.linear(input, self.weight[0, 0], None if self.bias is None else self.bias[0, 0])
        n_in, n_out, middle = self.in_features, self.out_features, input.shape[1:-1]
        own = self.weight.shape[1] if self.weight.ndim == 4 else 1  # weights of a client: M or 1
        own_bias = self.bias.shape[1] if self.bias is not None and self.bias.ndim == 3 else 1
        shared = input.shape[0] == a * b
        if shared:
            m = max(own, own_bias)
        weight = self.weight.expand(a, own, -1, -1)
        bias = None if self.bias is None else self.bias.expand(a, own_bias, -1)
        if shared and own == m and n_in > n_out:  # one product for all models of a client
            x = input.reshape(a, -1, n_in).transpose(1, 2)  # [A, in, B']
            added = None if bias is None else bias.expand(-1, m, -1).flatten(1).unsqueeze(2)
            out = _products(added, weight.flatten(1, 2), x)  # [A, M out, B']
            out = out.view(a, m, n_out, -1).transpose(2, 3)  # [A, M, B', out]
        elif own == m:
            x = input.reshape(a, 1 if shared else m, -1, n_in).expand(a, m, -1, -1)  # [A, M, B', in]
            added = None if bias is None else bias.expand(-1, m, -1).flatten(0, 1).unsqueeze(1)
            out = _products(added, x.flatten(0, 1), weight.flatten(0, 1).transpose(1, 2))  # [A M, B', out]
        else:  # one weight for all models of a client
            out = torch.bmm(input.reshape(a, -1, n_in), weight.squeeze(1).transpose(1, 2))  # [A, M B', out]
            if bias is not None:
                out = out.view(a, 1 if shared else m, -1, n_out) + bias.unsqueeze(2)  # [A, M, B', out]
        return out.reshape(a * m * b, *middle, n_out)


def _products(bias: Tensor | None, a: Tensor, b: Tensor) -> Tensor:
    return torch.bmm(a, b) if bias is None else torch.baddbmm(bias, a, b)


class StackedDropout(Dropout):
    """`Dropout` with a key [A, M], or [A, 1] if models share their masks; a learner has the same mask as outside."""

    shape: tuple[int, int, int]  # A clients, M models of each, B samples of each

    def forward(self, x: Tensor) -> Tensor:
        """Applies the masks to x of any shape with A M B (or A B) rows."""
        if not self.training or self.p == 0:
            return x
        a, m, b = self.shape
        if x.shape[0] == a * b and self.key.shape[1] == m:
            x = x.unflatten(0, (a, 1, b)).expand(a, m, *(b, *x.shape[1:])).flatten(0, 2)
        each = x.reshape(a, x.shape[0] // (a * b), -1)  # [A, M, B ...]
        position = torch.arange(each.shape[2], dtype=torch.int32, device=x.device)
        kept = passes(fold(self.key.unsqueeze(2), self.salt), position, self.p)
        return (each * kept.to(x.dtype) / (1 - self.p)).view_as(x)


STACKED_LIMIT_CPU = 200_000
"""Number of parameters up to which stacking is faster on a CPU; above, the arithmetic itself dominates."""


def against_stacking(backbone: nn.Module, device: torch.device) -> str | None:
    """Why learners, or clients' own models, run faster one by one than stacked; None: they do not.

    Recurrent layers other than LSTM have fused kernels that cannot be stacked. On a CPU convolutions are slower, and
    more than 200,000 parameters unless they are an LSTM's. Of a network with a frozen body the head alone counts: it
    runs on features that are computed once.
    """
    network = backbone.network if isinstance(backbone, MixtureNetwork) else backbone  # one component of several
    if isinstance(network, Pretrained) and network.frozen_body:
        network = network.head
    on_cpu = device.type == "cpu"
    unstackable = any(isinstance(layer, nn.RNNBase) and not isinstance(layer, LSTM) for layer in network.modules())
    convolutional = any(isinstance(layer, _ConvNd) for layer in network.modules())
    recurrent = any(isinstance(layer, LSTM) for layer in network.modules())  # many small products at any size
    large = sum(p.numel() for p in network.parameters()) > STACKED_LIMIT_CPU and not recurrent
    reasons = {
        "its recurrent layers cannot be stacked": unstackable,
        "convolutions on a CPU": on_cpu and convolutional,
        f"more than {STACKED_LIMIT_CPU:,} parameters on a CPU": on_cpu and large,
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


PADDING = 0.1
"""Largest number of padded samples for each real sample."""

STACKED: dict[type[nn.Module], type[nn.Module]] = {nn.Linear: StackedLinear, Dropout: StackedDropout}


class StackedBackbone:
    """A backbone in which every layer that trains is replaced by its stacked form; frozen ones see all learners' rows.

    A client's models share their input up to the first layer that differs. Where a later layer adds what comes from
    before it, as adapters do, each model gets an input of its own (`expands`).
    """

    def __init__(self, backbone: nn.Module) -> None:
        self.expands = False
        tensors = (*backbone.parameters(), *backbone.buffers())
        shared = {id(t): t for t in tensors if not t.requires_grad}  # the same tensors, not copies
        self._network = copy.deepcopy(backbone, shared).train()
        self.keys = dropout_keys(backbone)  # names of the buffers with keys of random numbers
        self._layers = [layer for layer in self._network.modules() if type(layer) in STACKED]
        for layer in self._layers:
            layer.__class__ = STACKED[type(layer)]

    def eval(self) -> "StackedBackbone":
        """Puts the layers in eval mode."""
        self._network.eval()
        return self

    @staticmethod
    def of(backbone: nn.Module) -> "StackedBackbone | None":
        """The stacked form of `backbone`; None if a layer that trains, or has buffers, has no stacked form."""
        state, kind, network = set(model_state(backbone)), StackedBackbone, backbone
        if isinstance(backbone, MixtureNetwork):
            state, kind, network = {component_name(name) for name in state}, StackedMixture, backbone.network
        for name, layer in network.named_modules():
            own = [f"{name}.{n}" if name else n for n in (*layer._parameters, *layer._buffers)]
            if type(layer) not in STACKED and any(n in state for n in own):
                return None
        return kind(network)

    def agrees(self, backbone: nn.Module, params: Models, x: Inputs, keys: Tensor) -> bool:
        """Whether the stacked outputs equal those of the backbone alone; they differ if a forward mixes samples."""
        try:
            result = self.outputs(params, x, keys)[-1, -1]
        except RuntimeError:  # the forward adds the shared input to the models' outputs: the shapes differ
            if self.expands:
                return False
            self.expands = True
            return self.agrees(backbone, params, x, keys)
        single = {name: p[-1, -1] for name, p in params.items()} | dict.fromkeys(dropout_keys(backbone), keys[-1, -1])
        expected = call_with(backbone, single, tree_map(lambda t: t[-1], x))
        if result.shape != expected.shape:
            return False
        return bool((result - expected).norm() <= 0.02 * expected.norm())  # above the rounding error of bfloat16

    def losses(self, task: Loss, outputs: Tensor, y: Tensor) -> Tensor:
        """Losses of all samples: outputs [A, M, B, ...], y [A, B, ...] -> [A, M, B]."""
        a, m = outputs.shape[:2]
        each_y = y.unsqueeze(1).expand(-1, m, *y.shape[1:]).flatten(0, 2)  # [A M B, ...]
        return task.losses(outputs.flatten(0, 2), each_y).view(a, m, -1)

    def outputs(self, params: Models, x: Inputs, keys: Tensor) -> Tensor:
        """Outputs of every learner: params [A, M, ...], x [A, B, ...], keys [A, M] -> [A, M, B, ...].

        What a client's models share is [A, 1, ...], and a parameter that all learners share [1, 1, ...].
        """
        some = x if isinstance(x, Tensor) else next(iter(x.values()))  # [A, B, ...]
        n_models = max(keys.shape[1], *(p.shape[1] for p in params.values()))
        shape = (len(keys), n_models, some.shape[1])
        for layer in self._layers:
            layer.shape = shape  # type: ignore[assignment]
        state = {**params, **dict.fromkeys(self.keys, keys)}
        if self.expands:
            x = tree_map(lambda t: t.unsqueeze(1).expand(-1, n_models, *t.shape[1:]).flatten(0, 1), x)  # [A M, B]
        result: Tensor = call_with(self._network, state, tree_map(lambda t: t.flatten(0, 1), x))  # [A M B, ...]
        return result.unflatten(0, shape)


class StackedMixture(StackedBackbone):
    """The network in a `MixtureNetwork`, for M components of each client, which share parameters.

    For the engine a mixture is one model of a client, M = 1, with the outputs of all components.
    """

    def losses(self, task: Loss, outputs: Tensor, y: Tensor) -> Tensor:
        """Losses of all samples: outputs [A, 1, B, M, ...], y [A, B, ...] -> [A, 1, B, M]."""
        assert isinstance(task, ComponentLosses)
        return super().losses(task.task, outputs.squeeze(1).transpose(1, 2), y).transpose(1, 2).unsqueeze(1)

    def outputs(self, params: Models, x: Inputs, keys: Tensor) -> Tensor:
        """Outputs of all components: params [A, 1, ...], x [A, B, ...], keys [A, 1] -> [A, 1, B, M, ...]."""
        return super().outputs(unpacked(params, 1), x, keys).transpose(1, 2).unsqueeze(1)


def group_rows(sizes: list[int], padding: float, limit: int, most: int = 2**62) -> list[slice]:
    """Groups rows with batches of `sizes` (descending) that are stepped together, padded to a group's first row.

    Padding adds at most the fraction `padding` of the real samples; a group of several rows has at most `limit` ones,
    and at most `most` rows.
    """
    spare = padding * sum(sizes)
    groups, start, waste = [], 0, 0
    for row, size in enumerate(sizes):
        added = sizes[start] - size
        if row > start and (
            waste + added > spare / 2 or sizes[start] * (row - start + 1) > limit or row - start >= most
        ):
            groups.append(slice(start, row))
            spare -= waste
            start, waste, added = row, 0, 0
        waste += added
    return [*groups, slice(start, len(sizes))] if sizes else []
