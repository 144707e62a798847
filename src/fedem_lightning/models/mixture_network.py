"""M networks that share parameters, as one network with M outputs: f(x; theta_0, phi_m) for m = 1..M."""

from collections.abc import Collection
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedem_lightning.data.samples import Inputs
from fedem_lightning.data.tasks import OfTask
from fedem_lightning.models.components import copied, model_state
from fedem_lightning.models.tensors import Models, call_with, called, share_frozen


class MixtureNetwork(nn.Module):
    """The networks of M components that share all tensors but those of `own`, which are phi.

    It holds no values of theirs. Where phi is a linear layer at the end of the network, the layers before it run once
    for all components.
    """

    takes_samples = True

    def __init__(self, components: nn.ModuleList, own: Collection[str]) -> None:
        super().__init__()
        state = model_state(components[0])
        self.network: nn.Module = copied(components[0])
        share_frozen(self.network, components[0])
        for name in own:  # stands for phi_m while component m runs
            self.network.get_parameter(name).requires_grad_(False)
        rows = {_key(name): nn.Parameter(torch.zeros(len(components), *state[name].shape)) for name in own}
        self.own = nn.ParameterDict(rows)  # phi, [M, ...]
        self._names = {_key(name): name for name in own}
        layers = {name.rpartition(".")[0] for name in own}
        layer = layers.pop() if len(layers) == 1 else ""
        head = self.network.get_submodule(layer)
        self._head = head if type(head) is nn.Linear and f"{layer}.weight" in own else None

    def forward(self, x: Inputs) -> Tensor:
        """The outputs of all components, [B, ...] -> [B, M, ...]."""
        if self._head is not None:
            seen: list[tuple[Tensor, Tensor]] = []  # the head's inputs and outputs
            with self._head.register_forward_hook(lambda layer, x, z: seen.append((x[0], z))):
                outputs = called(self.network, x)
            if len(seen) == 1 and outputs is seen[0][1]:
                return self._heads(seen[0][0], self._head)
        phi = {self._names[key]: rows.unbind() for key, rows in self.own.items()}  # `rows[m]` has a slow gradient
        each = (dict(zip(phi, rows, strict=True)) for rows in zip(*phi.values(), strict=True))
        return torch.stack([call_with(self.network, phi_m, x) for phi_m in each], dim=1)

    def _heads(self, features: Tensor, head: nn.Linear) -> Tensor:
        """The outputs of M linear layers: features [B, ..., d] -> [B, M, ..., n]."""
        phi = {self._names[key].rpartition(".")[2]: rows for key, rows in self.own.items()}
        z = torch.einsum("b...d,mnd->bm...n", features, phi["weight"])
        if "bias" in phi:
            return z + phi["bias"].reshape(1, len(phi["bias"]), *[1] * (features.ndim - 2), -1)
        return z if head.bias is None else z + head.bias


def _key(name: str) -> str:
    return name.replace(".", "/")  # a parameter's own name has no dots


def tensors_of(components: nn.ModuleList, own: Collection[str]) -> Models:
    """The tensors of a `MixtureNetwork` by name, of M components: theta_0 as it lies in memory, phi [M, ...]."""
    first, *others = (model_state(component) for component in components)
    tensors = {packed_name(name, False): t for name, t in first.items() if name not in own}
    phi = {name: torch.stack([first[name], *(state[name] for state in others)]) for name in own}
    return tensors | {packed_name(name, True): rows for name, rows in phi.items()}


def packed_name(name: str, own: bool) -> str:
    """The name in a `MixtureNetwork` of a component's tensor, which is phi's (`own`) or theta_0's."""
    return f"own.{_key(name)}" if own else f"network.{name}"


def packed(models: Models, own: Collection[str]) -> Models:
    """A `MixtureNetwork`'s tensors, theta_0 [C, 1, ...] and phi [C, 1, M, ...], from components' [C, M, ...]."""
    return {
        packed_name(name, name in own): rows.unsqueeze(1) if name in own else rows[:, :1]
        for name, rows in models.items()
    }


def unpacked(models: Models, n_models: int) -> Models:
    """A component's tensors [C, M, ...], of a `MixtureNetwork`'s as `packed` has them; shared ones are views."""
    return {
        component_name(n): t.squeeze(1) if n.startswith("own.") else t.expand(-1, n_models, *t.shape[2:])
        for n, t in models.items()
    }


def component_name(name: str) -> str:
    """A component's name of a tensor of a `MixtureNetwork`."""
    part, _, key = name.partition(".")
    return key.replace("/", ".") if part == "own" else key


@dataclass(frozen=True)
class ComponentLosses(OfTask):
    """The losses of all components: outputs [B, M, ...], y [B, ...] -> [B, M]."""

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Loss of each sample under each component."""
        return torch.stack([self.task.losses(output, y) for output in outputs.unbind(dim=1)], dim=1)
