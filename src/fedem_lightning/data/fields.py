"""Samples that are several arrays by name, as the tokens of a text and their mask are."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedem_lightning.data.arrays import as_rows
from fedem_lightning.data.samples import Arrays
from fedem_lightning.errors import require
from fedem_lightning.settings.expected import given

MASK = "attention_mask"
"""The array that says which positions of a sequence are real, 1, and which are padding, 0."""


class Fields:
    """Samples of several arrays. A batch is a dictionary, whose entries are arguments of the network's `forward`.

    Where one of the arrays is the mask of a sequence, a batch has only as many positions as its longest sequence: all
    arrays of the mask's shape lose the padding at their end. They keep it where the labels are such sequences, too.

    Args:
        x: arrays [n, ...] by name, each as in `Arrays`. Names "0", "1", ... are positional arguments.
        y: labels, as in `Arrays`.

    """

    def __init__(self, x: Mapping[str, Tensor], y: Tensor) -> None:
        self.parts, self.y = {name: Arrays(part, y) for name, part in x.items()}, y
        self.in_shape = {name: part.in_shape for name, part in self.parts.items()}
        self.length: Tensor | None = None  # of each sequence up to its last real position, int32 [n]
        mask = x.get(MASK)
        if mask is not None and mask.ndim == 2 and mask.shape[1] and mask.shape != y.shape:
            place = torch.arange(1, mask.shape[1] + 1, dtype=torch.int32, device=mask.device)
            self.length = ((mask != 0) * place).amax(dim=1)

    @property
    def x(self) -> dict[str, Tensor]:
        """The arrays as they are stored."""
        return {name: part.x for name, part in self.parts.items()}

    @property
    def device(self) -> torch.device:
        """The device of the samples."""
        return self.y.device

    def features(self, index: Tensor, dtype: torch.dtype) -> dict[str, Tensor]:
        """Each array's entries at `index`: name -> [*S, ...]."""
        rows = {name: part.features(index, dtype) for name, part in self.parts.items()}
        if self.length is None or not index.numel():
            return rows
        longest, shape = max(1, int(self.length[index].max())), self.in_shape[MASK]
        return {name: part[..., :longest] if self.in_shape[name] == shape else part for name, part in rows.items()}

    def labels(self, index: Tensor) -> Tensor:
        """Labels [*S], or [*S, k]."""
        return next(iter(self.parts.values())).labels(index)

    def to(self, device: torch.device | str) -> "Fields":
        """The same samples on another device."""
        return Fields({name: part.to(device) for name, part in self.x.items()}, self.y.to(device))

    def fingerprint(self) -> list[Tensor]:
        """The labels, the names and the arrays, which a digest must include."""
        names = sorted(self.x)
        return [self.y, torch.tensor(list("\n".join(names).encode()), dtype=torch.uint8), *(self.x[n] for n in names)]


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
