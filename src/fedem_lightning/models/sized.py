"""Modules with tensors whose sizes a state brings: a client's samples, a density in a space of any dimension."""

from typing import Any

from torch import Tensor, nn


class SizedByState(nn.Module):
    """A module whose tensors `sized` take their shapes from the state that it loads."""

    sized: tuple[str, ...] = ()

    def _load_from_state_dict(self, state_dict: dict[str, Tensor], prefix: str, *args: Any) -> None:
        for name in self.sized:
            tensor = getattr(self, name)
            if prefix + name in state_dict:
                tensor.data = tensor.new_zeros(state_dict[prefix + name].shape)
        super()._load_from_state_dict(state_dict, prefix, *args)
