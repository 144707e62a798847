"""Pickles of dictionaries, lists, numbers and arrays, read without running anything that they name.

A pickle names the functions that make its objects. Here stand-ins take the place of NumPy's, which only note what they
are given; every other name is refused before anything is called. An array is made afterwards, if its content has as
many bytes as its shape says.
"""

import io
import math
import pickle
import pickletools
from collections.abc import Callable
from typing import Any

import numpy as np

from fedem_lightning.errors import require

NUMBERS = frozenset(f"{kind}{size}" for kind in "iu" for size in "1248") | {"b1", "f2", "f4", "f8"}


def plain(raw: bytes, name: str, encoding: str = "ASCII") -> Any:
    """What a pickle holds: dictionaries, lists, tuples, texts and numbers; its arrays are `PickledArray`s.

    Args:
        raw: the pickle.
        name: of the file, for messages.
        encoding: of Python 2's texts, see `pickle.load`.

    Raises:
        UserError: it numbers more objects than it has bytes.
        Exception: it names something else, or is broken; of many classes.

    """
    for code, argument, _ in pickletools.genops(raw):
        if code.name in ("PUT", "BINPUT", "LONG_BINPUT"):  # Python makes room for as many objects
            require(int(str(argument)) < len(raw), f"{name}: object number {argument} in {len(raw)} bytes")
    return _Unpickler(io.BytesIO(raw), encoding=encoding).load()


def numbers(said: str, value: Any) -> np.ndarray:
    """The array of a pickle, or its flat list of numbers as one; anything else is a UserError that begins with said."""
    if isinstance(value, PickledArray):
        return value.array(said)
    flat = isinstance(value, list | tuple) and all(type(one) in (bool, int, float) for one in value)
    require(flat, f"{said}: expected an array or a flat list of numbers, got {_kind(value)}")
    return np.array(value, dtype=np.int64 if len(value) == 0 else None)


def _kind(value: Any) -> str:
    return "a list of others" if isinstance(value, list | tuple) else f"a {type(value).__name__}"


class PickledArray:
    """What a pickle says of an array. It is no array yet: NumPy would make room for whatever the pickle asks for."""

    __slots__ = ("content", "dtype", "fortran", "shape")

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, self.shape, self.dtype, self.fortran, self.content = state

    @property
    def code(self) -> str:
        """The type of its numbers, such as f4; O for objects."""
        return self.dtype.code if isinstance(self.dtype, _Dtype) else type(self.dtype).__name__

    def array(self, said: str) -> np.ndarray:
        """The array; UserError unless it is of numbers, and has as many bytes as its shape says."""
        require(self.code in NUMBERS, f"{said}: expected an array of numbers, got type {self.code[:20]!r}")
        shape, held = tuple(self.shape), self.content
        sound = isinstance(held, bytes | bytearray) and all(type(size) is int and size >= 0 for size in shape)
        n_bytes = math.prod(shape) * int(self.code[1:]) if sound else -1
        require(sound and n_bytes == len(held), f"{said}: an array that is not as long as its shape says")
        flat = np.frombuffer(held, dtype=self.dtype.order + self.code)
        return flat.reshape(shape, order="F" if self.fortran else "C")

    def one(self, said: str) -> Any:
        """The object that an array of objects without axes holds, as NumPy saves one; else a UserError."""
        held = isinstance(self.content, list) and len(self.content) == 1 and tuple(self.shape) == ()
        require(held, f"{said}: expected one Python object, got an array")
        return self.content[0]


class _Dtype:
    """The type of an array."""

    __slots__ = ("code", "order")

    def __init__(self, code: Any, *_: Any) -> None:
        self.code = code.decode("latin1") if isinstance(code, bytes) else str(code)
        self.order = "="

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        """Of a type without fields, only the order of bytes matters."""
        order = state[1].decode("latin1") if isinstance(state[1], bytes) else state[1]
        self.order = {"<": "<", ">": ">", "|": "|"}[order]


class _Stand:
    """Stands for a function that a pickle may name. A fresh one each time: a pickle can change what it has made."""

    __slots__ = ("_make",)

    def __init__(self, make: Callable[..., Any]) -> None:
        self._make = make

    def __call__(self, *given: Any) -> Any:
        return self._make(*given)

    def __setstate__(self, state: Any) -> None:
        raise pickle.UnpicklingError("the file changes a function")


def _array_of_buffer(content: Any, dtype: Any, shape: Any, order: Any) -> PickledArray:
    made = PickledArray()
    made.__setstate__((1, shape, dtype, order == "F", content))
    return made


def _scalar(dtype: Any, content: Any = b"") -> Any:
    return _array_of_buffer(content, dtype, (), "C").array("a number").item()


def _latin(text: str, coding: Any) -> bytes:
    """The bytes of an array, which Python 3 writes as text for Python 2; other codings could make much of little."""
    if coding not in ("latin1", b"latin1"):
        raise pickle.UnpicklingError(f"the file asks for the coding {coding!r}, which no array has")
    return text.encode("latin1")


class _Unpickler(pickle.Unpickler):
    """Makes lists, numbers and `PickledArray`s; no code that the file names runs."""

    KNOWN: dict[tuple[str, str], Callable[..., Any]] = {
        ("numpy", "ndarray"): lambda *_: PickledArray(),
        ("numpy", "dtype"): _Dtype,
        ("_codecs", "encode"): _latin,
        ("__builtin__", "bytes"): lambda: b"",  # of an empty array, as older protocols have it
    }
    for _core in ("numpy.core", "numpy._core"):
        KNOWN[f"{_core}.multiarray", "_reconstruct"] = lambda *_: PickledArray()
        KNOWN[f"{_core}.multiarray", "scalar"] = _scalar
        KNOWN[f"{_core}.numeric", "_frombuffer"] = _array_of_buffer

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self.KNOWN:
            raise pickle.UnpicklingError(f"the file asks for {module}.{name}, which is no part of an array")
        return _Stand(self.KNOWN[module, name])
