"""`python -m fedem_lightning`, and the command `fedem-lightning`."""

import os
import sys

from fedem_lightning.startup import keep_freed_memory
from fedem_lightning.startup.process import ignore_stops, listening, loading


def main() -> None:
    """Runs the command line; Ctrl-C ends it with one line, also while modules are loaded."""
    with loading():
        from fedem_lightning.run import cli  # Hydra
        from fedem_lightning.run.commands import printed, survive_closed_output
        from fedem_lightning.run.job_folders import ended_sweep

        survive_closed_output()
        keep_freed_memory()
    try:
        cli.main()
        if (folder := ended_sweep()) is not None:
            with listening("stopped after the sweep, before its table"), printed():
                from fedem_lightning.report.command import print_sweep

                print_sweep(folder)
    finally:
        ignore_stops()


def command() -> None:
    """Entry point of the console script; it finds modules in the working directory, as `python -m` does."""
    if not sys.flags.safe_path:
        sys.path.insert(0, os.getcwd())
    main()


if __name__ == "__main__":
    main()
