"""Aggregation: the updates that clients send, and the rules by which the server combines them."""

from fedem_lightning.aggregate.base import Aggregation as Aggregation
from fedem_lightning.aggregate.base import Collector as Collector
from fedem_lightning.aggregate.base import Means as Means
from fedem_lightning.aggregate.base import RoundContext as RoundContext
from fedem_lightning.aggregate.base import Sampling as Sampling
from fedem_lightning.aggregate.base import Update as Update
from fedem_lightning.aggregate.base import all_finite as all_finite
from fedem_lightning.aggregate.base import check_update as check_update
from fedem_lightning.aggregate.gathered import Robust as Robust
from fedem_lightning.aggregate.private import PrivateMean as PrivateMean
from fedem_lightning.aggregate.rules import Mean as Mean
from fedem_lightning.aggregate.rules import Median as Median
from fedem_lightning.aggregate.rules import MultiKrum as MultiKrum
from fedem_lightning.aggregate.rules import NormClipping as NormClipping
from fedem_lightning.aggregate.rules import TrimmedMean as TrimmedMean
from fedem_lightning.aggregate.rules import make_aggregation as make_aggregation
from fedem_lightning.aggregate.weighted_mean import WeightedMean as WeightedMean
from fedem_lightning.models.tensors import Models as Models
