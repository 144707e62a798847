"""Uploads of some of the components, chosen at random by a client's mixture weights.

FedEM's paper names it as future work (Marfoq et al., NeurIPS 2021, Conclusion): clients with few resources could send
only some of the components.
"""

from collections.abc import Collection

import torch
from torch import Tensor

from fedem_lightning.aggregation import Models, Sent
from fedem_lightning.randomness import Purpose, fold


def chosen(probability: Tensor, seed: int, round_: int, keys: Tensor) -> Tensor:
    """b: which components clients upload, bool [C, M]; b = 1 with probability p [C, M]; keys are the clients', [C]."""
    components = torch.arange(probability.shape[1], device=keys.device)
    draws = fold(seed, Purpose.UPLOADS, round_, keys.unsqueeze(1), components).double() / 2**32  # [C, M]
    return draws < probability


def upload_some(
    update: Sent, received: Models, probability: Tensor, sends: Tensor, parameters: Collection[str]
) -> Sent:
    """A component's update counts as theta + (b / p) (theta_t - theta), whose mean is theta_t: averages are unbiased.

    Where b = 0 nothing is sent, and the server takes theta.

    Args:
        update: theta_t, [C, M, ...].
        received: theta, [C, M, ...].
        probability: p, [C, M] in [0, 1].
        sends: b, bool [C, M].
        parameters: names of the trained parameters; buffers are not scaled.

    """
    factors = torch.where(sends, 1 / probability, 0.0)  # b / p  [C, M]
    models = {}
    for name, rows in update.models.items():
        start, shape = received[name], (*factors.shape, *[1] * (rows.ndim - 2))
        if name in parameters:  # others are not scaled: a variance must stay positive
            rows = start + factors.to(rows).view(shape) * (rows - start)
        models[name] = torch.where(sends.view(shape), rows, start)
    return update._replace(models=models, included=sends)
