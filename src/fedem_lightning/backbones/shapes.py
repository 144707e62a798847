"""Checks of the shape of a backbone's samples."""

from collections.abc import Sequence

from fedem_lightning.errors import require


def image_shape(network: str, in_shape: Sequence[int], at_least: int) -> tuple[int, int, int]:
    """Channels, height and width of a sample.

    Args:
        network: name of the backbone's class.
        in_shape: shape of one sample.
        at_least: pixels that the network needs in height and width.

    Raises:
        UserError: the samples are no images, or the images are too small.

    """
    shape = tuple(in_shape)
    fits = len(shape) == 3 and min(shape[1:]) >= at_least
    require(
        fits,
        f"backbone: {network} takes images (channels, height, width) of {at_least} x {at_least} pixels or more, the "
        f"samples have shape {shape}; backbone=linear and mlp take any",
    )
    channels, height, width = shape
    return channels, height, width
