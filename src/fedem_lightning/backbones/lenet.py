"""LeNet-5 (LeCun et al., "Gradient-based learning applied to document recognition", 1998)."""

from torch import Tensor, nn

from fedem_lightning.backbones.redrawable import Redrawable
from fedem_lightning.backbones.shapes import image_shape
from fedem_lightning.settings.ranges import Positive, PositiveInt, Shape


class LeNet5(Redrawable):
    """Two 5 x 5 convolutions with pooling, dense 120 and 84; 62,006 parameters for CIFAR-10.

    Images of 28 x 28 are padded to 32 x 32, as in the original: 66,126 parameters for EMNIST's 62 classes.

    Args:
        n_outputs: number of outputs.
        in_shape: channels, height, width.
        width: factor of the numbers of channels and units, rounded; 1.75 gives about three times the parameters.

    Raises:
        UserError: samples have another shape.

    """

    def __init__(self, n_outputs: PositiveInt, in_shape: Shape = (1, 28, 28), width: Positive = 1.0) -> None:
        super().__init__()
        channels, height, columns = image_shape("LeNet5", in_shape, at_least=12)
        first, second, third, fourth = (max(1, round(width * n)) for n in (6, 16, 120, 84))
        pad = 2 if height < 32 else 0
        self.features = nn.Sequential(
            nn.ZeroPad2d(pad),
            nn.Conv2d(channels, first, 5),
            nn.MaxPool2d(2),
            nn.ReLU(),  # after the pooling: the same result with a quarter of the work
            nn.Conv2d(first, second, 5),
            nn.MaxPool2d(2),
            nn.ReLU(),
        )
        flat = second * (((height + 2 * pad - 4) // 2 - 4) // 2) * (((columns + 2 * pad - 4) // 2 - 4) // 2)
        self.head = nn.Sequential(
            nn.Linear(flat, third), nn.ReLU(), nn.Linear(third, fourth), nn.ReLU(), nn.Linear(fourth, n_outputs)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Logits: [B, channels, height, width] -> [B, n_outputs]."""
        return self.head(self.features(x).flatten(1))
