"""A federation on one machine: the server is this process, and each client one of its own."""

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch
from hydra.utils import instantiate

from fedem_lightning.algorithms.checks import check_deployable
from fedem_lightning.data.federation import Federation
from fedem_lightning.data.own_files import save_client
from fedem_lightning.deploy.certificates import make_keys
from fedem_lightning.deploy.client import Client
from fedem_lightning.deploy.grpc_server import GrpcLink
from fedem_lightning.deploy.remote import check_sum_suffices
from fedem_lightning.deploy.server import run_on
from fedem_lightning.errors import require
from fedem_lightning.run.building import build_model
from fedem_lightning.run.gate import check_configuration
from fedem_lightning.run.not_composed import composed

HOST = "127.0.0.1"
DAYS = 30
"""For which the certificates of a demonstration are valid."""
PATIENCE = 120.0
"""Seconds in which all clients must be there."""
GRACE = 5.0
"""Seconds that a client has to end by itself."""


def demonstrate(
    words: Sequence[str], folder: Path, n_clients: int, deadline: float, secure: bool, program: Sequence[str]
) -> None:
    """Gives clients of a data set a file, a certificate and a process of their own, trains, and stops them.

    Args:
        words: of the command line, such as +experiment=digits.
        folder: the run's folder.
        n_clients: at most so many of the data's clients take part, the first ones.
        deadline: seconds for an answer.
        secure: whether the server learns sums of updates only.
        program: the words before `words` of the command that runs it.

    Raises:
        UserError: a mistake in the words, or the run has failed.

    """
    config = composed(list(words))
    check_configuration(config)
    data = instantiate(config.dataset)
    federation: Federation = data.federation
    require(bool(federation.seen.all()), "dataset.unseen_fraction: every client of a demonstration trains")
    algorithm = build_model(config, data)  # what cannot be deployed is refused before any process starts
    check_deployable(algorithm)
    if secure:
        check_sum_suffices(algorithm)
    names = [str(name) for name in federation.names[:n_clients]]
    if len(names) < federation.n_clients:
        print(
            f"the first {len(names)} of the {federation.n_clients} clients take part; --clients takes more", flush=True
        )
    clients = _prepared(federation, names, folder)
    with GrpcLink(f"{HOST}:0", folder / "deploy" / "keys" / "server", deadline) as link:
        clients = [client._replace(server=f"{HOST}:{link.port}") for client in clients]
        with _running(clients, folder / "deploy"):
            run_on(link, list(words), folder, len(names), PATIENCE, secure, program)


def _prepared(federation: Federation, names: Sequence[str], folder: Path) -> list[Client]:
    """The clients, with their files and certificates, which stay with the run that is resumed."""
    keys, clients = folder / "deploy" / "keys", []
    make_keys(keys, [HOST], names, DAYS, renew=True)
    for t, name in enumerate(names):
        data = folder / "clients" / f"{t:03}.npz"
        save_client(federation, t, data)
        clients.append(Client(data, "", keys / "clients" / name, state=folder / "clients" / f"{t:03}"))
    return clients


@contextmanager
def _running(clients: Sequence[Client], logs: Path) -> Iterator[None]:
    """Within it each client is a process, which prints to NUMBER.log.

    The processes are forks of one that has loaded all packages, and end when this process ends, however it does.
    """
    context: Any = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    processes: list[BaseProcess] = []
    try:
        for t, client in enumerate(clients):
            process = context.Process(target=_client, args=(client, logs / f"client{t:03}.log"), daemon=True)
            process.start()
            processes.append(process)
        yield
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.join(GRACE)
            process.kill()


def _client(client: Client, log: Path) -> None:
    """A client's process."""
    with log.open("a") as file:
        os.dup2(file.fileno(), sys.stdout.fileno())
        os.dup2(file.fileno(), sys.stderr.fileno())
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the server, which ends its round first
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(1)
    with suppress(KeyboardInterrupt):
        client.run()


def _end_with_parent() -> None:
    parent: Any = multiprocessing.parent_process()
    wait([parent.sentinel])
    os._exit(1)
