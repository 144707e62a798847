"""FedEM with a density of the inputs beside each component, for clients that join without labels.

FedEM's mixture is p_t(x, y) = sum_m pi_tm p_m(x) p(y | x, theta_m), where all p_m(x) are one p(x) (Marfoq et al. 2021,
Assumption 2): it cancels in the E-step, and x alone says nothing of pi. Here p_m(x) = N(x; mu_m, Sigma_m), fitted with
the q of FedEM's own E-step, so that training is FedEM's to the bit. A sample without a label has the marginal
likelihood p_t(x) = sum_m pi_tm p_m(x), and EM on it has the E-step q_im ~ pi_tm p_m(x_i), beside Eq. 9. FedGMM has
densities in training, too.
"""

from typing import Any

import torch
from torch import Tensor

from fedem_lightning.aggregate import Means, Models, Update
from fedem_lightning.data.federation import Block, Federation
from fedem_lightning.methods.fedem import FedEM
from fedem_lightning.models.components import Backbone
from fedem_lightning.models.gaussians import fitted, log_densities, moments_about
from fedem_lightning.settings.errors import require
from fedem_lightning.settings.ranges import Positive, PositiveInt
from fedem_lightning.state.history import Round


class DensityFedEM(FedEM):
    """FedEM that gives a client its mixture weights from inputs without labels, by a Gaussian of each component.

    Args:
        n_components: M.
        regularization: is added to the variances, in squared units of the inputs.
        options: of `FedEM`.

    """

    private_ok = False  # clients also send moments of their inputs
    means: Tensor  # mu, [M, d]
    variances: Tensor  # the diagonals of Sigma, [M, d]

    def __init__(
        self,
        backbone: Backbone,
        n_clients: int,
        n_components: PositiveInt = 3,
        regularization: Positive = 1e-3,
        **options: Any,
    ) -> None:
        super().__init__(backbone, n_clients, n_components, **options)
        self.regularization = regularization
        for name in ("means", "variances"):
            self.register_buffer(name, torch.zeros(0, 0))

    def prepare(self, data: Federation) -> None:
        """Refuses texts; the Gaussians start at 0 with variance 1, from where the first round moves them."""
        super().prepare(data)
        none = torch.zeros(0, dtype=torch.int64, device=data.device)
        x = data.samples.features(none, self.parameter_dtype)
        numbers = isinstance(x, Tensor) and x.is_floating_point()
        require(numbers, "algorithm: fedem_density needs inputs with a density, the data has texts or whole numbers")
        if not self.means.numel():
            self.means = self.pi.new_zeros(len(self.components), x.flatten(1).shape[1])
            self.variances = torch.ones_like(self.means)

    def client_update(self, batch: Block, round_: int) -> Update:
        """As FedEM; clients also receive the means, about which they take moments."""
        update = super().client_update(batch, round_)
        means = self.means.expand(len(batch.clients), *self.means.shape)
        return update._replace(receives=update.start | {"means": means})

    def _extras(self, q: Tensor, batch: Block) -> Models:
        """Means over a client's samples of q, q d and q d^2, d = x - mu; q [n, M], or [n, 1] in a warm-up."""
        z = torch.cat([piece.vectors(self.means.dtype) for piece in batch.pieces()])  # [n, d]
        return moments_about(self.means, z, q.to(self.means).expand(-1, len(self.components)), batch)

    def server_update(self, means: Means | None, round_: Round) -> None:
        """mu_m and Sigma_m in closed form from the clients' moments; then as FedEM."""
        if means is not None:
            self.means, self.variances = fitted(self.means, self.variances, means.extras, self.regularization)
        super().server_update(means, round_)

    def losses(self, batch: Block, n: int | None = None) -> Tensor:
        """l_im, or without labels -log N(x_i; mu_m, Sigma_m): [n, M]."""
        if batch.federation.samples.labelled:
            return super().losses(batch, n)
        z = torch.cat([piece.vectors(self.means.dtype) for piece in batch.pieces()])  # [n, d]
        return -log_densities(z, self.means, self.variances.rsqrt())
