"""The seam between training and scoring."""

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from fedem_lightning.data.federation import Block
from fedem_lightning.personal import Personal

if TYPE_CHECKING:
    from fedem_lightning.algorithms.base import FederatedAlgorithm


class Adaptation(ABC):
    """Makes a client's models its own, from its training samples. Copies are scored and thrown away."""

    @abstractmethod
    def adapt(self, algorithm: "FederatedAlgorithm", block: Block) -> Personal:
        """The models that the block's clients are scored with; nothing of `algorithm` may change."""
