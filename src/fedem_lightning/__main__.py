"""`python -m fedem_lightning`, and the command `fedem-lightning`."""

import os
import sys


def main() -> None:
    """Runs the command line; Ctrl-C ends in one line, also while modules are loaded."""
    try:
        from fedem_lightning import cli  # loads Hydra

        cli.main()
    except KeyboardInterrupt:
        print("stopped before anything was done", file=sys.stderr)
        sys.exit(1)


def command() -> None:
    """The console script: it finds modules in the working directory, as `python -m` does."""
    if not sys.flags.safe_path:
        sys.path.insert(0, os.getcwd())
    main()


if __name__ == "__main__":
    main()
