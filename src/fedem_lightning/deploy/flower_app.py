"""The Flower app's folder, which `flwr run` sends to a federation that is there already."""

from pathlib import Path

from fedem_lightning.records.writing import replacing

APP = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "fedem-lightning-app"
version = "1.0.0"
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
"""pyproject.toml of the Flower app: `flwr run` sends it to the SuperLink."""


def write_app(folder: Path) -> None:
    """Writes the Flower app: a folder for `flwr run`."""
    with replacing(folder / "pyproject.toml") as temporary:
        temporary.write_text(APP, encoding="utf-8")
