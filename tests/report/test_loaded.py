"""`fedem_lightning.report.load`: what the report's command prints and draws, from Python."""

import json
import shlex
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd
import pytest
from matplotlib.figure import Figure

from fedem_lightning import UserError
from fedem_lightning.report import LoadedRuns, load
from fedem_lightning.report.command import print_sweep
from fedem_lightning.run.summary import print_result
from helpers.report_runs import make_sampled_run
from helpers.runs import make_run


def two_methods(folder: Path, seeds: int = 2) -> LoadedRuns:
    for seed in range(seeds):
        make_run(folder / f"em-{seed}", 0.8 + seed / 100, "fedem", seed=seed)
        make_run(folder / f"avg-{seed}", 0.7 + seed**2 / 200, "fedavg", seed=seed)
    return load(folder)


def test_the_table_has_means_and_deviations_over_seeds(tmp_path: Path) -> None:
    table = two_methods(tmp_path).table()
    assert table.index.names == ["data", "method"]
    assert sorted(table.index) == [("synthetic", "FedAvg"), ("synthetic", "FedEM")]
    row = table.xs("FedEM", level="method").iloc[0].to_dict()
    assert row["test, weighted"] == pytest.approx(80.5)
    assert row["test, weighted std"] == pytest.approx(0.5 * 2**0.5)
    assert row["seeds"] == 2


@pytest.mark.parametrize(
    ("seeds", "sure"),
    [
        (1, "but they share only one seed, and another seed may reverse it."),
        (2, "over 2 seeds): a test of all methods needs 5 common seeds."),
        (5, " ahead of FedAvg, beyond chance."),
    ],
)
def test_the_summary_says_who_leads_and_whether_it_is_sure(seeds: int, sure: str, tmp_path: Path) -> None:
    runs = two_methods(tmp_path, seeds)
    assert "FedEM is best with a test accuracy of 8" in runs.summary()
    assert " ahead of FedAvg" in runs.summary()
    assert sure in runs.summary()
    assert repr(runs) == f"{2 * seeds} runs\n{runs.summary()}"


def test_a_single_method_has_nobody_to_lead(tmp_path: Path) -> None:
    make_run(tmp_path, 0.8, "fedem")
    assert "ahead" not in load(tmp_path).summary()


def test_every_figure_is_new_or_drawn_where_it_is_wanted(tmp_path: Path) -> None:
    for name, rate in (("fedem", 0.1), ("fedem", 0.3), ("fedavg", 0.1)):
        folder = tmp_path / f"{name}-{rate}"
        make_run(folder, 0.7, name, config={"algorithm.client_optimizer.lr": rate})
    plot = load(tmp_path).plot
    for draw in (plot.curves, plot.clients, lambda **where: plot.sweep("algorithm.client_optimizer.lr", **where)):
        assert isinstance(draw(), Figure)
        figure, (left, right) = plt.subplots(1, 2)
        assert draw(ax=right) is figure
        assert right.lines
        assert right.get_title()
        assert not left.lines
        plt.close(figure)


def test_methods_are_compared_client_by_client(tmp_path: Path) -> None:
    make_sampled_run(tmp_path / "a", [[True, True, False], [True, True, True]], "fedem")
    make_sampled_run(tmp_path / "b", [[True, False, False], [True, True, False]], "fedavg")
    runs = load([tmp_path / "a", tmp_path / "b"])
    table = runs.compare("fedem", "fedavg")
    assert isinstance(table, pd.DataFrame)
    assert (table["gain"] > 0).all()
    figure, ax = plt.subplots()
    assert runs.plot.compare("fedem", "fedavg", ax=ax) is figure
    plt.close(figure)
    with pytest.raises(UserError, match="compare: no row 'fedxx'; the nearest is"):
        runs.compare("fedxx", "fedavg")


def test_a_damaged_run_is_left_out(tmp_path: Path) -> None:
    make_run(tmp_path / "good", 0.8, "fedem")
    path = make_run(tmp_path / "bad", 0.7, "fedavg") / "results.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"class_scores": {"imbalanced": True}}))
    runs = load(tmp_path)
    assert repr(runs).startswith("1 run, 1 folder left out\n")
    assert runs.skipped == [f"{tmp_path / 'bad'}: broken: its files hold something unexpected (KeyError)"]


def test_what_cannot_be_drawn_is_one_line(tmp_path: Path) -> None:
    make_run(tmp_path / "a", 0.8, "fedavg")
    plot = load(tmp_path).plot
    with pytest.raises(UserError, match=r"key: algorithm\.local_epochs is not varied; varied: none"):
        plot.sweep("algorithm.local_epochs")
    with pytest.raises(UserError, match="method: no row 'fedex'; the nearest is 'fedavg'"):
        plot.mixture("fedex")
    with pytest.raises(UserError, match="these runs have no mixture weights"):
        plot.mixture("fedavg")
    with pytest.raises(UserError, match="data: expected one of 'synthetic', got 'other'"):
        plot.curves(data="other")
    with pytest.raises(UserError, match=r"no complete run: .*empty: no run in it or below"):
        load(_empty(tmp_path / "empty"))


def test_a_sweep_ends_with_its_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    print_sweep(tmp_path / "without a job")
    assert capsys.readouterr().out == ""
    two_methods(tmp_path / "my sweep")
    print_sweep(tmp_path / "my sweep")
    out = capsys.readouterr().out
    assert "FedEM is best" in out
    command = out.splitlines()[-1].partition("python -m fedem_lightning.report ")[2]
    assert shlex.split(command) == [str(tmp_path / "my sweep"), "--out", str(tmp_path / "my sweep" / "report")]


@pytest.mark.parametrize(
    ("algorithm", "line"),
    [("fedem", "FedEM: test accuracy 80.0 %, worst tenth of the clients "), ("mine", "mine: test accuracy 80.0 %")],
)
def test_a_run_ends_with_its_result(
    algorithm: str, line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = json.loads((make_run(tmp_path, 0.8, algorithm) / "results.json").read_text())
    print_result(results, "FedEM" if algorithm == "fedem" else None)
    assert capsys.readouterr().out.startswith(line)
    results["test"]["accuracy"]["weighted"] = None
    print_result(results)
    assert "test accuracy not finite" in capsys.readouterr().out
    print_result({**results, "test": {}, "val": {}, "train": {}})
    assert capsys.readouterr().out == ""


def _empty(folder: Path) -> Path:
    folder.mkdir()
    return folder
