"""The rank of this process in a run; the module imports nothing slow."""

import os
import sys

_VARIABLES = ("RANK", "LOCAL_RANK", "SLURM_PROCID", "JSM_NAMESPACE_RANK")  # in Lightning's order


def in_another_process() -> bool:
    """Whether this is not the first process of a run; it works before Lightning is loaded and a Trainer exists."""
    loaded = sys.modules.get("lightning_utilities.core.rank_zero")
    rank = getattr(getattr(loaded, "rank_zero_only", None), "rank", None)  # a Trainer may have set it
    if rank is None:
        rank = next((os.environ[name] for name in _VARIABLES if name in os.environ), 0)
    return int(rank) != 0
