"""Networks without convolutions: linear, a perceptron, a distribution over labels, and an LSTM of characters."""

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedem_lightning.models.backbones.layers import Redrawable, as_floats
from fedem_lightning.settings.errors import require
from fedem_lightning.settings.ranges import PositiveInt, Shape


class Linear(Redrawable):
    """One linear layer on the flattened features; `in_shape` is the shape of a sample."""

    def __init__(self, in_shape: Shape, n_outputs: PositiveInt, bias: bool = True) -> None:
        super().__init__()
        self.linear = nn.Linear(math.prod(in_shape), n_outputs, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """Outputs: [B, *in_shape] -> [B, n_outputs]."""
        return self.linear(as_floats(x.flatten(1), self))


class MLP(Redrawable):
    """A perceptron on the flattened features (`in_shape`: of a sample), with ReLU and hidden layers of these widths."""

    def __init__(self, in_shape: Shape, n_outputs: PositiveInt, hidden: Sequence[PositiveInt] = (64,)) -> None:
        super().__init__()
        widths = [math.prod(in_shape), *hidden]
        layers: list[nn.Module] = []
        for n_in, n_out in pairwise(widths):
            layers += [nn.Linear(n_in, n_out), nn.ReLU()]
        self.layers = nn.Sequential(*layers, nn.Linear(widths[-1], n_outputs))

    def forward(self, x: Tensor) -> Tensor:
        """Outputs: [B, *in_shape] -> [B, n_outputs]."""
        return self.layers(as_floats(x.flatten(1), self))


class Categorical(Redrawable):
    """The logits of y, independent of x: a linear layer with the constant input 1, so that engines can stack it."""

    def __init__(self, in_shape: Shape = (1,), n_outputs: PositiveInt = 50) -> None:
        super().__init__()
        shape = tuple(in_shape)
        require(shape == (1,), f"in_shape: Categorical is for samples without features, (1,), got {shape}")
        self.logits = nn.Linear(1, n_outputs, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Logits: [B, 1] -> [B, n_outputs]."""
        return self.logits(torch.ones_like(as_floats(x, self)))


class LSTM(nn.LSTM):
    """`nn.LSTM` as matrix products, for one direction, without projection or dropout between layers.

    The fused kernels of `nn.LSTM` have no rule for `torch.func.vmap`, which would run them learner by learner. On a CPU
    this class is also faster under `torch.func.grad`. Parameters have the names and values of `nn.LSTM`.
    """

    def forward(  # type: ignore[override]
        self, input: Tensor, hx: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """As `nn.LSTM`: [B, L, in] (batch_first) or [L, B, in] or [L, in] -> outputs, (h, c) [layers, (B,) hidden]."""
        if not isinstance(input, Tensor):  # a PackedSequence
            return super().forward(input, hx)
        time_axis = 1 if self.batch_first and input.ndim == 3 else 0
        x = input.movedim(time_axis, 0)  # [L, (B,) in]
        start = x.new_zeros(self.num_layers, *x.shape[1:-1], self.hidden_size)
        h0, c0 = (start, start) if hx is None else hx
        last_h, last_c = [], []
        for k in range(self.num_layers):
            weights = [getattr(self, f"{name}_l{k}") for name in ("weight_ih", "weight_hh")]
            bias = getattr(self, f"bias_ih_l{k}") + getattr(self, f"bias_hh_l{k}") if self.bias else None
            gates = F.linear(x, weights[0], bias)  # of all positions, [L, (B,) 4 hidden]
            h, c, hidden = h0[k], c0[k], []
            for gate in gates.unbind(0):
                i, f, g, o = (gate + h @ weights[1].T).chunk(4, dim=-1)
                c = f.sigmoid() * c + i.sigmoid() * g.tanh()
                h = o.sigmoid() * c.tanh()
                hidden.append(h)
            x = torch.stack(hidden)  # [L, (B,) hidden]
            last_h.append(h)
            last_c.append(c)
        return x.movedim(0, time_axis), (torch.stack(last_h), torch.stack(last_c))


class CharLSTM(Redrawable):
    """The papers' model of Shakespeare: 819,920 parameters for 80 characters, which are both embedded and predicted.

    `in_shape` is (L,), the length of a window; any length is accepted.
    """

    def __init__(
        self,
        n_outputs: PositiveInt,
        in_shape: Shape | None = None,
        embedding: PositiveInt = 8,
        hidden: PositiveInt = 256,
        n_layers: PositiveInt = 2,
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(n_outputs, embedding)
        self.lstm = LSTM(embedding, hidden, n_layers, batch_first=True)
        self.head = nn.Linear(hidden, n_outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Codes int64 [B, L] -> logits of the next character at every position [B, L, n_outputs]."""
        return self.head(self.lstm(self.embedding(x))[0])
