"""The commands that continue a run and a sweep, to be copied into a shell."""

import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from hydra._internal.utils import get_args_parser
from hydra.core.override_parser.types import Quote, QuotedString

from fedem_lightning.records.secrets import hide_in_overrides

PACKAGE = "fedem_lightning"
_sweep: str | None = None  # the command that continues the sweep of this process


def resume_command(
    folder: Path, overrides: Sequence[str], flags: Sequence[str] = (), own: bool = True, module: str = PACKAGE
) -> str:
    """What continues the run in `folder`, quoted for Hydra and for a shell.

    Args:
        folder: of the run.
        overrides: what the run was started with; of a sweep, what this job was.
        flags: of Hydra, such as --config-dir, or of `module`.
        own: whether to continue from the run's own checkpoints; else from where it began.
        module: that runs it.

    """
    replaced = ("run_dir", "ckpt_path") if own else ("run_dir",)
    kept = [override for override in hide_in_overrides(overrides) if override.lstrip("+").split("=")[0] not in replaced]
    begun_elsewhere = any(override.lstrip("+").startswith("ckpt_path=") for override in kept)
    checkpoint = [] if begun_elsewhere else ["ckpt_path=auto"]
    run_dir = "run_dir=" + QuotedString(str(folder), Quote.double).with_quotes()
    return shlex.join([_python(), "-m", module, *flags, *kept, *checkpoint, run_dir])


def run_command(overrides: Sequence[str], flags: Sequence[str] = (), module: str = PACKAGE) -> str:
    """The command line of a run, quoted for a shell; of a job of a sweep, the one that makes this job alone.

    Args:
        overrides: as the user typed them.
        flags, module: see `resume_command`.

    """
    return shlex.join(["python", "-m", module, *flags, *hide_in_overrides(overrides)])


def begin_sweep(folder: Path, words: Sequence[str]) -> None:
    """Notes what continues the sweep that begins in `folder` by these words of the command line.

    Finished jobs stay as they are. A sweep that was given a checkpoint keeps it, for the jobs that have not begun.
    """
    global _sweep
    overrides = get_args_parser().parse_known_args(list(words))[0].overrides
    options = [word for word in words if word not in overrides]  # before: Hydra reads overrides in one piece
    _sweep = resume_command(folder.absolute(), overrides, options, own=False)


def leave_sweep() -> None:
    """A single run follows."""
    global _sweep
    _sweep = None


def sweep_command() -> str | None:
    """What continues the sweep; None if this process has begun none."""
    return _sweep


def _python() -> str:
    """`python` where a shell finds this one by that name, else its path."""
    found = shutil.which("python")
    same = found is not None and os.path.dirname(found) == os.path.dirname(sys.executable)
    return "python" if same else sys.executable
