"""Flower's app as a folder, and the connection by which `flwr run` sends it to a SuperLink."""

import json
from pathlib import Path

from fedem_lightning.records.files import replacing

APP = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "fedem-lightning-app"
version = "1.0.0"
description = "Personalised federated learning: fedem-lightning, which is installed on the server and on all clients"
license = "Apache-2.0"
dependencies = []

[tool.hatch.build.targets.wheel]
packages = ["."]

[tool.flwr.app]
publisher = "fedem-lightning"

[tool.flwr.app.components]
serverapp = "fedem_lightning.deploy.flower_server:app"
clientapp = "fedem_lightning.deploy.flower_client:app"

[tool.flwr.app.config]
overrides = "" # words of the command line: "+experiment=digits algorithm=fedem"
clients = 2 # number of clients that must be there
run-dir = "" # the run's folder, on the server
deadline = 600.0 # seconds in which a client must answer
patience = 120.0 # seconds in which all clients must appear
secure = false # whether the server learns sums of updates only (SecAgg+)
"""
"""pyproject.toml of the app: `flwr run` sends it to the SuperLink, which sends it to the SuperNodes."""

CONNECTION = "server"
"""The connection's name, the second word of `flwr run`."""


def write_app(folder: Path, superlink: str, certificate: Path | None) -> Path:
    """Writes a folder for `flwr run`; returns that of Flower's settings in it, for FLWR_HOME.

    Args:
        folder: a new one.
        superlink: address of the SuperLink, HOST:PORT.
        certificate: of the authority that the SuperLink's certificate is from; None: no TLS.

    """
    home = folder / ".flwr"  # Flower sends no file below it
    trust = "insecure = true" if certificate is None else f"root-certificates = {json.dumps(str(certificate))}"
    connection = f"[superlink.{CONNECTION}]\naddress = {json.dumps(superlink)}\n{trust}\n"
    texts = {
        folder / "pyproject.toml": APP,
        home / "config.toml": f"[superlink]\ndefault = {json.dumps(CONNECTION)}\n\n{connection}",
    }
    for path, text in texts.items():
        with replacing(path) as temporary:
            temporary.write_text(text, encoding="utf-8")
    return home
