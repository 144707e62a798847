"""Storage of a federation's samples: compact in memory, or mapped from a file; a batch converts them to floats."""

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from fedem_lightning.errors import require

PIECE = 2**24
"""Bytes of an array that are looked at or hashed at a time, so that it needs no second one of its size."""


Inputs = Any
"""Samples as a network takes them: a Tensor, or a dict[str, Tensor], whose entries are arguments of its `forward`."""

InShape = Any  # tuple[int, ...] | Mapping[str, tuple[int, ...]]
"""The shape of one sample, or those of its tensors by name."""


def n_values(in_shape: InShape) -> int:
    """How many numbers a sample has."""
    shapes = in_shape.values() if isinstance(in_shape, Mapping) else [in_shape]
    return sum(math.prod(shape) for shape in shapes)


def n_rows(x: Inputs) -> int:
    """How many samples there are, in arrays or tensors [n, ...]."""
    return len(next(iter(x.values())) if isinstance(x, Mapping) else x)


class Samples(Protocol):
    """Samples by position. `index` is int64 of any shape S; a sample's axes follow it."""

    in_shape: InShape  # shape of one sample as the backbone's input

    @property
    def device(self) -> torch.device:
        """The device of the samples."""

    def features(self, index: Tensor, dtype: torch.dtype) -> Inputs:
        """x at `index`: [*S, *in_shape], floats of `dtype`, or int64 where x are whole numbers."""

    def labels(self, index: Tensor) -> Tensor:
        """y at `index`: [*S] or [*S, targets]."""

    def to(self, device: torch.device | str) -> "Samples":
        """The same samples on another device."""

    def fingerprint(self) -> list[Tensor]:
        """The tensors that a digest must include: first the labels, then what determines x beside them."""


class Arrays:
    """Features and labels as two arrays.

    Args:
        x: [n, ...]; uint8 means pixels: [n, h, w] or [n, h, w, channels], which only a batch converts to floats
            [channels, h, w] in [0, 1]. Whole numbers of any other type stay whole: a batch has int64.
        y: [n], int64; or real targets [n] or [n, k].
        mean, std: of each channel in [0, 1]; images are shifted and scaled by them.
        invert: whether black and white are exchanged.

    """

    def __init__(
        self,
        x: Tensor,
        y: Tensor,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        invert: bool = False,
    ) -> None:
        self.x, self.y, self.mean, self.std, self.invert = x, y, mean, std, invert
        channels = x.shape[3] if x.ndim == 4 else 1
        for name, values in (("mean", mean), ("std", std)):
            fits = (mean is None) == (std is None) and (values is None or len(values) == channels)
            require(fits, f"{name}: expected {channels} numbers, one for each channel, or neither mean nor std")
        require(std is None or min(std) > 0, f"std: expected numbers above 0, got {std}")
        self.in_shape = tuple(self.features(torch.zeros(1, dtype=torch.int64), torch.float32).shape[1:])

    @property
    def device(self) -> torch.device:
        """The device of the samples."""
        return self.x.device

    def features(self, index: Tensor, dtype: torch.dtype) -> Tensor:
        """Features [*S, ...]; a view if `index` is a run of consecutive positions and needs no conversion."""
        rows = _rows(self.x, index)
        if rows.dtype != torch.uint8:
            return rows.to(dtype) if rows.dtype.is_floating_point else rows.long()
        image = (255 - rows if self.invert else rows).to(dtype).div_(255)  # in place: copies cost more
        if self.x.ndim == 3:
            image = image.unsqueeze(-3)  # [..., h, w] -> [..., 1, h, w]
        elif self.x.ndim == 4:
            image = image.movedim(-1, -3)  # [..., h, w, c] -> [..., c, h, w]
        if self.mean is not None and self.std is not None:
            mean, std = (image.new_tensor(v).view(-1, 1, 1) for v in (self.mean, self.std))
            image = image.sub_(mean).div_(std)
        return image

    def labels(self, index: Tensor) -> Tensor:
        """Labels [*S], or [*S, k]."""
        return _rows(self.y, index)

    def to(self, device: torch.device | str) -> "Arrays":
        """The same samples on another device."""
        return Arrays(self.x.to(device), self.y.to(device), self.mean, self.std, self.invert)

    def fingerprint(self) -> list[Tensor]:
        """The labels and x, which a digest must include."""
        return [self.y, self.x]


