"""Aggregation: the updates that clients send, and the rules by which the server combines them."""

from fedem_lightning.aggregate.base import (
    Aggregation,
    Collector,
    Means,
    RoundContext,
    Sampling,
    Update,
    all_finite,
    check_update,
)
from fedem_lightning.aggregate.gathered import Robust
from fedem_lightning.aggregate.private import PrivateMean
from fedem_lightning.aggregate.rules import Mean, Median, MultiKrum, NormClipping, TrimmedMean, make_aggregation
from fedem_lightning.aggregate.weighted_mean import WeightedMean
from fedem_lightning.models.tensors import Models

__all__ = [
    "Aggregation",
    "Collector",
    "Mean",
    "Means",
    "Median",
    "Models",
    "MultiKrum",
    "NormClipping",
    "PrivateMean",
    "Robust",
    "RoundContext",
    "Sampling",
    "TrimmedMean",
    "Update",
    "WeightedMean",
    "all_finite",
    "check_update",
    "make_aggregation",
]
