"""What the shipped configurations mean: methods that average move alike."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hydra.utils import get_class, instantiate
from omegaconf import DictConfig, OmegaConf

from fedem_lightning import MLP, FederatedAlgorithm, FederatedDataModule, Linear, PFedMe, UserError
from fedem_lightning.settings.keys import CONFIG_DIR, flatten
from helpers.commands import composed
from helpers.conformance import ROWS as CONFORMANCE
from helpers.conformance import Row
from helpers.federations import make_trainer

MAY_SET = {"participation", "scored_clients", "local_epochs", "server_optimizer.momentum"}
"""Keys of `algorithm` that an experiment may set: no method has a value of its own for them."""

ALGORITHMS = sorted(path.stem for path in (CONFIG_DIR / "algorithm").glob("*.yaml"))
IN_REFERENCE = {"fedprox": "the public code has no momentum"}
WITH_MORE = {"fedavgm": "the server has momentum"}


def kind_of(name: str) -> type[FederatedAlgorithm]:
    return get_class(OmegaConf.load(CONFIG_DIR / "algorithm" / f"{name}.yaml")._target_)


def row_of(name: str) -> Row:
    return next(row for row in CONFORMANCE if row.kind is kind_of(name))


def composed_with_all(experiment: str) -> DictConfig:
    """The experiment, with every algorithm under `all`: one composition in place of twenty."""
    return composed(f"+experiment={experiment}", *(f"+algorithm@all.{name}={name}" for name in ALGORITHMS))


def set_by_experiment(config: DictConfig) -> dict[str, Any]:
    with_it, default = config.algorithm, config.all.fedem
    flat = {}
    for key in MAY_SET:
        value, before = OmegaConf.select(with_it, key), OmegaConf.select(default, key)
        if value != before:
            flat[key] = value
    return flat


@pytest.mark.parametrize("path", sorted((CONFIG_DIR / "experiment").glob("*.yaml")), ids=lambda path: path.stem)
def test_an_experiment_sets_nothing_that_methods_have_of_their_own(path: Path) -> None:
    config = OmegaConf.load(path)
    algorithm = OmegaConf.to_container(config.get("algorithm", OmegaConf.create()), resolve=False)
    assert set(flatten(algorithm)) <= MAY_SET
    assert set(config.get("local_training", {})) <= set(OmegaConf.load(CONFIG_DIR / "config.yaml").local_training)


@pytest.mark.parametrize("fidelity", ["paper", "reference"])
@pytest.mark.parametrize(
    "experiment",
    ["recovery", *(pytest.param(e, marks=pytest.mark.slow) for e in ("femnist", "digits", "floral_mnist"))],
)
def test_methods_that_average_move_as_fedavg(experiment: str, fidelity: str) -> None:
    """A method's file keeps what all share: batch size, epochs, momentum, its state, weight decay, schedule."""
    config = composed_with_all(experiment)
    config.fidelity = fidelity
    for name in ALGORITHMS:
        algorithm = config.all[name].copy()
        algorithm._set_parent(config)
        for key, value in set_by_experiment(config).items():
            OmegaConf.update(algorithm, key, value, force_add=True)
        config.all[name] = algorithm
    check_that_methods_move_alike(config, fidelity)


def alike(n_clients: int = 4, n_samples: int = 20) -> FederatedDataModule:
    """Clients that are all the same, each with one sample many times: batches and their order do not matter."""
    x = np.tile([[0.5, -1.0, 2.0]], (n_clients * n_samples, 1))
    client = np.repeat(np.arange(n_clients), n_samples)
    data = FederatedDataModule.from_arrays(x, np.ones(len(x), int), client, n_classes=3, domain=np.zeros(len(x), int))
    data.federation.truth["group"] = np.zeros(n_clients, dtype=np.int64)
    return data


def untitled(algorithm: DictConfig) -> dict[Any, Any]:
    """The algorithm's part of a configuration as a run builds it."""
    found = OmegaConf.to_container(algorithm, resolve=True)
    assert isinstance(found, dict)
    return {key: value for key, value in found.items() if key not in ("title", "color")}


def model_after(algorithm: DictConfig, options: dict[str, Any], rounds: int = 3, hidden: bool = False) -> torch.Tensor:
    """Every client's model, [T, D], trained by a shipped configuration at a common rate, everybody in each round."""
    data = alike()
    torch.manual_seed(0)
    algorithm = OmegaConf.create(untitled(algorithm))
    algorithm.client_optimizer.lr, algorithm.participation = 0.05, 1.0
    network = MLP(data.in_shape, 3, [4]) if hidden else Linear(data.in_shape, 3)
    model = instantiate(algorithm, network, n_clients=data.n_clients, **options)
    make_trainer(rounds).fit(model, data)
    everybody = torch.arange(data.n_clients)
    served = model.personal_models(everybody).models
    if "joint" in served:  # FedGMM's weights of the components
        served = model.received(everybody)
    return torch.cat([rows.flatten(1) for rows in model.params_of(served).values()], dim=1)


def check_that_methods_move_alike(config: DictConfig, fidelity: str) -> None:
    """After 3 rounds every method is where FedAvg is, or refuses the server optimiser, or is excused above."""
    fedavg, start = ([model_after(config.all.fedavg, {}, k, hidden) for hidden in (False, True)] for k in (3, 0))
    assert all((after - before).norm() > 0.1 for after, before in zip(fedavg, start, strict=True))
    server_moves = config.all.fedavg.server_optimizer.get("momentum", 0.0) > 0
    for name in ALGORITHMS:
        options, hidden = row_of(name).as_fedavg, row_of(name).hidden
        if server_moves and hidden:
            continue  # the server's momentum moves the shared part only
        if isinstance(options, str) or name in WITH_MORE or (fidelity == "reference" and name in IN_REFERENCE):
            continue
        if server_moves and not row_of(name).server:
            with pytest.raises(UserError, match=r"algorithm\.server_optimizer"):
                model_after(config.all[name], options)
            continue
        moved = model_after(config.all[name], options, hidden=hidden)
        distance = float((moved - fedavg[hidden]).norm() / (fedavg[hidden] - start[hidden]).norm())
        assert distance < 1e-6, f"{name}: {distance:.2g} of FedAvg's way apart from it, {fidelity}"


def test_pfedme_warns_where_its_personal_model_is_the_one_it_sends() -> None:
    with pytest.warns(UserWarning, match=r"algorithm\.outer_lr: eta lambda .* is 1, expected less"):
        PFedMe(Linear((3,), 2), n_clients=2, penalty=2.0, outer_lr=0.5)
    PFedMe(Linear((3,), 2), n_clients=2, penalty=2.0, outer_lr=0.49)
