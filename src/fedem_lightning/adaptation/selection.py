"""Selection of each client's interpolation weight lambda: the one whose model has the lowest loss."""

from collections.abc import Sequence
from typing import Annotated, Literal

import torch
from annotated_types import MinLen
from torch import Tensor
from torch.utils._pytree import tree_map

from fedem_lightning.aggregation import Models
from fedem_lightning.data.federation import Block
from fedem_lightning.em import mixture_losses
from fedem_lightning.models.personal_models import PersonalModels
from fedem_lightning.settings.ranges import Share

Grid = Annotated[Sequence[Share], MinLen(1)]
SelectionSamples = Literal["val", "train"]

GRID = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)


def sample_losses(personal: PersonalModels, block: Block) -> Tensor:
    """-log of each label's likelihood under its client's mixture of models, in nats: [n]."""
    losses = personal.losses(block)  # [n, M]
    return mixture_losses(personal.mixture.to(losses), losses, block.owner)


def selection_losses(personal: PersonalModels, block: Block, selection: str) -> Tensor:
    """The mean loss by which lambda is selected, [C]: the loss of predictions, as in scoring.

    It is computed on validation samples; for a client without any, or if `selection` is "train", on training samples.
    """
    chosen = block
    if selection == "val":
        chosen = block.federation.block(block.clients, "val")
        if not (chosen.counts() > 0).all():
            own = selection_losses(personal, block, "train")
            return torch.where(chosen.counts() > 0, _means(personal, chosen), own)
    return _means(personal, chosen)


def _means(personal: PersonalModels, block: Block) -> Tensor:
    sums = personal.mixture.new_zeros(len(block.clients))
    for piece in block.pieces() if len(block.index) else ():
        prediction = personal.predict(piece)
        losses = block.federation.task.scores(prediction, piece.y())["loss"]
        sums.index_add_(0, piece.owner, losses.to(sums))
    return sums / block.counts().clamp(min=1)


class Best:
    """Each client's best candidate so far; of equal candidates the first."""

    def __init__(self) -> None:
        self.losses: Tensor | None = None  # [C]
        self.value: dict[str, Models | Tensor] = {}

    def offer(self, losses: Tensor, **candidate: Models | Tensor) -> None:
        """Stores the candidate, tensors [C, ...], for the clients whose loss [C] it lowers."""
        if self.losses is None:
            self.losses, self.value = losses, candidate
            return
        lower = (losses < self.losses) | (self.losses.isnan() & ~losses.isnan())  # a diverged one is always replaced
        self.losses = torch.where(lower, losses, self.losses)

        def keep(new: Tensor, old: Tensor) -> Tensor:
            return torch.where(lower.view(-1, *[1] * (new.ndim - 1)), new, old)

        self.value = tree_map(keep, candidate, self.value)
