"""Which of a run's processes this is; imports nothing that takes long."""

import os
import sys

_VARIABLES = ("RANK", "LOCAL_RANK", "SLURM_PROCID", "JSM_NAMESPACE_RANK")  # in Lightning's order


def in_another_process() -> bool:
    """Whether this is not the first process of a run; known before its Trainer is, and before Lightning is loaded."""
    loaded = sys.modules.get("lightning_utilities.core.rank_zero")
    rank = getattr(getattr(loaded, "rank_zero_only", None), "rank", None)  # a Trainer may have set it
    if rank is None:
        rank = next((os.environ[name] for name in _VARIABLES if name in os.environ), 0)
    return int(rank) != 0
