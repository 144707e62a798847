"""Networks that change the features before the head takes them, by tensors of the method beside the user's network."""

import torch
from torch import Tensor, nn

from fedem_lightning.data.samples import Inputs
from fedem_lightning.models.heads import WithFeatures, widths
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
