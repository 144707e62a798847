"""A device that is not the CPU, for tests without one: it computes on the CPU, and refuses what a GPU refuses.

Its tensors say that they are on `DEVICE` and hold the numbers on the CPU. An operation on a tensor of the card and one
of the CPU raises, as on a GPU: except for single numbers, copies, and indices of the CPU into a tensor of the card.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

DEVICE = torch.device("meta")
_COPIES = {torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default}
_INDEXED = {torch.ops.aten.index.Tensor, torch.ops.aten.index_put_.default, torch.ops.aten.index_put.default}


class OnCard(Tensor):
    """A tensor of the card; `held` has its numbers."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> "OnCard":
        """Wraps numbers of the CPU."""
        made: OnCard = Tensor._make_wrapper_subclass(
            cls, held.shape, strides=held.stride(), dtype=held.dtype, device=DEVICE
        )
        made.held = held
        return made

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Computes on the CPU."""
        return _compute(func, args, kwargs or {})


class PretendedCard(TorchDispatchMode):
    """Within it, tensors that are made on `DEVICE` or moved to it are on the card."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Computes on the CPU."""
        return _compute(func, args, kwargs or {})


def _compute(func: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
    ours = [t for t in tensors if isinstance(t, OnCard)]
    strict = tensors if func not in _INDEXED or not isinstance(args[0], OnCard) else [args[0]]
    mixed = ours and any(not isinstance(t, OnCard) and t.ndim for t in strict)
    if mixed and func not in _COPIES:
        raise RuntimeError(f"{func}: expected all tensors on the same device, found the CPU and the card")
    target = kwargs.get("device")
    to_card = bool(ours) if target is None else torch.device(target) == DEVICE
    if func is torch.ops.aten.copy_.default:
        to_card = isinstance(args[0], OnCard)
    on_cpu = {**kwargs, "device": torch.device("cpu")} if target is not None else kwargs
    args, on_cpu = tree_map(lambda t: t.held if isinstance(t, OnCard) else t, (tuple(args), on_cpu))
    out = func(*args, **on_cpu)
    if func.__name__.split(".")[0].endswith("_") and ours and out is args[0]:
        return next(t for t in ours if t.held is out) if to_card else out
    return tree_map(lambda t: OnCard(t) if isinstance(t, Tensor) else t, out) if to_card else out
