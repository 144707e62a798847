"""Client optimisers by name: what the files of methods say for SGD gives way to another optimiser's own."""

from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

import fedem_lightning.run.cli  # noqa: F401 - the resolvers of configurations
from fedem_lightning import ClientAdam, ClientAdamW, ClientSGD, FedYogi
from fedem_lightning.run.gate import check_configuration, own_targets
from fedem_lightning.settings.configs import resolved
from fedem_lightning.settings.keys import CONFIG_DIR, shipped

METHODS = sorted(shipped("algorithm"))


def composed(*overrides: str) -> DictConfig:
    """The configuration as a run has it."""
    with initialize_config_dir(str(CONFIG_DIR), version_base="1.3"):
        config = compose("config", list(overrides))
    own_targets(config, overrides)
    check_configuration(config)
    return config


@pytest.mark.parametrize("method", METHODS)
def test_every_method_composes_with_adamw(method: str) -> None:
    """No rate that was chosen for SGD, and no momentum: L2SGD's file, for one, has it."""
    config = composed(f"algorithm={method}", "algorithm/client_optimizer=adamw")
    assert instantiate(config.algorithm.client_optimizer) == ClientAdamW()
    if config.get("adaptation") and "client_optimizer" in config.adaptation:
        assert instantiate(config.adaptation.client_optimizer).momentum == 0.9


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["algorithm/client_optimizer=adam", "learning_rates.fedem=0.02"], ClientAdam(lr=0.02)),
        (["algorithm/client_optimizer=adam", "+experiment=shakespeare"], ClientAdam(state="keep")),
        (
            ["algorithm/client_optimizer=adamw", "algorithm.client_optimizer.lr=0.3", "local_training.state=keep"],
            ClientAdamW(lr=0.3, state="keep"),
        ),
        (["algorithm.client_optimizer._target_=fedem_lightning.ClientAdamW"], ClientAdamW(weight_decay=0.0)),
        (["algorithm/client_optimizer=sgd", "learning_rates.fedem=0.5"], ClientSGD(0.5, 0.9)),
    ],
)
def test_optimisers_by_name(overrides: list[str], expected: Any) -> None:
    config = composed(*overrides)
    assert instantiate(config.algorithm.client_optimizer) == expected
    found = resolved(OmegaConf.to_container(config))["algorithm"]["client_optimizer"]  # type: ignore[arg-type]
    assert found["lr"] == expected.lr  # as reports read it


def test_server_optimisers_by_name() -> None:
    config = composed("algorithm/server_optimizer=fedyogi", "algorithm.server_optimizer.tau=0.1")
    made = instantiate(config.algorithm.server_optimizer)
    assert (made.func, made.keywords["lr"], made.keywords["tau"]) == (FedYogi, 0.01, 0.1)
