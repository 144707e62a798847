"""The three kinds of samples: one array, several arrays by name, and windows of a text.

They lie in memory as they were read, images as bytes; a batch converts them to floats.
"""

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from fedem_lightning.settings.errors import require

MASK = "attention_mask"
"""The array that says which positions of a sequence are real, 1, and which are padding, 0."""
NO_LABELS = (
    "y: expected the labels of the samples, got None; algorithm=fedem_density, fedgmm or feroma needs none (without an "
    "adaptation)"
)
Inputs = Any
"""Samples as a network takes them: a Tensor, or a dict[str, Tensor], whose entries are arguments of its `forward`."""
InShape = Any
"""The shape of one sample, tuple[int, ...], or those of its tensors by name."""


def n_values(in_shape: InShape) -> int:
    """How many numbers a sample has."""
    shapes = in_shape.values() if isinstance(in_shape, Mapping) else [in_shape]
    return sum(math.prod(shape) for shape in shapes)


def n_rows(x: Inputs) -> int:
    """How many samples there are, in arrays or tensors [n, ...]."""
    return len(next(iter(x.values())) if isinstance(x, Mapping) else x)


class Samples(ABC):
    """Samples by position. `index` is int64 of any shape S; a sample's axes follow it."""

    in_shape: InShape  # shape of one sample as the backbone's input
    y: Tensor  # labels as they are stored; [0] where nobody knows them

    @property
    def device(self) -> torch.device:
        """The device of the samples."""
        return self.y.device

    @abstractmethod
    def features(self, index: Tensor, dtype: torch.dtype) -> Inputs:
        """x at `index`: [*S, *in_shape], floats of `dtype`, or int64 where x are whole numbers."""

    @property
    def labelled(self) -> bool:
        """Whether there are labels."""
        return len(self.y) > 0

    def labels(self, index: Tensor) -> Tensor:
        """y at `index`: [*S] or [*S, targets]; UserError: there are no labels."""
        require(self.labelled or not index.numel(), NO_LABELS)
        return _rows(self.y, index)

    def relabelled(self, index: Tensor, change: Callable[[Tensor], Tensor]) -> Self:
        """The same with change(y) in place of the labels y at `index`, int64 [n]."""
        y = self.y.clone()
        y[index] = change(y[index])
        return self._with(lambda part: y if part is self.y else part)

    def to(self, device: torch.device | str) -> Self:
        """The same samples on another device."""
        return self._with(lambda part: part.to(device))

    @abstractmethod
    def _with(self, change: Callable[[Tensor], Tensor]) -> Self:
        """The same samples made of other tensors."""

    @abstractmethod
    def fingerprint(self) -> list[Tensor]:
        """The tensors that a digest must include: first the labels, then what determines x beside them."""


class Arrays(Samples):
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
        if mean is not None or std is not None:
            channels = x.shape[3] if x.ndim == 4 else 1
            for name, values in (("mean", mean), ("std", std)):
                message = f"{name}: expected {channels} numbers, one for each channel, or neither mean nor std"
                require(values is not None and len(values) == channels, message)
            require(min(std or ()) > 0, f"std: expected numbers above 0, got {std}")
        self.in_shape = tuple(self.features(torch.zeros(1, dtype=torch.int64), torch.float32).shape[1:])

    def features(self, index: Tensor, dtype: torch.dtype) -> Tensor:
        """Features [*S, ...]; a view if `index` is a run of consecutive positions and needs no conversion."""
        rows = _rows(self.x, index)
        if rows.dtype != torch.uint8:
            return rows.to(dtype) if rows.dtype.is_floating_point else rows.long()
        image = (255 - rows if self.invert else rows).to(dtype).div_(255)  # in place: copies cost more
        if self.x.ndim in (3, 4):  # [..., h, w] -> [..., 1, h, w], [..., h, w, c] -> [..., c, h, w]
            image = image.unsqueeze(-3) if self.x.ndim == 3 else image.movedim(-1, -3)
        if self.mean is not None and self.std is not None:
            mean, std = (image.new_tensor(v).view(-1, 1, 1) for v in (self.mean, self.std))
            image = image.sub_(mean).div_(std)
        return image

    def _with(self, change: Callable[[Tensor], Tensor]) -> "Arrays":
        return Arrays(change(self.x), change(self.y), self.mean, self.std, self.invert)

    def fingerprint(self) -> list[Tensor]:  # noqa: D102
        return [self.y, self.x]


class Fields(Samples):
    """Samples of several arrays x [n, ...] by name, each as in `Arrays`; names "0", "1", ... are positional arguments.

    A batch is a dictionary, whose entries are arguments of the network's `forward`. Where one of the arrays is the mask
    of a sequence, a batch has only as many positions as its longest sequence: all arrays of the mask's shape lose the
    padding at their end. They keep it where the labels are such sequences, too.
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

    def features(self, index: Tensor, dtype: torch.dtype) -> dict[str, Tensor]:  # noqa: D102
        rows = {name: part.features(index, dtype) for name, part in self.parts.items()}
        if self.length is None or not index.numel():
            return rows
        longest, shape = max(1, int(self.length[index].max())), self.in_shape[MASK]
        return {name: part[..., :longest] if self.in_shape[name] == shape else part for name, part in rows.items()}

    def _with(self, change: Callable[[Tensor], Tensor]) -> "Fields":
        return Fields({name: change(part) for name, part in self.x.items()}, change(self.y))

    def fingerprint(self) -> list[Tensor]:  # noqa: D102
        names = sorted(self.x)
        return [self.y, torch.tensor(list("\n".join(names).encode()), dtype=torch.uint8), *(self.x[n] for n in names)]


class Windows(Samples):
    """Windows of a text, stored once: x is the `length` characters from a position on, y those one position later.

    Args:
        codes: the whole text, uint8 [characters]; each is a class 0..Y-1.
        length: L, the number of characters of a window.
        y: the text from which labels are read; None: `codes`.

    """

    def __init__(self, codes: Tensor, length: int, y: Tensor | None = None) -> None:
        self.codes, self.length, self.y = codes, length, codes if y is None else y
        self.in_shape: tuple[int, ...] = (length,)

    def features(self, index: Tensor, dtype: torch.dtype) -> Tensor:
        """Codes, int64 [*S, L]; `dtype` is ignored."""
        return self.codes[self._window(index)].long()

    def labels(self, index: Tensor) -> Tensor:
        """The next character at every position, int64 [*S, L]."""
        return self.y[self._window(index + 1)].long()

    def relabelled(self, index: Tensor, change: Callable[[Tensor], Tensor]) -> "Windows":
        """The same text with other labels in the windows at `index`."""
        where, y = self._window(index + 1).unique(), self.y.clone()
        y[where] = change(y[where].long()).to(y.dtype)
        return Windows(self.codes, self.length, y)

    def _window(self, start: Tensor) -> Tensor:
        return start.unsqueeze(-1) + torch.arange(self.length, device=start.device)

    def _with(self, change: Callable[[Tensor], Tensor]) -> "Windows":
        return Windows(change(self.codes), self.length, change(self.y))

    def fingerprint(self) -> list[Tensor]:  # noqa: D102
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
        sha.update(np.ascontiguousarray(tensor.cpu().numpy()).data)
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
