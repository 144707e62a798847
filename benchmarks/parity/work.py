"""What the runners share: the methods in the libraries' names, the network, the work folder and the results.

A work folder has `dataset/digits` in PFLlib's format, `start.pt` (the first parameters) and `settings.json`. A runner's
result is a file beside them. A peer's interpreter needs torch and NumPy.
"""

import json
import os
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

DATA = "digits"
LR, BATCH, EPOCHS = 0.1, 10, 2


@dataclass(frozen=True)
class Pair:
    """A method by its class here with its options, and by its name in PFLlib with its flags."""

    ours: str
    options: dict[str, Any] = field(default_factory=dict)
    theirs: str = ""  # "": the same name
    flags: str = ""
    held_out: bool = False  # whether the last fifth of a client's training samples are for validation

    @property
    def name(self) -> str:
        """The method in PFLlib."""
        return self.theirs or self.ours


PAIRS = {
    "fedavg": Pair("FedAvg"),
    "local": Pair("Local"),
    "fedper": Pair("FedPer"),
    "lg_fedavg": Pair("LGFedAvg", theirs="LG-FedAvg"),
    "fedrep": Pair("FedRep", {"head_epochs": EPOCHS}, flags=f"-pls {EPOCHS}"),
    "fedbabu": Pair("FedBABU", flags="-fte 1"),
    "fedbn": Pair("FedBN"),
    "fedprox": Pair("FedProx", {"mu": 0.5}, flags="-mu 0.5"),
    "scaffold": Pair("Scaffold", theirs="SCAFFOLD"),
    "ditto": Pair("Ditto", {"penalty": 0.5}, flags=f"-mu 0.5 -pls {EPOCHS}"),
    "pfedme": Pair(
        "PFedMe",
        {"penalty": 2.0, "outer_lr": LR, "inner_steps": 3},
        "pFedMe",
        f"-lam 2 -K 3 -lrp {LR} -bt 1",
    ),
    "per_fedavg": Pair("PerFedAvg", {"inner_lr": LR, "batch_size": 2 * BATCH}, "PerAvg"),
    "apfl": Pair("APFL", {"alpha": 0.5}, flags="-al 0.5"),
    "fedala": Pair("FedALA", {"share": 1.0}, flags="-s 100 -p 2"),
    "fedfomo": Pair("FedFOMO", {"exploration": 0.0}, "FedFomo", "-M 1000", held_out=True),
    "fedrod": Pair("FedRoD", theirs="FedROD"),
    "dbe": Pair("FedDBE", {"penalty": 1.0, "mean_rate": 0.5}, flags="-klw 2 -mo 0.5"),  # it halves kappa
    "fedas": Pair("FedAS", {"align_lr": 0.01}),
    "moon": Pair("MOON", {"mu": 1.0, "temperature": 0.5}, flags="-mu 1 -tau 0.5"),
    "feddyn": Pair("FedDyn", {"alpha": 0.1}, flags="-al 0.1"),
    "fedamp": Pair("FedAMP", {"sigma": 10.0, "alpha": 1.0, "penalty": 0.5}, flags="-sg 10 -alk 1 -lam 0.5"),
    "fedlc": Pair("FedLC", {"keep_own": True}, flags="-tau 1"),
    "fedproto": Pair("FedProto", {"penalty": 1.0}, flags="-lam 1"),
}


FLUKE = ("fedavg", "fedprox", "scaffold", "ditto", "fedper", "lg_fedavg", "fedrep", "fedrod", "moon")
"""The methods that are compared with fluke, too."""


class Network(nn.Module):
    """The network of both. PFLlib knows the head by its name, `fc`, and what FedBN keeps by `bn`."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.dense, self.bn, self.fc = nn.Linear(64, width), nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Logits: x [n, 64] -> [n, 10]."""
        return self.fc(torch.relu(self.bn(self.dense(x))))


@dataclass(frozen=True)
class Work:
    """A work folder."""

    folder: Path
    method: str
    rounds: int
    dtype: str
    without: list[str]  # mends that are left out

    @property
    def pair(self) -> Pair:
        """The method."""
        return PAIRS[self.method]

    @property
    def data(self) -> Path:
        """PFLlib's folder."""
        return self.folder / "dataset" / DATA

    @property
    def clients(self) -> int:
        """Their number."""
        return len(list((self.data / "train").iterdir()))

    def samples(self, part: str, client: int) -> tuple[Tensor, Tensor]:
        """The samples of a client that are for train or test: x [n, 64] and y [n]."""
        with np.load(self.data / part / f"{client}.npz", allow_pickle=True) as file:
            content = file["data"].item()
        return torch.from_numpy(content["x"]).to(torch.get_default_dtype()), torch.from_numpy(content["y"])

    def start(self) -> Network:
        """The network with its first parameters, in the dtype of the work, which becomes torch's default."""
        torch.set_num_threads(1)
        torch.set_default_dtype(getattr(torch, self.dtype))
        network = Network()
        network.load_state_dict(torch.load(self.folder / "start.pt"))
        return network

    def write(self) -> None:
        """The settings."""
        content = {name: value for name, value in asdict(self).items() if name != "folder"}
        (self.folder / "settings.json").write_text(json.dumps(content))

    @classmethod
    def read(cls, folder: str) -> "Work":
        """The work that a driver has written."""
        return cls(Path(folder), **json.loads((Path(folder) / "settings.json").read_text()))


def flat(tensors: Iterable[Tensor]) -> Tensor:
    """A model's tensors as one vector."""
    return torch.cat([tensor.detach().flatten().double() for tensor in tensors])


@dataclass
class Result:
    """Of one library."""

    right: list[list[int]] = field(default_factory=list)  # right test predictions [R][T]
    models: list[Tensor] = field(default_factory=list)  # with which clients predict, R x [T, D]
    seconds: list[float] = field(default_factory=list)  # processor time of each round's training [R]
    version: str = ""
    peak_mb: float = 0.0

    def save(self, file: Path) -> None:
        """Adds the largest memory of this process, and writes."""
        lines = Path("/proc/self/status").read_text().splitlines()
        self.peak_mb = next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))
        torch.save(vars(self), file)

    @classmethod
    def load(cls, file: Path) -> "Result":
        """What a runner has written."""
        return cls(**torch.load(file))


def run_each(name: str, folders: list[str], run: Callable[[Work], Result]) -> None:
    """Writes NAME.pt, or NAME.error, into each of the work folders; a work has a process of its own.

    It is a fork of this one, so that what all of them import is imported once.
    """
    for folder in folders:
        if (child := os.fork()) == 0:
            work = Work.read(folder)
            try:
                run(work).save(work.folder / f"{name}.pt")
            except Exception as error:  # the next one runs
                (work.folder / f"{name}.error").write_text(f"{type(error).__name__}: {error}")
            os._exit(0)
        os.waitpid(child, 0)