class Joined:
    """Two sets of samples of one kind; the second's positions follow those of the first."""

    def __init__(self, first: Arrays, second: Arrays) -> None:
        self.first, self.second, self.in_shape = first, second, first.in_shape

    @property
    def device(self) -> torch.device:
        """The device of the samples."""
        return self.first.device

    def features(self, index: Tensor, dtype: torch.dtype) -> Tensor:
        """Features [*S, ...]."""
        return self._from_both(index, lambda part, rows: part.features(rows, dtype))

    def labels(self, index: Tensor) -> Tensor:
        """Labels [*S], or [*S, k]."""
        return self._from_both(index, lambda part, rows: part.labels(rows))

    def _from_both(self, index: Tensor, read: Callable[[Arrays, Tensor], Tensor]) -> Tensor:
        n_first = len(self.first.y)
        in_second = index >= n_first
        a, b = read(self.first, index[~in_second]), read(self.second, index[in_second] - n_first)
        rows = a.new_empty(*index.shape, *a.shape[1:])
        rows[~in_second], rows[in_second] = a, b.to(a.dtype)
        return rows

    def to(self, device: torch.device | str) -> "Joined":
        """The same samples on another device."""
        return Joined(self.first.to(device), self.second.to(device))

    def fingerprint(self) -> list[Tensor]:
        """The labels and x, which a digest must include."""
        return [torch.cat([self.first.y, self.second.y]), self.first.x, self.second.x]


class Windows:
    """Windows of a text, stored once: x is the `length` characters from a position on, y those one position later.

    Args:
        codes: the whole text, uint8 [characters]; each is a class 0..Y-1.
        length: L, the number of characters of a window.

    """

    def __init__(self, codes: Tensor, length: int) -> None:
        self.codes, self.length = codes, length
        self.in_shape: tuple[int, ...] = (length,)

    @property
    def device(self) -> torch.device:
        """The device of the samples."""
        return self.codes.device

    def features(self, index: Tensor, dtype: torch.dtype) -> Tensor:
        """Codes, int64 [*S, L]; `dtype` is ignored."""
        return self._window(index)

    def labels(self, index: Tensor) -> Tensor:
        """The next character at every position, int64 [*S, L]."""
        return self._window(index + 1)

    def _window(self, start: Tensor) -> Tensor:
        return self.codes[start.unsqueeze(-1) + torch.arange(self.length, device=start.device)].long()

    def to(self, device: torch.device | str) -> "Windows":
        """The same text on another device."""
        return Windows(self.codes.to(device), self.length)

    def fingerprint(self) -> list[Tensor]:
        """The text and the length of a window, which a digest must include."""
        return [self.codes, torch.tensor(self.length)]


class Domains(NamedTuple):
    """Known domains of samples; a client may have samples of several domains."""

    names: tuple[str, ...]  # names of the p domains
    of_sample: Tensor  # int64 [positions]: the domain of each sample by position; -1 for samples of no client

    def to(self, device: torch.device | str) -> "Domains":
        """The same domains on another device."""
        return Domains(self.names, self.of_sample.to(device))


def as_tensor(array: np.ndarray) -> Tensor:
    """An array as a tensor of the same memory, or of a copy: torch takes no read-only ones and no negative strides."""
    array = np.require(array, requirements="W")
    return torch.from_numpy(array.copy() if min(array.strides, default=0) < 0 else array)


def hash_of(tensors: Iterable[Tensor], shapes: bool = False) -> "hashlib._Hash":
    """The SHA-256 of the bytes of tensors, and, if wanted, of their shapes and dtypes."""
    sha = hashlib.sha256()
    for tensor in tensors:
        if shapes:
            sha.update(f"{tensor.dtype} {list(tensor.shape)}".encode())
        n_rows = max(1, PIECE // max(1, tensor[:1].numel() * tensor.element_size())) if tensor.ndim else 1
        for rows in tensor.split(n_rows) if tensor.ndim else (tensor,):
            sha.update(np.ascontiguousarray(rows.cpu().numpy()).data)
    return sha


def _rows(tensor: Tensor, index: Tensor) -> Tensor:
    """tensor[index], on the CPU as a view (no copy) where `index` is a run of consecutive positions."""
    flat = index.flatten()
    if len(flat) == 0 or index.ndim > 1 or index.device.type != "cpu":  # the CPU would wait for a GPU's positions
        return tensor.index_select(0, flat).unflatten(0, index.shape)  # faster than tensor[index] on a CPU
    first, last = int(flat[0]), int(flat[-1])
    if last - first + 1 == len(flat) and bool((flat.diff() == 1).all()):
        return tensor[first : last + 1]
    return tensor.index_select(0, flat)
