"""Learning rates: chosen for a run's data and network, or one default; and what users see of it."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from omegaconf import OmegaConf

from fedem_lightning.run.gate import check_configuration
from fedem_lightning.settings.configs import data_and_network
from helpers.commands import CONFIG_DIR, call, composed

FILES: dict[str, Any] = {path.stem: OmegaConf.load(path) for path in sorted((CONFIG_DIR / "experiment").glob("*.yaml"))}
CASES = [(name, case) for name, file in FILES.items() for case in file.get("cases", [None])]
OF_DATA = {"cifar100": ["dataset=cifar100"], "concept_shift of user_centric": ["dataset=cifar10"]}
ALGORITHMS = sorted(path.stem for path in (CONFIG_DIR / "algorithm").glob("*.yaml"))
DIGITS = ["+experiment=digits", "trainer.max_epochs=1", "trainer.enable_progress_bar=false", "trainer.accelerator=cpu"]


@pytest.mark.parametrize(("experiment", "case"), CASES)
def test_an_experiment_says_for_what_its_rates_were_chosen(experiment: str, case: str | None) -> None:
    """Those of another experiment on which it builds are for the same data and network; a method reads each of them."""
    words = OF_DATA.get(str(case), OF_DATA.get(f"{case} of {experiment}", []))
    config = composed(f"+experiment={experiment}", *words, *([f"case={case}"] if case else []))
    these = data_and_network(lambda key: OmegaConf.select(config, key))
    assert config.rates_chosen_for == (these if config.learning_rates or config.method_settings else None)
    check_configuration(config)  # which names a rate that nothing reads


@pytest.mark.parametrize(
    ("words", "rate"),
    [
        (["algorithm=fedavg"], 1.0),
        (["algorithm=fedavg", "backbone=mlp"], 0.1),
        (["algorithm=ditto", "learning_rates.ditto=0.7"], 0.7),
        (["+experiment=digits", "algorithm=fedavg"], 0.316),
        (["+experiment=femnist", "algorithm=fedavg"], 0.0316),
        (["+experiment=femnist", "algorithm=fedavg", "fidelity=reference"], 0.03),
        (["+experiment=digits", "algorithm=hypcluster", "default_lr=0.5"], 0.5),
    ],
)
def test_the_rate_of_a_method_is_its_own_or_the_default(words: list[str], rate: float) -> None:
    assert composed(*words).algorithm.client_optimizer.lr == rate


def test_settings_of_methods_hold_for_their_data_alone() -> None:
    keys = ("penalty", "outer_lr")
    chosen, default = (composed("algorithm=pfedme", *more).algorithm for more in ([], ["backbone=mlp"]))
    assert [chosen[key] for key in keys] == [0.1, 9.0]
    assert [default[key] for key in keys] == [1.0, 0.9]
    assert composed("algorithm=pfedme", "method_settings.pfedme.penalty=0.3").algorithm.penalty == 0.3


LINES = {
    "algorithm=fedavg": "learning rate 0.316 of fedavg, chosen for dataset=digits, backbone=mlp",
    "algorithm=fedavg +learning_rates.fedavg=0.2": "learning rate 0.2 of fedavg, set by you",
    "algorithm=fedavg dataset=synthetic dataset.n_clients=4 dataset.test_size=9": "learning rate 0.316 of fedavg, "
    "chosen for Digits/MLP, nobody chose one for dataset=synthetic, backbone=mlp",
    "algorithm=ditto algorithm.client_optimizer.lr=0.2": "learning rate 0.2 of ditto, set by you",
    "algorithm=ditto": "learning rate 0.03 of ditto, the default, nobody chose it for dataset=digits, backbone=mlp",
}


BY = dict(zip(LINES, ["chosen_for", "user", "other_data", "user", None], strict=True))


@pytest.mark.parametrize("words", LINES)
def test_a_run_says_its_rate_and_who_chose_it(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(tmp_path, monkeypatch, *DIGITS, *words.split(), "run_dir=run") == 0
    lines = capsys.readouterr().out.splitlines()
    (said,) = (line for line in lines if line.startswith("learning rate"))
    assert said == LINES[words]
    tuned = BY[words] in (None, "other_data")
    command = "choose one with: python -m fedem_lightning -m +tune=learning_rate +experiment=digits"
    assert any(line.startswith(command) for line in lines) == tuned
    (found,) = json.loads((tmp_path / "run" / "results.json").read_text())["learning_rates"]
    assert found["chosen_by"] == BY[words]
    assert f"{found['rate']:g} of {found['of']}" in said


def test_an_adaptation_has_a_rate_of_its_own_and_mocha_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    small = ["dataset.n_clients=4", "dataset.test_size=9", *DIGITS[1:]]
    assert call(tmp_path, monkeypatch, "algorithm=fedavg_plus", "run_dir=plus", *small) == 0
    assert "; 0.316 of finetune, chosen for dataset=synthetic, backbone=linear" in capsys.readouterr().out
    words = ["algorithm=fedavg_plus", "backbone=mlp", "algorithm.client_optimizer.lr=0.3"]
    assert call(tmp_path, monkeypatch, *words, "run_dir=half", *small) == 0
    lines = capsys.readouterr().out.splitlines()
    (said,) = (line for line in lines if line.startswith("learning rate"))
    (command,) = (line for line in lines if line.startswith("choose one with: "))
    assert "0.3 of fedavg_plus, set by you; 0.1 of finetune, the default, nobody chose it for" in said
    assert command.endswith(" 'adaptation.client_optimizer.lr=tag(log,interval(0.001,10))'")
    assert call(tmp_path, monkeypatch, "algorithm=mocha", "run_dir=mocha", *small) == 0
    assert not [line for line in capsys.readouterr().out.splitlines() if line.startswith("learning rate")]
    assert json.loads((tmp_path / "mocha" / "results.json").read_text())["learning_rates"] == []


@pytest.mark.filterwarnings("ignore")  # of optuna and its sweeper
def test_no_rate_is_tuned_without_validation_samples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The sweep ends before its first training; a run does not recommend it."""
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "d.npz", x=rng.normal(size=(40, 3)), y=np.arange(40) % 2, client=np.arange(40) % 4)
    words = ["dataset=npz", "dataset.path=d.npz", "dataset.fractions=[0.8,0.0,0.2]", *DIGITS[1:], "algorithm=fedavg"]
    line = "no validation samples to choose one by: they come from dataset.fractions, or a split of the data's own"
    assert call(tmp_path, monkeypatch, *words, "run_dir=run") == 0
    (said,) = (row for row in capsys.readouterr().out.splitlines() if row.startswith("learning rate"))
    assert said.endswith(f"; {line}")
    assert call(tmp_path, monkeypatch, "-m", "+tune=learning_rate", *words, "run_dir=tuned") == 2
    output = capsys.readouterr()
    assert output.err.endswith(f"+tune: {line}\n")
    assert "round 1" not in output.out
    assert not (tmp_path / "tuned").exists()


