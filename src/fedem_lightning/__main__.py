"""`python -m fedem_lightning`, and the command `fedem-lightning`."""

import os
import signal
import sys

from fedem_lightning.settings.startup import end_with_the_first, is_worker_rank, keep_freed_memory


def main() -> None:
    """Runs the command line; Ctrl-C ends it with one line, also while modules are loaded."""
    if is_worker_rank():
        end_with_the_first()
    else:
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # counts as Ctrl-C
    try:
        from fedem_lightning.run import cli  # Hydra
        from fedem_lightning.run.command_line import ended_sweep

        keep_freed_memory()
        cli.main()
        if (folder := ended_sweep()) is not None:
            from fedem_lightning.report.command import print_sweep

            print_sweep(folder)
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        sys.exit(1)


def command() -> None:
    """Entry point of the console script; it finds modules in the working directory, as `python -m` does."""
    if not sys.flags.safe_path:
        sys.path.insert(0, os.getcwd())
    main()


if __name__ == "__main__":
    main()
