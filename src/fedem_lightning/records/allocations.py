"""A limit for what a file makes: its recipe may ask for tensors that no machine can hold."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from fedem_lightning.errors import require

_COPIES, _SPARE_ELEMENTS, _SPARE_OPERATIONS = 40, 10**8, 20_000
_COUNTED = ("arange", "eye", "randperm", "linspace")
"""Operations whose size is a number, not a list of numbers."""


class LimitedTensors(TorchDispatchMode):
    """A context in which tensors may be made as far as a file can need them.

    Args:
        held: the tensors of the file. What is made may have 40 times as many elements, and 10^8 more; and may take 40
            operations for each of them, and 20,000 more.

    Raises:
        UserError: an operation would pass the limit, before it allocates anything.

    """

    def __init__(self, held: Mapping[str, Any]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        elements = sum(t.numel() for t in held.values() if isinstance(t, Tensor))
        self.elements = _COPIES * elements + _SPARE_ELEMENTS
        self.operations = _COPIES * len(held) + _SPARE_OPERATIONS

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        self.operations -= 1
        if not func.is_view:
            self.elements -= _size(func, [*args, *(kwargs or {}).values()])  # in-place operations count too
        enough = self.elements >= 0 and self.operations >= 0
        require(enough, "the file asks for a model that is far larger than the tensors in it")
        return func(*args, **(kwargs or {}))


def _size(func: Any, given: Sequence[Any]) -> int:
    """At least the number of elements that an operation makes, unless it combines tensors."""
    numbers = [value for value in given if type(value) is int]
    lists = [value for value in given if isinstance(value, list | tuple) and all(type(i) is int for i in value)]
    tensors = [value.numel() for value in given if isinstance(value, Tensor)]
    made = max((abs(math.prod(sizes)) for sizes in lists if sizes), default=0)
    if func.overloadpacket.__name__ == "repeat":
        made *= max(tensors)
    if func.overloadpacket.__name__ in _COUNTED:
        made = max(map(abs, numbers), default=0)
    return max(made, *tensors, 0)