WITHOUT_DATA = {  # what an experiment's data lack: domains, two classes, true groups
    "digits": {"agnostic", "mocha", "oracle"},
    "digits_concept_shift": {"agnostic", "mocha"},
    "baselines_synthetic": {"agnostic", "mocha", "oracle"},
}
AT_CHANCE = {"digits": 0.1, "digits_concept_shift": 0.1, "baselines_synthetic": 0.5}
SMALLER = {
    "baselines_synthetic": ["dataset.n_clients=20", "dataset.test_size=20"],
    "mapper": ["adaptation.lambdas=[0.0,0.5]"],  # of eleven, each a training
}


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("experiment", AT_CHANCE)
def test_no_method_of_a_small_experiment_ends_at_chance(
    experiment: str, algorithm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if algorithm in WITHOUT_DATA[experiment]:
        pytest.skip("the experiment's data are not for this method")
    smaller = SMALLER.get(experiment, []) + SMALLER.get(algorithm, [])
    quiet = ["trainer.accelerator=cpu", "trainer.enable_progress_bar=false", "trainer.check_val_every_n_epoch=200"]
    words = [f"+experiment={experiment}", f"algorithm={algorithm}", *smaller, *quiet, "run_dir=run"]
    assert call(tmp_path, monkeypatch, *words) == 0
    scores = json.loads((tmp_path / "run" / "results.json").read_text())["val"]["accuracy"]
    assert scores["weighted"] > AT_CHANCE[experiment] + 0.05
