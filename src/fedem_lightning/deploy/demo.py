"""A federation on one machine: a SuperLink and a SuperNode for each client, as processes."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra.utils import instantiate

from fedem_lightning.algorithms.checks import check_deployable
from fedem_lightning.deploy.data import save_client
from fedem_lightning.deploy.launch import LOOPBACK, Processes, free_port
from fedem_lightning.deploy.remote import check_sum_suffices
from fedem_lightning.deploy.server import error_of
from fedem_lightning.errors import UserError, require
from fedem_lightning.run.building import build_model
from fedem_lightning.run.command_line import composed
from fedem_lightning.run.gate import check_settings

MOST = 32
"""Largest number of clients: each is a process that loads PyTorch."""


def demonstrate(words: Sequence[str], folder: Path, settings: Mapping[str, Any]) -> None:
    """Gives each client of a dataset a file and a node of its own, trains, and stops them.

    Args:
        words: of the command line, such as +experiment=digits.
        folder: the run's folder.
        settings: deadline and secure, see `flower_server.py`.

    Raises:
        UserError: a mistake in the words, or the run has failed.

    """
    config = composed(list(words))
    check_settings(config)
    data = instantiate(config.dataset)
    federation = data.federation
    names = [str(name) for name in federation.names]
    require(
        len(names) <= MOST,
        f"{len(names)} clients are too many processes for one machine, expected at most {MOST}: dataset.n_clients",
    )
    require(bool(federation.seen.all()), "dataset.unseen_fraction: every client of a demonstration trains")
    algorithm = build_model(config, data)  # what cannot be deployed is refused before any process starts
    check_deployable(algorithm)
    if settings["secure"]:
        check_sum_suffices(algorithm)
    for t in range(len(names)):
        save_client(federation, t, folder / "clients" / f"{t:03}.npz")
    port = free_port()
    with Processes(folder / "flower") as flower:
        flower.superlink(port)
        server = f"{LOOPBACK}:{port}"
        for t in range(len(names)):
            data, state = folder / "clients" / f"{t:03}.npz", folder / "clients" / f"{t:03}"
            flower.supernode(f"client{t:03}", server, {"data": str(data), "state": str(state)})
        serve(flower, server, words, folder, {"clients": len(names), "patience": 120.0, **settings})


def serve(
    flower: Processes,
    server: str,
    words: Sequence[str],
    folder: Path,
    settings: Mapping[str, Any],
    certificate: str | None = None,
) -> None:
    """Runs a configuration on the clients of a SuperLink.

    Args:
        flower: the processes.
        server: address of the SuperLink.
        words: of the command line, such as +experiment=digits.
        folder: the run's folder.
        settings: clients, deadline, patience and secure, see `flower_server.py`.
        certificate: see `Processes.run`.

    Raises:
        UserError: a mistake in the words, or the run has failed.

    """
    flower.run(server, {"overrides": shlex.join(words), "run-dir": str(folder), **settings}, certificate)
    error = error_of(folder)
    if error is not None:
        raise UserError(error)
    require((folder / "results.json").is_file(), f"the run has failed: see {flower.folder / 'run.log'}")
