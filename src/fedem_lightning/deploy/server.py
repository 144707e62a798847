"""The server's side of a deployment, over any link: the clients that have come, and an ordinary run on them."""

import functools
import json
import time
import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytorch_lightning as pl
import torch
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf, open_dict

from fedem_lightning.algorithms.growth import federation_of
from fedem_lightning.data.datamodule import FederatedDataModule
from fedem_lightning.data.federation import Federation
from fedem_lightning.data.schema import Schema
from fedem_lightning.deploy.forms import as_line
from fedem_lightning.deploy.remote import RemoteClients, descriptions
from fedem_lightning.deploy.remote_updates import check_number_in_sum
from fedem_lightning.deploy.replies import schema_of
from fedem_lightning.deploy.status import Status
from fedem_lightning.deploy.wire import Counted, Link
from fedem_lightning.errors import require
from fedem_lightning.records.configs import data_and_network, read_yaml
from fedem_lightning.rejections import NO_ANSWER, first_line
from fedem_lightning.run.cli import called_by  # with it come the resolvers of the configurations
from fedem_lightning.run.execute import run
from fedem_lightning.settings.shipped import CONFIG_DIR

PAUSE = 1.0
"""Seconds between two looks for clients."""


@dataclass
class _Serving:
    """What a run's configuration cannot hold."""

    link: Link
    n_clients: int  # that must be there
    patience: float  # seconds in which they must appear
    traffic: Counted | None  # of a link that counts what it sends
    status: dict[str, Any]  # what the status file says


_serving: _Serving | None = None


def run_on(
    link: Link,
    words: list[str],
    folder: Path,
    n_clients: int,
    patience: float,
    secure: bool = False,
    program: Sequence[str] = (),
) -> None:
    """Waits for the clients, then trains and tests.

    Args:
        link: to the clients.
        words: of the command line, such as "+experiment=digits".
        folder: the run's folder.
        n_clients: number of clients that must be there.
        patience: seconds in which they must appear.
        secure: whether the server learns sums of updates only; needs Flower.
        program: of the command `python -m fedem_lightning.deploy` that runs it, the words before these.

    Raises:
        UserError: a mistake in the words, or the clients are not there in time.

    """
    global _serving
    traffic = link if isinstance(link, Counted) else None
    if secure:
        check_number_in_sum(n_clients)
        from fedem_lightning.deploy.secure import SecureLink

        link = SecureLink(link)
    _serving = _Serving(link, n_clients, patience, traffic, {"state": "waits for clients", "clients": 0})
    with initialize_config_dir(str(CONFIG_DIR), version_base="1.3"):
        config = compose("config", words, return_hydra_config=True)
    choices = called_by(config.hydra.runtime.choices)
    select = functools.partial(OmegaConf.select, config)
    names_data = any(word.lstrip("+").startswith(("dataset=", "experiment=")) for word in words)
    chosen_for = (config.get("chosen_for") or {}).get(data_and_network(select)) if names_data else None
    with open_dict(config):
        del config["hydra"]
        config.dataset = {"_target_": f"{__name__}.JoinedClients", "run": _run_name(folder)}
        config.trainer.devices, config.trainer.accelerator = 1, "cpu"  # the server only averages
        config.trainer.enable_progress_bar = False  # a line a round is printed instead
        config.callbacks.lines = {"_target_": f"{__name__}.RoundLines"}
        if not any(word.lstrip("+~").startswith(("callbacks=", "callbacks.checkpoint")) for word in words):
            config.callbacks.checkpoint.every_n_rounds = 1  # rounds are slow, and clients keep two states only
        # the clients' data are what the words name, if they name any
        config.chosen_for = {data_and_network(select): chosen_for or {}}
    with Status(folder, lambda: dict(_serving.status)):
        run(config, folder, choices | {"dataset": "clients"}, words, program, str(__package__))


class RoundLines(pl.Callback):
    """Prints a line for each round, and notes it for the status file."""

    began = 0.0

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Starts the clock."""
        self.began = time.monotonic()

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Prints how many clients took part, and how long the round took."""
        found = {name: int(trainer.callback_metrics.get(name, 0)) for name in ("cohort", "rejected")}
        took, now = found["cohort"] - found["rejected"], trainer.current_epoch + 1
        line = f"{took} of {found['cohort']} clients, {time.monotonic() - self.began:.1f} s"
        if _serving is not None:
            _serving.status.update(state=f"round {now} of {trainer.max_epochs}", clients=took)
            if _serving.traffic is not None:
                bytes_ = {"sent": _serving.traffic.sent_bytes, "received": _serving.traffic.received_bytes}
                _serving.status.update(bytes_)
                line += "".join(f", {n / 1e6:.1f} MB {name} so far" for name, n in bytes_.items())
        print(time.strftime("%H:%M:%S"), f"round {now} of {trainer.max_epochs}: {line}", flush=True)


