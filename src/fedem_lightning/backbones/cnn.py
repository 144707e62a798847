"""Two convolutional networks for 28 x 28 characters: that of the papers, and that of the public FedEM code."""

from torch import Tensor, nn

from fedem_lightning.backbones.dropout import Dropout
from fedem_lightning.backbones.redrawable import Redrawable
from fedem_lightning.backbones.shapes import image_shape
from fedem_lightning.settings.ranges import PositiveInt, Shape


class CNN(Redrawable):
    """The CNN of the papers (Reddi et al. 2021; Mansour et al. 2020, Table 4); 1,206,590 parameters for 62 classes.

    Args:
        n_outputs: number of outputs.
        in_shape: channels, height, width.

    Raises:
        UserError: samples have another shape.

    """

    def __init__(self, n_outputs: PositiveInt, in_shape: Shape = (1, 28, 28)) -> None:
        super().__init__()
        channels, height, width = image_shape("CNN", in_shape, at_least=6)
        self.features = nn.Sequential(
            nn.Conv2d(channels, 32, 3),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3),
            nn.MaxPool2d(2),
            nn.ReLU(),  # after the pooling: the same result with a quarter of the work
            Dropout(0.25, salt=1),
        )
        flat = 64 * ((height - 4) // 2) * ((width - 4) // 2)
        self.head = nn.Sequential(nn.Linear(flat, 128), nn.ReLU(), Dropout(0.5, salt=2), nn.Linear(128, n_outputs))

    def forward(self, x: Tensor) -> Tensor:
        """Logits: [B, channels, height, width] -> [B, n_outputs]."""
        return self.head(self.features(x).flatten(1))


class ReferenceCNN(Redrawable):
    """The CNN of the public FedEM code, without dropout; 2,278,334 parameters for 62 classes.

    Args:
        n_outputs: number of outputs.
        in_shape: channels, height, width.

    Raises:
        UserError: samples have another shape.

    """

    def __init__(self, n_outputs: PositiveInt, in_shape: Shape = (1, 28, 28)) -> None:
        super().__init__()
        channels, height, width = image_shape("ReferenceCNN", in_shape, at_least=16)
        self.features = nn.Sequential(
            nn.Conv2d(channels, 32, 5),
            nn.MaxPool2d(2),
            nn.ReLU(),  # after the pooling: the same result with a quarter of the work
            nn.Conv2d(32, 64, 5),
            nn.MaxPool2d(2),
            nn.ReLU(),
        )
        flat = 64 * (((height - 4) // 2 - 4) // 2) * (((width - 4) // 2 - 4) // 2)
        self.head = nn.Sequential(nn.Linear(flat, 2048), nn.ReLU(), nn.Linear(2048, n_outputs))

    def forward(self, x: Tensor) -> Tensor:
        """Logits: [B, channels, height, width] -> [B, n_outputs]."""
        return self.head(self.features(x).flatten(1))
