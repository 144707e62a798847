"""What a client does with the models it got before it is scored; it follows any algorithm and never feeds back."""

from fedem_lightning.adaptation.base import Adaptation
from fedem_lightning.adaptation.dapper import Dapper
from fedem_lightning.adaptation.finetune import Finetune
from fedem_lightning.adaptation.interpolate import Interpolate

__all__ = ["Adaptation", "Dapper", "Finetune", "Interpolate"]
