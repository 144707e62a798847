"""What a client does with the models it got before it is scored; it follows any algorithm and never feeds back."""

from fedem_lightning.adaptation.base import Adaptation
from fedem_lightning.adaptation.finetune import Finetune

__all__ = ["Adaptation", "Finetune"]
