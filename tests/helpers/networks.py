"""A network of the user's own, which a checkpoint names only by its class."""

from collections.abc import Sequence

from torch import Tensor, nn

from fedem_lightning.records.recipes import Recorded


class SmallCNN(Recorded, nn.Module):
    """A convolution with BatchNorm and dropout: [B, channels, h, w] -> [B, n_outputs]."""

    def __init__(self, in_shape: Sequence[int], n_outputs: int) -> None:
        super().__init__()
        channels, height, width = in_shape
        body = (nn.Conv2d(channels, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.5), nn.Flatten())
        self.layers = nn.Sequential(*body, nn.Linear(4 * (height - 2) * (width - 2), n_outputs))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)
