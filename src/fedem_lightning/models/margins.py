"""A network whose logits have margins of the client's own."""

from torch import Tensor, nn

from fedem_lightning.data.samples import Inputs
from fedem_lightning.models.heads import shifted
from fedem_lightning.models.parts import Around
from fedem_lightning.models.tensors import called


class WithMargins(Around):
    """A network whose outputs are f, or f - m with `margins` -m [n_outputs], which come beside its tensors."""

    margins: Tensor | None

    def __init__(self, backbone: nn.Module) -> None:
        super().__init__()
        self.network = backbone
        self.register_buffer("margins", None)

    def forward(self, x: Inputs) -> Tensor:
        """The outputs [n, ..., n_outputs]; see the class."""
        outputs: Tensor = called(self.network, x)
        return outputs if self.margins is None else shifted(outputs, self.margins)
