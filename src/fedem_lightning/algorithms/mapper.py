"""Mapper: model interpolation; central and local models are trained together.

Mansour, Mohri, Ro, Suresh: "Three Approaches for Personalization with Applications to Federated Learning", 2020, arXiv
2002.10619. Section 6, Figure 4; equation numbers are the paper's.
"""

from typing import Any

from fedem_lightning.adaptation import Adaptation, Interpolate
from fedem_lightning.adaptation.interpolate import MixtureStep, log_odds
from fedem_lightning.aggregation import Update
from fedem_lightning.data.block import Block
from fedem_lightning.errors import require
from fedem_lightning.local_solver import Step
from fedem_lightning.models.components import Backbone
from fedem_lightning.module import FederatedAlgorithm


class Mapper(FederatedAlgorithm):
    """min over h_c of sum_k (n_k / n) min over h_l, lambda of L_k(lambda h_l + (1 - lambda) h_c).

    Every client, seen or unseen, is scored with the h_l and lambda of Eq. 10 and 11 for the newest h_c. As h_l starts
    from h_c each time, clients keep no state. With the grid {0} it is FedAvg.

    Args:
        backbone, n_clients, options: see `FederatedAlgorithm`.
        adaptation: `Interpolate` with the mixture's objective; it sets the grid and the training of h_l. None: its
            defaults.

    """

    private_ok = True

    def __init__(
        self, backbone: Backbone, n_clients: int, adaptation: Adaptation | None = None, **options: Any
    ) -> None:
        interpolation = Interpolate() if adaptation is None else adaptation
        joint = isinstance(interpolation, Interpolate) and interpolation.objective == "mixture"
        require(joint, "adaptation: Mapper needs mapper, or none for its defaults")
        super().__init__(backbone, n_clients, n_components=1, adaptation=interpolation, **options)

    def client_update(self, batch: Block, round_: int) -> Update:
        """Solves Eq. 10 and 11 for the received h_c; then takes local steps of h_c with h_l fixed (Eq. 12)."""
        assert isinstance(self.adaptation, Interpolate)
        h_c = self.received(batch.clients)  # [C, 1, ...]
        h_l, share = self.adaptation.fit(self, self.own_models(h_c), batch)  # Eq. 10, 11
        fixed = self.own_models(h_l).losses(batch)  # [n, 1]
        weights = log_odds(1 - share[batch.owner].unsqueeze(1).to(fixed), fixed)
        models = self.local_sgd(h_c, batch, round_, weights, step=Step(MixtureStep))  # Eq. 12
        return Update(models, batch.counts(), start=h_c)
