"""Where FedGMM's embedding and Gaussians start: at the training samples of the clients that train."""

from typing import NamedTuple

import torch
from torch import Tensor

from fedem_lightning.data.federation import Federation
from fedem_lightning.errors import require
from fedem_lightning.models.gaussians import embedded, moments, principal_axes
from fedem_lightning.randomness import Purpose, generator


class Start(NamedTuple):
    """The embedding's center [d_in] and projection [d_in, d], both empty without one; means [M, d]; covariance."""

    center: Tensor
    projection: Tensor
    means: Tensor
    covariance: Tensor  # of all embedded samples, [d] or [d, d]


def start(federation: Federation, embedding: str, dimension: int, n_gaussians: int, full: bool, seed: int) -> Start:
    """The start, float64; unseen clients have no part in it.

    Args:
        federation: whose seen clients' training samples are read.
        embedding: "inputs", "pca" or "random".
        dimension: d, of the last two.
        n_gaussians: M; each mean is a sample, drawn at random.
        full: whether the covariance is a matrix; if not, the variances.
        seed: of the draws.

    Raises:
        UserError: d is larger than the number of inputs, or there are fewer samples than Gaussians.

    """
    block, rng = federation.block(federation.clients(), "train"), generator(seed, Purpose.INITIAL)
    x = federation.samples.features(block.index[:1], torch.float64)
    n_inputs = x[0].numel()
    center, projection = x.new_zeros(0), x.new_zeros(0, 0)
    if embedding != "inputs":
        fits = dimension <= n_inputs
        require(fits, f"algorithm.dimension: expected at most {n_inputs}, the number of inputs, got {dimension}")
    if embedding == "pca":
        center, covariance = moments((p.x(torch.float64).flatten(1) for p in block.pieces()), full=True)
        projection = principal_axes(covariance, dimension)
    elif embedding == "random":
        center = x.new_zeros(n_inputs)
        projection = torch.from_numpy(rng.normal(size=(n_inputs, dimension)) / dimension**0.5).to(x)
    _, covariance = moments((embedded(p.x(torch.float64), center, projection) for p in block.pieces()), full)
    positions = block.index.sort().values  # so that the draw does not depend on the clients' numbers
    drawn = rng.choice(len(positions), size=min(len(positions), 8 * n_gaussians), replace=False)
    some = federation.samples.features(positions[torch.from_numpy(drawn).to(positions)], x.dtype)
    z = embedded(some, center, projection)
    z = z[z.square().sum(dim=1).isfinite()]
    enough = len(z) >= n_gaussians
    require(enough, f"algorithm.n_gaussians: expected at most {len(z)}, the number of samples, got {n_gaussians}")
    return Start(center, projection, z[:n_gaussians], covariance)
