"""The server's side of a deployment, over any link: an ordinary run, whose clients answer over the link."""

import functools
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf, open_dict

from fedem_lightning.deploy.joining import RemoteDataModule
from fedem_lightning.deploy.remote_updates import check_number_in_sum
from fedem_lightning.deploy.status import Status
from fedem_lightning.deploy.wire import Counted, Link
from fedem_lightning.records.configs import data_and_network, read_yaml
from fedem_lightning.run.cli import called_by  # with it come the resolvers of the configurations
from fedem_lightning.run.execute import run
from fedem_lightning.settings.shipped import CONFIG_DIR


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


class JoinedClients(RemoteDataModule):
    """The clients that are there when the run begins: the dataset of a deployed run's configuration.

    Args:
        run: the name under which the clients keep their state.

    """

    def __init__(self, run: str) -> None:
        assert _serving is not None  # `run_on` has set it
        super().__init__(_serving.link, _serving.n_clients, _serving.patience, run)


def _run_name(folder: Path) -> str:
    """The name of the folder's run, or a new one."""
    path = folder / ".hydra" / "config.yaml"
    held = read_yaml(path).get("dataset") if path.is_file() else None
    return str(held["run"]) if isinstance(held, dict) and "run" in held else uuid.uuid4().hex
