"""Flower's ServerApp: an ordinary run, whose clients are the federation's nodes.

The run's configuration (`flwr run --run-config`): overrides, words of the command line, such as "+experiment=digits
algorithm=fedem"; clients, the number of clients that must be there; run-dir, the run's folder; deadline, the seconds in
which a client must answer; patience, the seconds in which all clients must appear; secure, whether the
server learns sums of updates only.
"""

import shlex
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedem_lightning.deploy.flower import FlowerLink
from fedem_lightning.deploy.server import run_on

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Waits for the clients, then trains and tests."""
    options = context.run_config
    folder, words = Path(str(options["run-dir"])).resolve(), shlex.split(str(options["overrides"]))
    link = FlowerLink(grid, float(options["deadline"]))
    run_on(link, words, folder, int(options["clients"]), float(options["patience"]), bool(options["secure"]))
