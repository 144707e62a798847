"""Whether a run can be repeated to the bit, and what its bits depend on."""

from typing import Any

import torch

DEPENDS_ON = (
    *("seed", "federation_digest", "engine.name", "engine.block_size", "engine.processes"),
    *("environment.fedem_lightning", "environment.torch", "environment.numpy"),
    *("environment.device", "environment.threads"),
)
"""Keys of results.json. Sums in another order may end with other last bits, so the machine and the blocks count."""


def reproducibility(device: torch.device) -> dict[str, Any]:
    """What results.json says: whether the same command gives the same bits where all of `depends_on` are the same.

    A GPU adds in any order unless `trainer.deterministic=true`.
    """
    same_bits = device.type == "cpu" or torch.are_deterministic_algorithms_enabled()
    return {"same_bits": same_bits, "depends_on": list(DEPENDS_ON)}
