"""Networks that change the features before the head takes them, by tensors of the method beside the user's network."""

import copy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedem_lightning.data.samples import Inputs
from fedem_lightning.data.tasks import known
from fedem_lightning.models.heads import PrototypeNetwork, WithFeatures, by_learner, widths
from fedem_lightning.settings.errors import require


class LinearHead(WithFeatures):
    """A user's network whose head takes d features, by a linear layer; see `WithFeatures`."""

    def __init__(self, backbone: nn.Module, head: str | None = None) -> None:
        super().__init__(backbone, head)
        self.n_features, self.n_outputs = widths(backbone.get_submodule(self.head))  # d; 0 where it is not the head yet

    def check_head(self) -> None:
        """Raises UserError if the head is not linear. The head is known once the network has seen data."""
        kind = type(self.network.get_submodule(self.head)).__name__
        require(self.n_features > 0, f"head: expected a linear layer, as needed here, got {kind}")


class ShiftedFeatures(LinearHead):
    """A network with a shift b of its features, 0 at first: its outputs are h(phi(x) + b).

    With `apart` (any value) the features phi(x) follow the outputs: [n, ..., n_outputs + d].
    """

    apart: Tensor | None

    def __init__(self, backbone: nn.Module, head: str | None = None) -> None:
        super().__init__(backbone, head)
        self.shift = nn.Parameter(next(backbone.parameters()).new_zeros(self.n_features))
        self.register_buffer("apart", None)

    def forward(self, x: Inputs) -> Tensor:
        """The outputs; see the class."""
        outputs, z = self.through(x, lambda z: z + self.shift)
        return outputs if self.apart is None else torch.cat([outputs, z], dim=-1)


class DistanceNetwork(PrototypeNetwork):
    """A network that also says how far a sample's features z are from points C_y, one for each class.

    With `prototypes` [Y, d] the outputs are followed by |z - C_y|^2 / d of each class, [n, ..., n_outputs + Y]; with
    `apart` (any value) by z.
    """

    def forward(self, x: Inputs) -> Tensor:
        """The outputs; see the class."""
        if self.prototypes is None:
            return super().forward(x)
        outputs, z = self.outputs_and_features(x)
        rows = by_learner(self.prototypes, 2)  # [A M, Y, d]
        each = z.reshape(len(rows), -1, rows.shape[-1])  # [A M, n', d]
        squares = each.square().sum(dim=-1, keepdim=True) + rows.square().sum(dim=-1).unsqueeze(1)  # [A M, n', Y]
        distances = (squares - 2 * each @ rows.mT) / rows.shape[-1]
        return torch.cat([outputs, distances.view(*outputs.shape[:-1], -1)], dim=-1)


def split_distances(outputs: Tensor, y: Tensor, n_classes: int) -> tuple[Tensor, Tensor]:
    """Of a `DistanceNetwork`: its outputs [n, ..., n_outputs], and |z - C_y|^2 / d for a sample's own classes [n].

    It is summed over the known labels of a sample, y [n, ...].
    """
    plain, distances = outputs[..., :-n_classes], outputs[..., -n_classes:]
    own = distances.gather(-1, y.long().clamp(min=0).unsqueeze(-1)).squeeze(-1) * known(y)
    return plain, own.reshape(len(y), -1).sum(dim=1)


class Condition(nn.Module):
    """CoV(z, c) = ReLU((1 + gamma(c)) z + beta(c)), element by element; gamma and beta are LayerNorm(ReLU(linear))."""

    def __init__(self, n_features: int) -> None:
        super().__init__()
        d = n_features
        self.gamma, self.beta = (nn.Sequential(nn.Linear(d, d), nn.ReLU(), nn.LayerNorm(d)) for _ in range(2))

    def forward(self, z: Tensor, c: Tensor) -> Tensor:
        """Features z [n, ..., d], condition c [1, d] -> [n, ..., d]."""
        return ((1 + self.gamma(c)) * z + self.beta(c)).relu()


class GuidedNetwork(LinearHead):
    """A network with embeddings e_y [Y, d] of the classes, whose head takes CoV(phi(x), p), p = sum_y shares_y e_y.

    With `frozen` [Y, d], the embeddings at the start of a round, p and g = mean_y e_y are made of these, and the
    outputs are followed by the cosines of f = CoV(phi(x), g) with all e_y, and by f: [n, ..., n_outputs + Y + d].
    """

    shares: Tensor  # [Y]
    frozen: Tensor | None

    def __init__(self, backbone: nn.Module, head: str | None = None) -> None:
        super().__init__(backbone, head)
        d, n_classes = max(1, self.n_features), max(2, self.n_outputs)  # one logit is that of two classes
        self.embeddings = nn.Parameter(torch.randn(n_classes, d))
        self.condition = Condition(d)
        self.register_buffer("shares", torch.full((n_classes,), 1 / n_classes))
        self.register_buffer("frozen", None)
        self.to(next(backbone.parameters()).dtype)

    def forward(self, x: Inputs) -> Tensor:
        """The outputs; see the class."""
        e = self.embeddings if self.frozen is None else self.frozen
        outputs, z = self.through(x, lambda z: self.condition(z, self.shares.unsqueeze(0) @ e))
        if self.frozen is None:
            return outputs
        f = self.condition(z, e.mean(dim=0, keepdim=True))
        cosines = F.normalize(f, dim=-1) @ F.normalize(self.embeddings, dim=-1).T
        return torch.cat([outputs, cosines, f], dim=-1)


class PolicyNetwork(LinearHead):
    """A network with its own linear head h_G and a personal one h_t, to which a policy divides the features.

    (r, s) = softmax over two of ReLU(LayerNorm(linear(v * phi(x)))), so that r + s = 1 in each feature; the outputs are
    h_t(r * phi(x)) + h_G(s * phi(x)). v is the sum of the rows of h_t's weight, of length 1, or `context` [d] if it is
    given. With `apart` (any value) phi(x) follows: [n, ..., n_outputs + d].
    """

    own_part = "personal"
    context: Tensor | None
    apart: Tensor | None

    def __init__(self, backbone: nn.Module, head: str | None = None) -> None:
        super().__init__(backbone, head)
        d = max(1, self.n_features)
        self.personal: Any = copy.deepcopy(backbone.get_submodule(self.head))
        policy = nn.Sequential(nn.Linear(d, 2 * d), nn.LayerNorm(2 * d), nn.ReLU())
        self.policy = policy.to(next(backbone.parameters()).dtype)
        self.register_buffer("context", None)
        self.register_buffer("apart", None)

    def check_head(self) -> None:
        """Raises UserError if the head is not one linear layer."""
        kind = type(self.personal).__name__
        require(isinstance(self.personal, nn.Linear), f"head: expected one linear layer, as needed here, got {kind}")

    def direction(self, weight: Tensor) -> Tensor:
        """v of a head's weight [..., Y, d]: [..., d]."""
        return F.normalize(weight.detach().sum(dim=-2), dim=-1)

    def forward(self, x: Inputs) -> Tensor:
        """The outputs; see the class."""
        v = self.direction(self.personal.weight) if self.context is None else self.context
        own: list[Tensor] = []

        def divided(z: Tensor) -> Tensor:
            r, s = self.policy(v * z).unflatten(-1, (2, -1)).softmax(dim=-2).unbind(dim=-2)  # [n, ..., d]
            own.append(self.personal(r * z))
            return s * z

        generic, z = self.through(x, divided)
        outputs = own[-1] + generic
        return outputs if self.apart is None else torch.cat([outputs, z], dim=-1)