def _run_name(folder: Path) -> str:
    """The name of the folder's run, or a new one."""
    path = folder / ".hydra" / "config.yaml"
    held = read_yaml(path).get("dataset") if path.is_file() else None
    return str(held["run"]) if isinstance(held, dict) and "run" in held else uuid.uuid4().hex


class RemoteDataModule(FederatedDataModule):
    """A federation whose samples are with its clients: all that are there once there are enough of them.

    Args:
        link: to the clients' nodes.
        n_clients: number of clients that must be there.
        patience: seconds in which they must come.
        run: the name under which the clients keep their state; None: a new one.

    Raises:
        UserError: too few have come in time.

    """

    def __init__(self, link: Link, n_clients: int, patience: float = 0.0, run: str | None = None) -> None:
        run = run or uuid.uuid4().hex
        known = Arrivals(link, run).wait_for(n_clients, patience)
        super().__init__(_without_samples(schema_of(list(known.values()))))
        self.remote = RemoteClients(link, known, run)


class JoinedClients(RemoteDataModule):
    """The clients that are there when the run begins: the dataset of a deployed run's configuration.

    Args:
        run: the name under which the clients keep their state.

    """

    def __init__(self, run: str) -> None:
        assert _serving is not None  # `run_on` has set it
        super().__init__(_serving.link, _serving.n_clients, _serving.patience, run)


class Arrivals:
    """The clients that have come so far. A line says of each that it has joined, or why it is refused.

    Args:
        link, run: see `RemoteDataModule`.

    """

    def __init__(self, link: Link, run: str) -> None:
        self.link, self.run = link, run
        self.refused: dict[int, str] = {}  # by node, the line about it
        self._described: dict[int, dict[str, Any]] = {}  # by node, in the order in which they came
        self._wrong: dict[int, str] = {}  # by node, what is wrong with its description
        self._said: dict[int, str] = {}  # by node, the last line about it

    def wait_for(self, n_clients: int, patience: float) -> dict[int, dict[str, Any]]:
        """The descriptions of the clients that are there once there are enough of them; see `RemoteDataModule`."""
        end = time.monotonic() + patience
        while len(found := self.look()) < n_clients:
            lines = [f"{len(found)} of {n_clients} were there after {patience:g} seconds", *self.refused.values()]
            require(time.monotonic() < end, f"clients: {'; '.join(lines)}")
            time.sleep(min(PAUSE, max(0.0, end - time.monotonic())))
        return found

    def look(self) -> dict[int, dict[str, Any]]:
        """The descriptions of the clients that may take part, by node, in the order of their names.

        A name is taken by the first client that has it. Samples must have the form that most clients' have.
        """
        self._describe(self.link.connected())
        counts = Counter(map(_form, self._described.values()))
        main = max(counts, key=counts.__getitem__, default="")
        found, names = dict[int, dict[str, Any]](), set[str]()
        self.refused = {node: f"a client is refused: {line}" for node, line in self._wrong.items()}
        for node, one in self._described.items():
            if one["name"] in names:
                self.refused[node] = f"a second client {one['name']} is refused: the name is taken"
            elif _form(one) != main:
                usual = json.loads(main)
                what = ", ".join(key for key, value in one["form"].items() if value != usual[key])
                form = f"its samples have another form than most clients' ({what})"
                self.refused[node] = f"client {one['name']} is refused: {form}"
            else:
                names.add(one["name"])
                found[node] = one
        lines = {n: f"client {one['name']} has joined: {one['n_train']} training samples" for n, one in found.items()}
        for node, line in (lines | self.refused).items():
            if self._said.get(node) != line:
                self._said[node] = line
                print(line, flush=True)
        return dict(sorted(found.items(), key=lambda item: str(item[1]["name"])))

    def _describe(self, there: list[int]) -> None:
        """Asks new nodes who they are, and those again that did not answer; forgets those that have gone."""
        for known in (self._described, self._wrong):
            for node in known.keys() - set(there):
                del known[node]
        new = [node for node in there if node not in self._described and node not in self._wrong]
        for node, found in descriptions(self.link, new, self.run):
            if isinstance(found, dict):
                try:
                    _without_samples(schema_of([found]))
                    self._described[node] = found
                except Exception as error:  # whatever the values of a wrong form may cause
                    self._wrong[node] = as_line(f"form: {first_line(error)}")
            elif found.reason != NO_ANSWER:
                self._wrong[node] = str(found)


def _form(description: dict[str, Any]) -> str:
    return json.dumps(description["form"], sort_keys=True)


def _without_samples(schema: Schema) -> Federation:
    """The federation of the clients, of which only the numbers of training samples are known."""
    kind = np.uint8 if schema.pixels is not None else np.int64 if schema.takes_codes else np.float32
    none = torch.zeros(0, dtype=torch.int64)
    samples = schema.samples_of(np.zeros((0, *schema.raw_shape), dtype=kind))
    return federation_of(schema, samples, none, none, ())
