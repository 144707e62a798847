"""A refused run leaves nothing, so that the corrected command finds a free folder; whatever was refused, and when."""

import warnings
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, open_dict

from fedem_lightning import UserError
from fedem_lightning.run.execute import run
from fedem_lightning.run.failures import user_message
from helpers.commands import CONFIG_DIR
from helpers.runs import SMALL, leave_undrawn, snapshot


@pytest.fixture(autouse=True)
def _undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    leave_undrawn(monkeypatch)


def composed(*words: str) -> DictConfig:
    """One round of few clients."""
    with initialize_config_dir(str(CONFIG_DIR), version_base="1.3"):
        config = compose("config", [*words, *SMALL["synthetic"], "trainer.max_epochs=1", "trainer.accelerator=cpu"])
    with open_dict(config):
        config.callbacks = {"checkpoint": config.callbacks.checkpoint}
    return config


def refused(config: DictConfig, folder: Path, choices: dict[str, str]) -> str | None:
    """The line of a refusal, after which nothing is left in the folder; None: the run has ended as usual."""
    line = None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            run(config, folder, {"dataset": "synthetic", "backbone": "linear", **choices}, [])
    except Exception as error:
        line = user_message(error) or pytest.fail(f"{choices}: {error!r}")
    assert folder.exists() == (line is None), (choices, line)
    return line


LATE = {
    "scaffold, private": ["algorithm=scaffold", "aggregation=private"],
    "fedgmm, private": ["algorithm=fedgmm", "aggregation=private"],
    "user_centric, private": ["algorithm=user_centric", "aggregation=private"],
    "a head": ["algorithm=fedavg", "adaptation=knn", "adaptation.head=nowhere"],
    "another head": ["algorithm=fedavg", "adaptation=finetune", "adaptation.part=head", "adaptation.head=nowhere"],
    "nobody is left": ["algorithm=fedavg", "faults=send_nan", "faults.share=0.99"],
    "diverged in the first round": ["algorithm=fedavg", "algorithm.client_optimizer.lr=1e38"],
}


@pytest.mark.parametrize("words", LATE.values(), ids=LATE)
def test_what_is_refused_late_leaves_nothing(words: list[str], tmp_path: Path) -> None:
    folder = tmp_path / "run"
    assert refused(composed(*words), folder, {"algorithm": words[0].partition("=")[2], "adaptation": "none"})
    (folder / "mine").mkdir(parents=True)
    (folder / "notes.txt").write_text("mine")
    before = snapshot(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(UserError):
            run(composed(*words), folder, {"algorithm": "fedavg", "dataset": "synthetic", "backbone": "linear"}, [])
    assert snapshot(tmp_path) == before
    assert (folder / "mine").is_dir()
