"""What a method is made of: its parts, and what a run knows of it. `module.py` sets them."""

from typing import Any

import numpy as np
import pandas as pd
import pytorch_lightning as pl
import torch
from torch import Tensor, nn

from fedem_lightning.aggregation import Aggregation
from fedem_lightning.compression import Compression
from fedem_lightning.data.schema import Schema
from fedem_lightning.faults import Faults
from fedem_lightning.history import RoundMetrics, Statistics
from fedem_lightning.local_training import LocalTraining
from fedem_lightning.models.client_store import ClientStore
from fedem_lightning.network import Network, Transmission
from fedem_lightning.server_step import Server
from fedem_lightning.states import PerClient, States


class Parts(pl.LightningModule):
    """The attributes of a method; a tensor of the clients is declared by assignment (`Method.per_client`)."""

    components: nn.ModuleList  # the M networks of the server
    local: LocalTraining
    server: Server
    states: States
    statistics: Statistics
    round_metrics: RoundMetrics
    traffic: Transmission | None  # of the round, where a method says it; None: its updates tell
    n_clients: int
    seed: int
    participation: float | int
    scored_clients: float | int
    personalize_fraction: float
    samples_by_size: bool
    adaptation: Any
    aggregation: Aggregation
    compression: Compression | None
    compression_error: ClientStore | None
    faults: Faults | None
    networks: dict[str, Network]
    remote: Any
    cohort_secret: str
    deployed_before: bool
    has_frozen: Tensor
    schema: Schema | None
    federation_digest: str | None
    curves: dict[int, dict[str, float]]
    past: Any
    clients: pd.DataFrame
    tested: Any  # ClientTable of the newest test
    diagnostics: dict[str, Any]
    artifacts: dict[str, dict[str, np.ndarray]]
    made_with: dict[str, Any]
    _prepared: Any
    _trained: Any

    def __setattr__(self, name: str, value: Any) -> None:
        """Declares a tensor of the clients that a method assigns; see `per_client`."""
        if isinstance(value, PerClient):
            self.states.declared[name] = value
            self.register_buffer(name, value.tensor, value.persistent)
        else:
            super().__setattr__(name, value)

    def register_buffer(self, name: str, tensor: Tensor | None, persistent: bool = True) -> None:
        """Makes a buffer; an empty one takes its size from the data, or from a checkpoint."""
        super().register_buffer(name, tensor, persistent)
        if tensor is not None and not tensor.numel():
            self.states.sized_by_data.add(name)

    def train_one_component(self) -> None:
        """Says that each client trains one of the M components alone (HypCluster)."""
        self.local.n_models = 1
        self.kept_momentum = self.local.momentum = self.local.optimizer_state()

    @property
    def own_parameters(self) -> tuple[str, ...]:
        """Names of a model's tensors of which each client has values of its own; none where clients share models.

        Which layer is the head is known once the model has seen its data.
        """
        stores = self.states.stores()
        return tuple(name for kept in ("own", "models") if kept in stores for name in stores[kept].names)

    @property
    def is_deployed(self) -> bool:
        """Whether the clients are processes of their own, or were when the checkpoint was written."""
        return self.remote is not None or self.deployed_before

    @property
    def parameter_dtype(self) -> torch.dtype:
        """The dtype to which features are cast."""
        return next(self.components.parameters()).dtype
