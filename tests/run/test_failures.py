"""Errors that nobody foresaw: one line and exit code 1, the trace on request; in a sweep, in another command too."""

import re
from pathlib import Path
from typing import Any

import pytest
from hydra.errors import InstantiationException
from hydra.utils import instantiate
from omegaconf import OmegaConf

from fedem_lightning import FedAvg, UserError
from fedem_lightning.report import __main__ as report
from fedem_lightning.run.commands import user_message
from helpers.commands import TINY, call

SHORT = [*TINY, "trainer.max_epochs=1", "trainer.check_val_every_n_epoch=1", "algorithm=fedavg"]
LINE = r"KeyError: 'line one\nline two'; HYDRA_FULL_ERROR=1 shows the trace"


def break_round(monkeypatch: pytest.MonkeyPatch, seed: int | None = None) -> None:
    """Rounds fail, those of one seed or all."""
    step = FedAvg.training_step

    def broken(model: FedAvg, *arguments: Any) -> None:
        if seed in (None, model.seed):
            raise KeyError("line one\nline two")
        step(model, *arguments)

    monkeypatch.setattr(FedAvg, "training_step", broken)


@pytest.mark.parametrize("full", ["0", "1"])
def test_a_failed_first_round_is_one_line_and_leaves_nothing(
    full: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    break_round(monkeypatch)
    assert call(tmp_path, monkeypatch, *SHORT, "run_dir=run", HYDRA_FULL_ERROR=full) == 1
    trace, _, line = capsys.readouterr().err.rpartition("error: ")
    assert line == f"{LINE}\n"
    assert bool(re.search(r'line \d+, in broken\n.*raise KeyError\("line one', trace, re.S)) == (full == "1")
    assert trace == "" or full == "1"
    assert list(tmp_path.iterdir()) == []


def test_a_client_that_raises_is_one_line_and_no_half_round_is_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    update = FedAvg.client_update

    def broken(model: FedAvg, batch: Any, round_: int) -> Any:
        if round_ == 1:
            raise KeyError("why")
        return update(model, batch, round_)

    monkeypatch.setattr(FedAvg, "client_update", broken)
    assert call(tmp_path, monkeypatch, *SHORT, "trainer.max_epochs=3", "engine=loop", "run_dir=run") == 2
    line = r"error: one of the clients \w+ to \w+ failed in the update of round 2: KeyError: 'why'\n"
    assert re.fullmatch(line, capsys.readouterr().err)
    assert not list(tmp_path.rglob("*.ckpt"))


@pytest.mark.parametrize(
    ("key", "part", "message"),
    [
        ("backbone", "Categorical, in_shape: [2], n_outputs: 2", "in_shape: Categorical is for samples without"),
    ],
)
def test_a_constructor_names_its_arguments_and_a_command_their_keys(key: str, part: str, message: str) -> None:
    config = OmegaConf.create({})
    OmegaConf.update(config, key, OmegaConf.create(f"{{_target_: fedem_lightning.{part}}}"))
    with pytest.raises(InstantiationException) as caught:
        instantiate(OmegaConf.select(config, key))
    assert re.match(message.format(key=""), str(caught.value.__cause__))
    assert re.match(f"{key}." + message.format(key=f"{key}."), user_message(caught.value) or "")


def test_a_sweep_runs_its_other_jobs_and_ends_with_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    break_round(monkeypatch, seed=0)
    assert call(tmp_path, monkeypatch, "-m", *SHORT, "seed=0,1", "run_dir=sweep") == 1
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("job 0_")
    assert lines[0].endswith(f" failed: {LINE}")
    assert lines[-1] == f"error: {LINE}"
    assert "Traceback" not in "\n".join(lines)
    assert len(list(tmp_path.glob("sweep/1_*/results.json"))) == 1


def test_a_refused_sweep_leaves_nothing_and_names_each_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for place in ([], ["run_dir=a/sweep"]):
        assert call(tmp_path, monkeypatch, "-m", *TINY, "dataset.one_hot=no,off", *place) == 2
        lines = capsys.readouterr().err.splitlines()
        assert re.match(r"job 0_\S+ failed: dataset.one_hot: expected a valid boolean, got 'no'", lines[0])
        assert re.match(r"job 1_\S+ failed: dataset.one_hot: expected a valid boolean, got 'off'", lines[1])
        assert lines[-1] == "error: dataset.one_hot: expected a valid boolean, got 'no'"
        assert list(tmp_path.iterdir()) == []


def test_other_commands_fail_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(chosen: Any) -> None:
        raise error

    monkeypatch.setattr("fedem_lightning.report.command.make_report", broken)
    for error, code in ((KeyError("x"), 1), (UserError("DIR: no runs"), 2), (OSError("no\nspace"), 2)):
        with pytest.raises(SystemExit, match=str(code)):
            report.main([str(tmp_path)])
        err = capsys.readouterr().err
        more = "; HYDRA_FULL_ERROR=1 shows the trace" if code == 1 else ""
        assert err == f"error: {type(error).__name__ + ': ' if code == 1 else ''}{' '.join(str(error).split())}{more}\n"


def test_what_the_system_refuses_is_one_line_with_the_file() -> None:
    with pytest.raises(OSError, match="too long") as caught:
        Path("x" * 5000).stat()
    line = user_message(caught.value) or ""
    assert line.endswith(": the system refuses it (File name too long)")
    assert len(line) < 1100
