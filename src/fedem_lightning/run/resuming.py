"""The command that continues a run, to be copied into a shell."""

import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from hydra.core.override_parser.types import Quote, QuotedString


def resume_command(folder: Path, overrides: Sequence[str], flags: Sequence[str] = (), own: bool = True) -> str:
    """What continues the run in `folder`, quoted for Hydra and for a shell.

    Args:
        folder: of the run.
        overrides: what the run was started with; of a sweep, what this job was.
        flags: of Hydra, such as --config-dir.
        own: whether to continue from the run's own checkpoints; else from where it began.

    """
    replaced = ("run_dir", "ckpt_path") if own else ("run_dir",)
    kept = [override for override in overrides if override.lstrip("+").split("=")[0] not in replaced]
    begun_elsewhere = any(override.lstrip("+").startswith("ckpt_path=") for override in kept)
    checkpoint = [] if begun_elsewhere else ["ckpt_path=auto"]
    run_dir = "run_dir=" + QuotedString(str(folder), Quote.double).with_quotes()
    return shlex.join([_python(), "-m", "fedem_lightning", *flags, *kept, *checkpoint, run_dir])


def _python() -> str:
    """`python` where a shell finds this one by that name, else its path."""
    found = shutil.which("python")
    same = found is not None and os.path.dirname(found) == os.path.dirname(sys.executable)
    return "python" if same else sys.executable
