"""Several arrays by name, checked and joined."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedem_lightning.data.arrays import as_rows
from fedem_lightning.data.samples import MASK
from fedem_lightning.errors import require
from fedem_lightning.settings.expected import given


def as_fields(name: str, values: Any, names: Sequence[str] | None = None) -> dict[str, np.ndarray]:
    """Several arrays by name, of at least one axis and of equal lengths.

    Args:
        name: of all, for messages.
        values: a dictionary of arrays.
        names: those that it must have; None: any. Others are left out.

    Raises:
        UserError: it is no dictionary, lacks an array, or the arrays do not fit together.

    """
    wanted = ", ".join(names or ())
    require(
        isinstance(values, Mapping) and len(values) > 0, f"{name}: expected a dictionary of arrays, got {given(values)}"
    )
    missing = [one for one in names or () if one not in values]
    require(not missing, f"{name}: no {', '.join(missing)} in it; expected the arrays {wanted}")
    found = {str(key): as_rows(f"{name}: {key}", values[key]) for key in names or values}
    sizes = {key: len(array) for key, array in found.items()}
    told = ", ".join(f"{key} {size}" for key, size in sizes.items())
    require(len(set(sizes.values())) == 1, f"{name}: expected as many samples in every array, got {told}")
    return found


def joined_fields(parts: Sequence[tuple[str, Mapping[str, np.ndarray]]]) -> dict[str, np.ndarray]:
    """Several arrays by name of all samples, part after part; zeros pad sequences at their end to the longest.

    Args:
        parts: whose samples they are, for messages, and the arrays [n, ...] by name.

    Raises:
        UserError: a part has other arrays than the first, or of another shape where no mask says what is padding.

    """
    (where, first), found = parts[0], {}
    for other, x in parts:
        said = f"{other}: x of {', '.join(x)}, but {where}: of {', '.join(first)}; all need the same"
        require(isinstance(x, Mapping) and x.keys() == first.keys(), said)
    for name in first:
        arrays = [x[name] for _, x in parts]
        padded = MASK in first and all(x[name].shape == x[MASK].shape and x[name].ndim == 2 for _, x in parts)
        if padded:
            longest = max(array.shape[1] for array in arrays)
            arrays = [np.pad(array, ((0, 0), (0, longest - array.shape[1]))) for array in arrays]
        for (other, _), array in zip(parts, arrays, strict=True):
            shapes = [list(a.shape[1:]) for a in (array, arrays[0])]
            said = f"{other}: {name} of shape {shapes[0]}, but {where}: of shape {shapes[1]}; all need the same"
            require(shapes[0] == shapes[1] and array.dtype.kind == arrays[0].dtype.kind, said)
        found[name] = np.concatenate(arrays)
    return found
