"""The runs of a comparison: each is an ordinary one with a folder and a command; they share data and process."""

import contextlib
import copy
import hashlib
import json
import math
import shlex
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf, open_dict
from torch import nn

from fedem_lightning.comparison.trials import Candidate, Setting
from fedem_lightning.data import FederatedDataModule
from fedem_lightning.models.backbones import Linear
from fedem_lightning.run.building import with_features
from fedem_lightning.run.callbacks import BestRound
from fedem_lightning.run.command_line import composed
from fedem_lightning.run.execute import run
from fedem_lightning.settings.errors import Diverged, NoUpdateLeft
from fedem_lightning.settings.files import write_atomically
from fedem_lightning.settings.keys import CALLS_RUN
from fedem_lightning.settings.measures import HIGHER_IS_BETTER, headline

Source = Callable[[int], FederatedDataModule]
"""The data of a seed, where Python gives them."""


@dataclass
class Done:
    """A finished run of a comparison."""

    candidate: str
    seed: int
    setting: Setting
    error: float  # on validation, lower is better; inf: it diverged
    seconds: float
    folder: str
    command: str
    rounds: int = 0  # of the model that was kept


@dataclass
class Runs:
    """Makes the runs of a comparison, and remembers those that are done, so that the same command goes on.

    `words` are the overrides that all runs have in common; `source` gives data in place of the configured ones, and
    `network` a network, which `words` then does not name.
    """

    folder: Path
    words: Sequence[str]
    source: Source | None = None
    network: Any = None
    done: dict[str, Done] = field(default_factory=dict)
    used: dict[str, Done] = field(default_factory=dict)  # of them, by this comparison
    _digests: dict[int, str] = field(default_factory=dict)
    _data: dict[str, FederatedDataModule] = field(default_factory=dict)
    _configs: dict[tuple[str, ...], DictConfig] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.source is not None:  # rates and rounds of the default data set are not those of other data
            self.words = ["~rates", *self.words]
        if (kept := self.folder / "runs.json").exists():
            self.done = {name: Done(**one) for name, one in json.loads(kept.read_text()).items()}

    @property
    def network_again(self) -> dict[str, Any]:
        """What `load` needs for a network that checkpoints cannot name."""
        return {} if self.network is None else {"backbone": self.network}

    @property
    def is_linear(self) -> bool:
        """Whether the network is the linear one."""
        if self.network is not None:
            return isinstance(self.network, Linear) or self.network is Linear
        return str(self._config(["algorithm=fedavg"], 0).backbone.get("_target_")).endswith(".Linear")

    def settle(self) -> str:
        """Chooses the network by the data, unless the words do, and the best round; the network, for readers."""
        if self._config(["algorithm=fedavg"], 0).callbacks.get("best_round") is None:  # of an experiment
            self.words = [
                *self.words,
                f"callbacks.best_round={{_target_:{BestRound.__module__}.BestRound,patience:25}}",
            ]
        if self.network is not None:
            return f"network {type(self.network).__name__}"
        named = [word for word in self.words if word.lstrip("+").startswith(("backbone=", "experiment="))]
        shape = self.data(0).in_shape
        if not named and isinstance(shape, tuple) and len(shape) == 3:
            self.words = [*self.words, "backbone=lenet"]
        config = self._config(["algorithm=fedavg"], 0)
        return f"network {config.chosen.backbone!s}"

    def data(self, seed: int) -> FederatedDataModule:
        """The data of a seed, read once."""
        return self._read(self._config(["algorithm=fedavg"], seed))

    def run(self, name: str, candidate: Candidate, setting: Setting, seed: int, **more: Any) -> Done:
        """Makes a run, unless it is done; an interrupted one goes on from its checkpoint.

        Its folder is called `name` and a hash of all that makes it what it is, the data included. `more`: `words` of
        this run alone; `change`, a function of the data module.
        """
        words = [*candidate.words, *more.get("words", ())]
        typed = [*self.words, *words, *(f"{key}={value}" for key, value in setting.items()), f"seed={seed}"]
        command = shlex.join(["python", "-m", "fedem_lightning", *typed])
        if seed not in self._digests:
            self._digests[seed] = self.data(seed).federation.digest()
        network = self.network if isinstance(self.network, nn.Module) else ""
        made_of = f"{command} {self._digests[seed]} {network}"
        name = f"{name}-{hashlib.sha256(made_of.encode()).hexdigest()[:8]}"
        if name in self.done:
            return self.used.setdefault(name, self.done[name])
        begin, place = time.perf_counter(), self.folder / name
        error, rounds = math.inf, 0
        config = self._config(words, seed, setting)
        with self._quiet(place), contextlib.suppress(Diverged, NoUpdateLeft):  # the training diverged
            results = self._made(config, place, typed, more.get("change"))
            error, rounds = validation_error(results), results.get("scored_round", results["rounds"])
        seconds = time.perf_counter() - begin
        done = Done(candidate.name, seed, setting, error, round(seconds, 2), str(place), command, rounds)
        self.done[name] = self.used[name] = done
        content = {key: vars(one) for key, one in self.done.items()}
        write_atomically(self.folder / "runs.json", json.dumps(content, indent=1).encode())
        return done

    def _made(
        self, config: DictConfig, place: Path, words: list[str], change: Callable[..., Any] | None
    ) -> Mapping[str, Any]:
        chosen = {group: str(choice) for group in CALLS_RUN if (choice := config.chosen.get(group))}
        with open_dict(config):
            del config["chosen"]
        data = self._read(config)
        return run(config, place, chosen, words, data=data if change is None else change(data), network=self.network)

    def _read(self, config: DictConfig) -> FederatedDataModule:
        key = OmegaConf.to_yaml(config.dataset, resolve=True) if self.source is None else str(config.seed)
        if key not in self._data:
            data = instantiate(config.dataset) if self.source is None else self.source(config.seed)
            self._data[key] = with_features(config, data)
        return self._data[key]

    def _config(self, words: Sequence[str], seed: int, setting: Setting | None = None) -> DictConfig:
        """The configuration of a run, with the choices that made it under `chosen`; composed once for each method."""
        every = (*self.words, *words)
        if every not in self._configs:
            config = composed([*every], return_hydra_config=True)
            with open_dict(config):
                config.chosen = dict(config.hydra.runtime.choices)
                del config["hydra"]
            self._configs[every] = config
        config = copy.deepcopy(self._configs[every])
        quick = {"trainer.enable_progress_bar": False, "ckpt_path": "auto", "seed": seed}
        for key, value in (quick | (setting or {})).items():
            OmegaConf.update(config, key, value)
        return config

    @contextlib.contextmanager
    def _quiet(self, place: Path) -> Iterator[None]:
        """What a run prints goes to a file in `logs`."""
        path = self.folder / "logs" / f"{place.relative_to(self.folder)}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.ExitStack() as stack:
            log = stack.enter_context(path.open("a"))
            stack.enter_context(contextlib.redirect_stdout(log))
            stack.enter_context(contextlib.redirect_stderr(log))
            stack.enter_context(warnings.catch_warnings())
            warnings.simplefilter("ignore")
            yield


def validation_error(results: Mapping[str, Any]) -> float:
    """The validation score that tables show, as an error, lower is better; NaN without validation rows."""
    if not results["val"]:
        return math.nan
    measure = headline(results["val"])[0]
    value = float(results["val"][measure]["weighted"])
    error = 1 - value if HIGHER_IS_BETTER[measure] else value
    return error if math.isfinite(error) else math.inf
