"""The axes of a user's images: where the channels are."""

import numpy as np

from fedem_lightning.errors import require

CHANNELS = (1, 3)
"""Numbers of channels by which an axis is known: grey, and red, green and blue."""


def channels_last(x: np.ndarray) -> tuple[np.ndarray, str]:
    """Images of bytes with the channels' axis last, as a view; and a line that says how they were read.

    The channels are the first or the last axis of an image, whichever has 1 or 3 entries. If neither has, they are the
    last axis.

    Args:
        x: uint8 [n, height, width], [n, height, width, channels] or [n, channels, height, width].

    Raises:
        UserError: both axes have 1 or 3 entries.

    Example:
        >>> images, line = channels_last(np.zeros((5, 3, 28, 32), dtype=np.uint8))
        >>> images.shape, line
        ((5, 28, 32, 3), 'images 28 x 32 with 3 channels')

    """
    if x.ndim == 3:
        return x, f"images {x.shape[1]} x {x.shape[2]} with 1 channel"
    first, last = (x.shape[axis] in CHANNELS for axis in (1, 3))
    both = f"x: axes 1 and 3 of uint8 images {list(x.shape)} may both be the channels"
    require(not (first and last), f"{both}; give floats in [0, 1] of shape [n, channels, height, width]")
    x = np.moveaxis(x, 1, 3) if first else x
    _, height, width, n = x.shape
    return x, f"images {height} x {width} with {n} channel{'s' * (n != 1)}"
