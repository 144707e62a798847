"""The server's side of a deployment, over any link: an ordinary run, whose clients answer over the link."""

import functools
import json
import time
import uuid
from pathlib import Path

from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf, open_dict

from fedem_lightning.deploy.joining import RemoteDataModule
from fedem_lightning.deploy.wire import Link
from fedem_lightning.errors import Interrupted, require
from fedem_lightning.records.chosen import data_and_network
from fedem_lightning.records.writing import replacing
from fedem_lightning.run.cli import GROUPS  # with it come the resolvers of the configurations
from fedem_lightning.run.execute import run
from fedem_lightning.run.failures import user_message
from fedem_lightning.run.usage import CONFIG_DIR

NOTES = "deploy.json"
"""In the run's folder: the name under which clients keep their state; the user's mistake that has ended the run."""

_link: Link | None = None


def run_on(link: Link, words: list[str], folder: Path, n_clients: int, patience: float) -> None:
    """Waits for the clients, then trains and tests.

    Args:
        link: to the clients.
        words: of the command line, such as "+experiment=digits".
        folder: the run's folder.
        n_clients: number of clients that must be there.
        patience: seconds in which they must appear.

    """
    global _link
    _link, notes = link, _notes(folder)
    try:
        wait_for(link, n_clients, patience)
        with initialize_config_dir(str(CONFIG_DIR), version_base="1.3"):
            config = compose("config", words, return_hydra_config=True)
        chosen = config.hydra.runtime.choices
        choices = {group: str(chosen[group]) for group in (*GROUPS, "experiment") if chosen.get(group)} | {
            "dataset": "clients"
        }
        select = functools.partial(OmegaConf.select, config)
        names_data = any(word.lstrip("+").startswith(("dataset=", "experiment=")) for word in words)
        chosen = (config.get("chosen_for") or {}).get(data_and_network(select)) if names_data else None
        with open_dict(config):
            del config["hydra"]
            config.dataset = {"_target_": f"{__name__}.JoinedClients", "run": notes["run"]}
            config.trainer.devices, config.trainer.accelerator = 1, "cpu"  # the server only averages
            if not any(word.startswith("callbacks") for word in words):
                config.callbacks.checkpoint.every_n_rounds = 1  # rounds are slow, and clients keep two states only
            # the clients' data are what the words name, if they name any
            config.chosen_for = {data_and_network(select): chosen or {}}
        run(config, folder, choices, words)
    except BaseException as error:
        line = str(error) if isinstance(error, Interrupted) else user_message(error)
        _save(folder, notes | ({} if line is None else {"error": line}))
        raise


def wait_for(link: Link, n_clients: int, patience: float) -> None:
    """Returns once as many nodes are there.

    Raises:
        UserError: they are not there in time.

    """
    end = time.monotonic() + patience
    while len(link.connected()) < n_clients:
        n = len(link.connected())
        require(time.monotonic() < end, f"clients: {n} of {n_clients} were there after {patience:g} seconds")
        time.sleep(1)


class JoinedClients(RemoteDataModule):
    """The clients that are there when the run begins: the dataset of a deployed run's configuration.

    Args:
        run: the name under which the clients keep their state.

    """

    def __init__(self, run: str) -> None:
        assert _link is not None  # `run_on` has set it
        super().__init__(_link, _link.connected(), run)


def _notes(folder: Path) -> dict[str, str]:
    """The name of the folder's run, or a new one; the mistake that ended an earlier attempt is forgotten."""
    path = folder / NOTES
    notes = {"run": json.loads(path.read_text())["run"] if path.is_file() else uuid.uuid4().hex}
    _save(folder, notes)
    return notes


def _save(folder: Path, notes: dict[str, str]) -> None:
    with replacing(folder / NOTES) as path:
        path.write_text(json.dumps(notes))


def error_of(folder: Path) -> str | None:
    """The user's mistake that has ended the run of a folder."""
    path = folder / NOTES
    return json.loads(path.read_text()).get("error") if path.is_file() else None
