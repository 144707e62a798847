"""A public data set that stands for the central distribution."""

import re
from pathlib import Path

from fedem_lightning.data.arrays import check_features, check_labels
from fedem_lightning.data.federation import Federation
from fedem_lightning.data.formats.npz import read_npz
from fedem_lightning.data.samples import Arrays, as_tensor
from fedem_lightning.errors import UserError, require


def read_proxy(path: str | Path, federation: Federation) -> Arrays:
    """The file's x and y, prepared like the federation's own samples.

    Raises:
        UserError: the file, x or y is missing, or samples have another shape or other labels than the federation's.

    """
    file = Path(path).expanduser()
    try:
        arrays = read_npz(file, ("x", "y"))
    except UserError as error:
        raise UserError(re.sub("^path:", "adaptation.proxy:", str(error))) from error
    require("x" in arrays and "y" in arrays, f"adaptation.proxy: {path} lacks x or y")
    own = federation.samples
    n_classes = getattr(federation.task, "n_classes", None)
    require(n_classes is not None and isinstance(own, Arrays), "adaptation.proxy: expected a federation with labels")
    assert isinstance(own, Arrays)
    y, _ = check_labels(arrays["y"], n_classes, len(arrays["x"]))
    public = Arrays(as_tensor(check_features(arrays["x"])), as_tensor(y), own.mean, own.std, own.invert)
    fits = public.in_shape == own.in_shape
    require(fits, f"adaptation.proxy: expected samples of shape {own.in_shape}, got {public.in_shape}")
    return public
