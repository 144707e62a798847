"""A device that is not the CPU, for tests without one: it computes on the CPU, refuses what a GPU refuses, and counts.

Its tensors say that they are on `DEVICE` and hold the numbers on the CPU. An operation on a tensor of the card and one
of the CPU raises, as on a GPU: except for single numbers, copies, and indices of the CPU into a tensor of the card.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any
from unittest.mock import patch

import pytorch_lightning as pl
import torch
from pytorch_lightning.accelerators import CPUAccelerator
from pytorch_lightning.strategies import SingleDeviceStrategy
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from helpers.federations import make_trainer

aten = torch.ops.aten
DEVICE = torch.device("meta")
_COPIES = {aten._to_copy.default, aten.copy_.default}
_INDEXED = {aten.index.Tensor, aten.index_put_.default, aten.index_put.default}
_WAITING = {"_local_scalar_dense", "nonzero", "masked_select", "_unique2", "unique_consecutive", "unique_dim", "equal"}
"""Operations whose result's value or size the CPU must know: it waits until the card has computed everything."""


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
    """Within it, tensors that are made on `DEVICE` or moved to it are on the card; it counts what the card does.

    Attributes:
        kernels: operations on the card that are not views.
        waits: how often the CPU waits for the card: copies to the CPU, single numbers, results whose size depends on
            values.

    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.kernels = self.waits = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Computes on the CPU."""
        kwargs = kwargs or {}
        tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, OnCard)]
        to = kwargs.get("device")
        if tensors and not func.is_view:
            self.kernels += 1
            masks = func in _INDEXED and any(t.dtype == torch.bool for t in tensors[1:])
            leaves = func is aten._to_copy.default and to is not None and torch.device(to) != DEVICE
            leaves |= func is aten.copy_.default and not isinstance(args[0], OnCard)
            self.waits += leaves or masks or func.__name__.split(".")[0] in _WAITING
        return _compute(func, args, kwargs)


class _Made(TorchFunctionMode):
    """Calls that torch does not dispatch: `torch.tensor(..., device=DEVICE)` and `tolist`."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        to = kwargs.get("device")
        if func in (torch.tensor, torch.as_tensor) and to is not None and torch.device(to) == DEVICE:
            if isinstance(args[0], OnCard):
                return args[0]
            with torch._C.DisableTorchFunction():
                return func(*args, **{**kwargs, "device": "cpu"}).to(DEVICE)
        if func is Tensor.tolist and isinstance(args[0], OnCard):
            return args[0].cpu().tolist()
        return func(*args, **kwargs)


class _Accelerator(CPUAccelerator):
    def setup_device(self, device: torch.device) -> None:
        """Lightning's checks that the device is the CPU."""


def card_trainer(rounds: int, **options: Any) -> pl.Trainer:
    """A quiet Trainer that puts the model and the data on the card; it runs within `card`."""
    strategy = SingleDeviceStrategy(device=DEVICE, accelerator=_Accelerator())
    # tensors that inference mode makes cannot be wrapped
    return make_trainer(rounds, accelerator="auto", strategy=strategy, inference_mode=False, **options)


@contextmanager
def card() -> Iterator[PretendedCard]:
    """The card: a Trainer of `card_trainer` may run within."""
    autocast, swaps = torch.autocast, torch.__future__.get_swap_module_params_on_conversion()
    save = torch.save

    def known_autocast(device: str, **how: Any) -> Any:
        return nullcontext() if device == DEVICE.type else autocast(device, **how)

    def saved(content: Any, *where: Any, **how: Any) -> None:  # a file has numbers, on whatever device they were
        save(tree_map(lambda t: t.held if isinstance(t, OnCard) else t, content), *where, **how)

    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        with patch("torch.autocast", known_autocast), patch("torch.save", saved), PretendedCard() as counted, _Made():
            yield counted
    finally:
        torch.__future__.set_swap_module_params_on_conversion(swaps)


def _compute(func: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
    ours = [t for t in tensors if isinstance(t, OnCard)]
    strict = tensors if func not in _INDEXED or not isinstance(args[0], OnCard) else [args[0]]
    mixed = ours and any(not isinstance(t, OnCard) and t.ndim for t in strict)
    if mixed and func not in _COPIES:
        raise RuntimeError(f"{func}: expected all tensors on the same device, found the CPU and the card")
    target = kwargs.get("device")
    to_card = bool(ours) if target is None else torch.device(target) == DEVICE
    if func is aten.copy_.default:
        to_card = isinstance(args[0], OnCard)
    on_cpu = {**kwargs, "device": torch.device("cpu")} if target is not None else kwargs
    args, on_cpu = tree_map(lambda t: t.held if isinstance(t, OnCard) else t, (tuple(args), on_cpu))
    out = func(*args, **on_cpu)
    if func.__name__.split(".")[0].endswith("_") and ours and out is args[0]:
        return next(t for t in ours if t.held is out) if to_card else out
    return tree_map(lambda t: OnCard(t) if isinstance(t, Tensor) else t, out) if to_card else out
