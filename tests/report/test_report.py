"""`python -m fedem_lightning.report`: figures worked out by hand from made-up runs, then real ones."""

import json
import math
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.container import ErrorbarContainer

from fedem_lightning import UserError
from fedem_lightning.report import Papers, command, find_runs, group_runs
from fedem_lightning.report.curves import curves
from fedem_lightning.report.diagnostic_tables import entropy
from fedem_lightning.report.drawing import DrawnRows, looks
from fedem_lightning.report.score_figures import families, sweep, varied_numbers
from fedem_lightning.report.scores_table import scores_table
from helpers.commands import call
from helpers.report_runs import report
from helpers.runs import leave_undrawn, make_run, sums


def row_of(out: str, label: str) -> str:
    return next(" ".join(line.split()) for line in out.splitlines() if line.strip().startswith(label))


def saved(capsys: pytest.CaptureFixture[str], folder: Path, *options: str, drawn: bool = False) -> pd.DataFrame:
    """The tidy table of all runs below `folder`; drawing takes longer than all else."""
    with pytest.MonkeyPatch.context() as patched:
        if not drawn:
            patched.setattr(command, "report_figures", lambda *_: ({}, []))
        out, err, code = report(capsys, folder, "--out", folder / "report", *options)
    assert (code, err) == (0, ""), out
    return pd.read_csv(folder / "report" / "report.csv")


def value(cells: pd.DataFrame, row: str, column: str, what: str = "value") -> Any:
    found = cells[(cells.row == row) & (cells.column == column)]
    assert len(found) <= 1
    return found[what].iloc[0] if len(found) else None


def test_seeds_become_mean_and_deviation_beside_the_papers_numbers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for seed, test in enumerate((0.68, 0.69, 0.70)):
        config = {"trainer.devices": seed + 1}
        make_run(tmp_path / "sweep" / str(seed), test, seed=seed, config=config, megabytes=600.0, **PAPER)
    make_run(tmp_path / "deep" / "er" / "one", 0.75, "fedem", megabytes=600.0, **PAPER)
    out, err, code = report(capsys, tmp_path)
    assert (code, err) == (0, "")
    # of 68, 69, 70: mean 69, deviation 1 with ddof 1; Table 2 has 68.2 / 58.9; 2 of 600 MB for each client
    expected = (
        "fedavg 3 200 69.0 ± 1.00 70.0 ± 1.00 71.0 ± 1.00 59.0 ± 1.00 49.0 ± 1.00 68.2 +0.8 58.9 90.0 ± 0.00 2 0.5 -"
    )
    assert row_of(out, "fedavg") == expected
    assert row_of(out, "fedem") == "fedem 1 200 75.0 76.0 77.0 65.0 55.0 74.7 +0.3 66.7 90.0 2 0.5 0"
    assert "paper: FedEM, table 2, beside fedavg, fedem" in out
    assert "unseen" not in out  # nothing fills that column


def test_files_and_figures_are_written_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for seed in (0, 1):
        make_run(tmp_path / f"em{seed}", 0.7 + seed / 10, "fedem", seed, pi=[[1, 0], [0.5, 0.5]], **PAPER)
    cells = saved(capsys, tmp_path, drawn=True)
    assert value(cells, "fedem", "weighted") == pytest.approx(75)
    assert value(cells, "fedem", "weighted", "std") == pytest.approx(10 / math.sqrt(2))
    assert value(cells, "fedem", "weighted", "seeds") == 2
    assert value(cells, "fedem", "paper_weighted", "source") == "FedEM, table 2"
    names = {p.name for p in (tmp_path / "report").iterdir()}
    drawn = ("by_round", "by_megabytes", "fairness", "FedEM_weights", "entropy")
    figures = {f"synthetic_{name}.{kind}" for name in drawn for kind in ("png", "svg", "pdf")}
    figures |= {f"synthetic_{name}.csv" for name in drawn}
    assert names == {"report.html", "report.md", "report.csv", "report_wide.csv", "report.tex"} | figures
    text = (tmp_path / "report" / "report.md").read_text()
    assert "| fedem | 2 | 200 | 75.0 ± 7.07 |" in text
    assert "![synthetic_fairness](synthetic_fairness.png)" in text
    before = {p: p.read_bytes() for p in (tmp_path / "report").iterdir()}
    out, err, code = report(capsys, tmp_path, "--out", tmp_path / "report")
    assert (out, code) == ("", 2)
    assert err.startswith("error: --out: ")
    assert err.count("\n") == 1
    assert {p: p.read_bytes() for p in before} == before
    out, _, code = report(capsys, tmp_path, "--out", tmp_path / "report", "--force")
    assert code == 0
    listed = "report.html, report.md, report.csv, report_wide.csv, report.tex, and 5 figures as SVG, PNG and PDF"
    assert out.splitlines()[-1] == f"written: {tmp_path / 'report'} ({listed})"
    (tmp_path / "figures").mkdir()
    (tmp_path / "figures" / "synthetic_fairness.png").touch()  # an unknown file of the same name stops it too
    assert report(capsys, tmp_path, "--out", tmp_path / "figures")[2] == 2
    assert [p.name for p in (tmp_path / "figures").iterdir()] == ["synthetic_fairness.png"]


def test_unfinished_and_broken_runs_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_run(tmp_path / "good", 0.7)
    (make_run(tmp_path / "unfinished") / "results.json").unlink()
    (make_run(tmp_path / "torn") / "results.json").write_text('{"algorithm": "fed')
    make_run(tmp_path / "keyless", seconds=None)
    make_run(tmp_path / "sumless", train={"accuracy": {"weighted": 1}})
    make_run(tmp_path / "odd", train={"accuracy": 0.5})
    (make_run(tmp_path / "listed") / "results.json").write_text("[1]")
    (make_run(tmp_path / "configless") / ".hydra" / "config.yaml").write_text("a: [1")
    cells = saved(capsys, tmp_path)
    assert value(cells, "fedavg", "seeds") == 1
    text = (tmp_path / "report" / "report.md").read_text()
    reasons = {
        "unfinished": "unfinished: no results.json; round 4 of 4, test accuracy 70",
        "torn": "broken: results.json is unreadable",
        "keyless": "broken: results.json: seconds: Input should be a valid dictionary",
        "sumless": "broken: results.json: train.accuracy.pooled: Field required",
        "odd": "broken: results.json: train.accuracy: Input should be ",
        "listed": "broken: results.json: : Input should be ",
        "configless": "broken: .hydra/config.yaml is unreadable",
    }
    out = report(capsys, tmp_path)[0]
    for name, reason in reasons.items():
        assert f"{tmp_path / name}: {reason}" in text
        assert f"{tmp_path / name}: {reason}" in out


def test_mistakes_get_one_line_and_code_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    run = make_run(tmp_path / "run")
    wrong: dict[str, list[Any]] = {
        "no such folder": [tmp_path / "none"],
        "no run in it or below": [tmp_path / "empty"],
        "there is no fedem-table-9": [run, "--table", "fedem-table-9"],
        "--force: expected --out": [run, "--force"],
        "the following arguments are required: DIR": [],
        "unrecognized arguments: --tabel": [run, "--tabel"],
        "is no folder": [run, "--out", run / "results.json"],
    }
    for message, arguments in wrong.items():
        _, err, code = report(capsys, *arguments)
        assert code == 2
        assert err.startswith("error: ")
        assert err.count("\n") == 1
        assert message in err
    (run / "results.json").unlink()
    out, err, code = report(capsys, run)
    assert code == 2
    assert "unfinished: no results.json" in out
    assert err == f"error: no complete run: {run}: unfinished: no results.json; round 4 of 4, test accuracy 70\n"


def test_of_two_runs_with_one_seed_the_newest_counts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_run(tmp_path / "a", 0.7, environment={"date": "2025-02-01"})
    make_run(tmp_path / "b", 0.6, environment={"date": "2025-01-01"})
    out = report(capsys, tmp_path)[0]
    assert row_of(out, "fedavg").startswith("fedavg 1 4 70.0")
    line = f"{tmp_path / 'b'}: left out, {tmp_path / 'a'} repeats fedavg, seed 0, and is newer"
    assert line in out
    assert "its data differ" not in out
    make_run(tmp_path / "c", 0.6, environment={"date": "2025-03-01"}, federation_digest="d")
    make_run(tmp_path / "d", 0.6, environment={"date": "2025-04-01"}, federation_digest="e")
    out = report(capsys, tmp_path)[0]
    assert "and is newer, although its data differ (federation_digest)" in out


def test_rows_show_what_differs_and_settings_are_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for lr in (0.01, 1.0):
        make_run(tmp_path / f"lr{lr}", algorithm="fedem", config={"algorithm.client_optimizer.lr": lr})
    make_run(tmp_path / "z", algorithm="zeta")
    make_run(tmp_path / "local", algorithm="local")
    make_run(tmp_path / "sampled", config={"algorithm.participation": 0.2, "dataset.alpha": 0.1})
    settings, _ = group_runs(find_runs([tmp_path])[0])
    assert [s.title for s in settings] == ["synthetic, alpha=0.1", "synthetic, alpha=null"]
    assert [g.label for g in settings[1].groups] == ["local", "fedem (lr=0.01)", "fedem (lr=1.0)", "zeta"]


def test_settings_stand_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    for size in (0.5, 0.25, 100, 30):
        make_run(tmp_path / str(size), config={"dataset.alpha": size})
    settings, _ = group_runs(find_runs([tmp_path])[0])
    assert [s.title for s in settings] == [f"synthetic, alpha={size}" for size in (0.25, 0.5, 30, 100)]


def test_participation_is_shown_wherever_methods_differ_in_it(tmp_path: Path) -> None:
    make_run(tmp_path / "a")
    make_run(tmp_path / "b", seed=1, config={"algorithm.participation": 1, "adaptation": None})  # the same as above
    make_run(tmp_path / "two", algorithm="fedem", config={"algorithm.participation": 2})  # clients, that is all of them
    make_run(tmp_path / "c", algorithm="local", config={"algorithm.participation": 0.5})
    (setting,), _ = group_runs(find_runs([tmp_path])[0])
    labels = ["local (participation=0.5)", "fedavg (participation=1.0)", "fedem (participation=2)"]
    assert [g.label for g in setting.groups] == labels
    assert [run.participation for g in setting.groups for run in g.runs] == [0.5, 1.0, 1.0, 1.0]


def test_every_papers_number_is_there() -> None:
    numbers = Papers().numbers
    assert numbers.groupby("name").size().to_dict() == {
        "fedem-table-2": 6 * 7 * 2,
        "fedem-table-3": 6 * 3 * 2,
        "fedem-table-6": 6 * 7,
        "fedem-table-7": 6 * 7 * 2,
        "fedem-table-8": 3 * 5,
        "fedem-appendix-j2": 2,
        "fedem-appendix-j3": 2 + 3,
        "three-approaches-table-1": 5,
        "three-approaches-table-2": 12,
        "three-approaches-table-3": 12,
        "user-centric-table-1": 5 + 6 + 6,
    }
    columns = ["name", "dataset", "algorithm", "when", "column"]
    assert not numbers.duplicated(columns).any()
    found = numbers.set_index(columns)["value"]
    assert found["fedem-table-2", "shakespeare", "fedavg_plus", "", "bottom_decile"] == 25.5
    assert found["fedem-table-3", "cifar10", "fedem", "", "unseen_train"] == 90.7
    assert found["fedem-table-6", "cifar10", "d_fedem", "", "average"] == 77.0
    assert found["fedem-table-7", "femnist", "fedem", "", "average"] == 74.0
    assert found["user-centric-table-1", "emnist", "oracle", "dataset.shift=rotation", "worst"] == 77.4
    assert found["three-approaches-table-2", "emnist", "hypcluster+dapper", "algorithm.n_components=2", "mean"] == 90.3
    # checksums by hand: FedEM's averages of Table 2; FedEM's row of deviations in Table 8
    table = numbers[(numbers.name == "fedem-table-2") & (numbers.column == "average")]
    assert table[table.algorithm == "fedem"].value.sum() == pytest.approx(79.9 + 83.5 + 84.3 + 44.1 + 46.7 + 74.7)
    table = numbers[(numbers.name == "fedem-table-8") & (numbers.algorithm == "fedem")]
    assert table["std"].tolist() == [0.13, 0.23, 0.01]


PAPER: dict[str, Any] = {"n_clients": 300, "rounds": 200}
"""The clients and rounds of FedEM's synthetic runs."""
UNSEEN = {"train": {"accuracy": sums(0.8)}, "test": {"accuracy": sums(0.72)}}
FITTING: dict[str, tuple[dict[str, Any], str, str, float, str]] = {
    "d_fedem": ({"algorithm": "d_fedem"}, "d_fedem", "paper_weighted", 73.8, "FedEM, table 6"),
    "mocha": ({"algorithm": "mocha"}, "mocha", "paper_weighted", 73.4, "FedEM, appendix J.2"),
    "sampled": ({"config": {"algorithm.participation": 0.2}}, "fedavg", "paper_weighted", 68.2, "FedEM, table 8"),
    "unseen": ({"unseen": UNSEEN}, "fedavg", "paper_unseen", 68.6, "FedEM, table 3"),
    "tuned": ({"config": {"adaptation._target_": "x.Finetune"}}, "fedavg+finetune", "paper_weighted", 68.9, "FedEM, t"),
    "unseen and sampled": (
        {"dataset": "cifar100", "unseen": UNSEEN, "config": {"algorithm.participation": 0.2}},
        "fedavg",
        "paper_unseen",
        38.9,
        "FedEM, appendix J.3",
    ),
}


@pytest.mark.parametrize("name", FITTING)
def test_each_run_gets_the_papers_table_that_fits(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options, row, column, expected, source = FITTING[name]
    here: dict[str, Any] = {"n_clients": 100, "rounds": 200} if options.get("dataset") == "cifar100" else PAPER
    here = here | ({"rounds": 1200} if name == "sampled" else {})
    for other in ({"n_clients": 20}, {"rounds": 10}):  # another federation, another training: no number
        if source != "FedEM, appendix J.3" or "rounds" not in other:  # where the paper does not say the rounds
            make_run(tmp_path / "other", 0.7, **{**options, **here, **other})
            assert value(saved(capsys, tmp_path, "--force"), row, column) is None
            shutil.rmtree(tmp_path / "other")
    make_run(tmp_path / "run", 0.7, **options, **here)
    cells = saved(capsys, tmp_path, "--force")
    assert value(cells, row, column) == expected
    assert value(cells, row, column, "source").startswith(source)
    assert (value(cells, row, "paper_weighted") is None) == ("unseen" in options)
    if "unseen" in options:
        assert value(cells, row, "difference_unseen") == pytest.approx(72 - expected)


def test_the_main_method_must_be_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, accuracy in (("fedem", 0.7), ("fedavg", 0.8)):
        make_run(tmp_path / name, accuracy, name)
    out, err, code = report(capsys, tmp_path, "--main", "fedem")
    assert (err, code) == ("", 0)
    assert "FedEM has a test accuracy of 70.0 % (-10.0 against FedAvg): number 2 of 2." in out
    expected = ("", "error: --main: expected one of fedavg, fedem, got 'fedxx'\n", 2)
    assert report(capsys, tmp_path, "--main", "fedxx") == expected


def test_a_table_can_be_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_run(tmp_path / "7", 0.7, "fedem")
    cells = saved(capsys, tmp_path, "--table", "fedem-table-7")
    assert value(cells, "fedem", "paper_weighted") == 73.2
    assert value(cells, "fedem", "paper_train") == 74.7
    folder = tmp_path / "user"
    make_run(folder / "u", 0.7, "user_centric", dataset="emnist", config={"dataset.shift": "rotation"})
    make_run(folder / "v", 0.7, "user_centric", dataset="emnist", config={"dataset.shift": None})
    out = " ".join(report(capsys, folder, "--table", "user-centric-table-1")[0].split())
    assert "76.4 -26.4" in out  # worst user: 70 - 20 - 76.4
    assert "73.2 -23.2" in out


def test_hidden_groups_and_lenet_belong_to_the_user_centric_paper(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_run(tmp_path / "f", 0.7, "fedavg", dataset="cifar10", config={"dataset.shift": "labels"}, n_clients=20)
    lenet = {"dataset.shift": None, "backbone._target_": "fedem_lightning.LeNet5"}
    make_run(tmp_path / "g", 0.7, "fedavg", dataset="emnist", config=lenet, n_clients=20)
    out = " ".join(report(capsys, tmp_path)[0].split())
    assert "19.6 +30.4" in out  # worst user: 70 - 20 - 19.6
    assert "68.9 -18.9" in out
    assert "FedEM" not in out


def test_a_density_and_a_regression_show_their_own_scores(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = {"algorithm.n_components": 3, "dataset.n_samples": 100}
    make_run(tmp_path / "q", 3.0, "hypcluster", dataset="density", measure="loss", config=config)
    results = json.loads((tmp_path / "q" / "results.json").read_text())
    for split in ("train", "test"):
        results[split] = {"loss": sums(3.0)}
    (tmp_path / "q" / "results.json").write_text(json.dumps(results))
    make_run(tmp_path / "mse", 0.123456, dataset="npz", measure="mse")
    cells = saved(capsys, tmp_path, "--table", "three-approaches-table-1")
    assert value(cells, "hypcluster", "difference_mean") == pytest.approx(3.02 - 2.9)
    assert value(cells, "fedavg", "weighted") == 0.123456
    assert row_of(report(capsys, tmp_path / "mse")[0], "fedavg").startswith("fedavg 1 4 0.1235")


def test_scores_that_are_not_finite_are_not_averaged_away(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_run(tmp_path / "a", 0.5, dataset="npz", measure="mse")
    make_run(tmp_path / "b", None, dataset="npz", measure="mse", seed=1)
    assert row_of(report(capsys, tmp_path)[0], "fedavg").startswith("fedavg 2 4 - - - -")


def test_entropy_recovery_and_dead_components(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert entropy(np.array([[1.0, 0.0], [0.5, 0.5]])) == pytest.approx(math.log(2) / 2)
    assert math.isnan(entropy(np.empty((0, 2))))
    recovery = {"pi_cosine_distance": 0.02, "group_accuracy": 0.5, "match": [0, 1, 2]}
    run = make_run(tmp_path / "run", 0.7, "fedem", dataset="cifar100", recovery=recovery, n_clients=100)
    clients = pd.DataFrame({"population": ["seen", "seen", "unseen"], "test_accuracy": [0.5, 0.6, 0.7]})
    # the third component's mean, 0.015, is below 0.05 / 3 = 0.0167; the unseen client does not count
    clients[["pi_0", "pi_1", "pi_2"]] = [[0.5, 0.47, 0.03], [1.0, 0.0, 0.0], [1 / 3, 1 / 3, 1 / 3]]
    clients.to_parquet(run / "clients.parquet")
    make_run(tmp_path / "avg")
    cells = saved(capsys, tmp_path)
    components = cells[cells.table == "components"]
    assert set(components.row) == {"fedem"}
    first = -(0.5 * math.log(0.5) + 0.47 * math.log(0.47) + 0.03 * math.log(0.03))
    assert value(components, "fedem", "entropy") == pytest.approx(first / 2)
    assert value(components, "fedem", "unseen_entropy") == pytest.approx(math.log(3))
    assert value(components, "fedem", "paper_entropy") == 0.27
    assert value(components, "fedem", "group_accuracy") == 50
    assert value(components, "fedem", "smallest") == pytest.approx(0.015)
    assert value(components, "fedem", "dead") == 1
    assert f"dead: fedem, seed 0, component 2 (mean weight below 0.05 / 3) in {run}" in report(capsys, tmp_path)[0]


def test_groups_found_stand_beside_components(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for seed, (index, found) in enumerate(((0.5, 3), (1.0, 4))):
        recovery = {"adjusted_rand_index": index, "groups_found": found}
        make_run(tmp_path / str(seed), 0.7, "user_centric", seed, recovery=recovery)
    make_run(tmp_path / "avg")
    cells = saved(capsys, tmp_path)
    components = cells[cells.table == "components"]
    assert set(components.row) == {"user_centric"}
    assert value(components, "user_centric", "adjusted_rand_index") == pytest.approx(0.75)
    assert value(components, "user_centric", "groups_found") == pytest.approx(3.5)
    assert "| user_centric | 2 | 0.75 ± 0.35 | 3.5 ± 0.71 |" in (tmp_path / "report" / "report.md").read_text()


def test_equal_communication_takes_the_last_round_within_the_budget(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_run(tmp_path / "avg", 0.68, megabytes=600.0, **PAPER)
    make_run(tmp_path / "em", 0.75, "fedem", megabytes=900.0, **PAPER)  # round 2, at 1.5 of 2 MB a client, was scored
    make_run(tmp_path / "local", 0.6, "local", megabytes=0.0, **PAPER)  # sends nothing: no budget, and always within it
    make_run(tmp_path / "apfl", 0.6, "apfl", megabytes=1800.0, **PAPER)  # round 2 is at 3 MB
    cells = saved(capsys, tmp_path, "--equal-communication")
    text = (tmp_path / "report" / "report.md").read_text()
    assert "budget: 2 MB a client, up and down, all that fedavg used" in text
    assert "apfl: no evaluated round within the budget (seed 0)" in text
    rounds = {row: value(cells, row, "rounds") for row in ("fedavg", "fedem", "local", "apfl")}
    assert rounds == {"fedavg": 4, "fedem": 2, "local": 4, "apfl": None}
    assert value(cells, "fedem", "weighted") == pytest.approx(65)
    assert value(cells, "fedem", "bottom_decile") == pytest.approx(30)
    assert value(cells, "fedem", "megabytes") == pytest.approx(1.5)
    assert value(cells, "fedem", "paper_weighted", "source") == "FedEM, table 7"


def test_equal_time_takes_the_last_round_within_the_budget(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_run(tmp_path / "avg", 0.68, times={"wireless": 40.0, "wired": 8.0})
    make_run(tmp_path / "em", 0.75, "fedem", times={"wireless": 80.0, "wired": 12.0})
    make_run(tmp_path / "local", 0.6, "local", megabytes=0.0, times={"wireless": 4.0, "wired": 4.0})  # sets no limit
    make_run(tmp_path / "untimed", 0.6, "apfl")
    cells = saved(capsys, tmp_path, "--equal-time", "wireless", drawn=True)
    text = (tmp_path / "report" / "report.md").read_text()
    assert "budget: 40 of simulated time, all that fedavg used" in text
    assert "apfl: no evaluated round within the budget (seed 0)" in text
    rounds = {row: value(cells, row, "rounds") for row in ("fedavg", "fedem", "local", "apfl")}
    assert rounds == {"fedavg": 4, "fedem": 2, "local": 4, "apfl": None}
    times = {row: value(cells, row, "time_wireless") for row in ("fedavg", "fedem", "local")}
    assert times == {"fedavg": 40, "fedem": 40, "local": 4}
    assert value(cells, "fedem", "weighted") == pytest.approx(65)
    assert value(cells, "fedem", "paper_weighted") is None
    made = {p.name for p in (tmp_path / "report").glob("synthetic_by_*.png")}
    costs = ("round", "megabytes", "air_megabytes", "time_wired", "time_wireless")
    assert made == {f"synthetic_by_{cost}.png" for cost in costs}
    assert (
        value(saved(capsys, tmp_path, "--equal-time", "wired", "--force", drawn=True), "fedem", "rounds") == 2
    )  # 6 of 8
    wrong: dict[str, list[str | Path]] = {
        "--equal-time walkie: expected one of wired, wireless": [tmp_path, "--equal-time", "walkie"],
        "--equal-time x: no run was timed (docs/communication.md)": [tmp_path / "untimed", "--equal-time", "x"],
        "not allowed with argument --equal-communication": [tmp_path, "--equal-communication", "--equal-time", "wired"],
        "so leave out --equal-time": [tmp_path, "--choose", "algorithm.x", "--equal-time", "wired"],
    }
    for message, arguments in wrong.items():
        _, err, code = report(capsys, *arguments)
        assert (code, err.count("\n")) == (2, 1)
        assert message in err


def test_curves_by_time_are_drawn_where_they_are_known(tmp_path: Path) -> None:
    make_run(tmp_path / "avg", 0.68, times={"wireless": 40.0})
    make_run(tmp_path / "em", 0.75, "fedem")
    (setting,), _ = group_runs(find_runs([tmp_path])[0])
    rows = DrawnRows(setting, looks([setting]))
    drawn = curves(rows, "time_wireless")
    assert drawn is not None
    (axes,) = drawn.figure.axes
    (line,) = axes.lines
    np.testing.assert_allclose(np.array(line.get_data()), [[20, 40], [58, 68]])
    assert axes.get_xscale() == "linear"
    assert curves(rows, "time_none") is None


INTERPOLATE = {"adaptation._target_": "x.Interpolate", "adaptation.objective": "mixture"}
THREE_APPROACHES: dict[str, tuple[str, dict[str, Any], float, float]] = {  # algorithm, config; tables 2 and 3
    "fedavg": ("fedavg", {}, 84.3, 84.1),
    "fedavg+finetune": ("fedavg", {"adaptation._target_": "x.Finetune"}, 90.0, 90.3),
    "fedavg+mapper": ("fedavg", INTERPOLATE, 90.0, 90.2),
    "mapper": ("mapper", INTERPOLATE, 90.0, 90.2),
    "agnostic+dapper": ("agnostic", {"adaptation._target_": "x.Dapper"}, 90.0, 90.2),
    "hypcluster": ("hypcluster", {"algorithm.n_components": 2}, 89.1, 88.8),
    "hypcluster+mapper": ("hypcluster", {"algorithm.n_components": 2, **INTERPOLATE}, 90.1, 89.9),
}


@pytest.mark.parametrize("label", THREE_APPROACHES)
def test_three_approaches_tables_know_their_methods(
    label: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    algorithm, config, seen, unseen = THREE_APPROACHES[label]
    make_run(tmp_path / "run", 0.9, algorithm, dataset="emnist", config=config, unseen=UNSEEN)
    for table, column, expected in ((2, "paper_mean", seen), (3, "paper_unseen_mean", unseen)):
        cells = saved(capsys, tmp_path, "--force", "--table", f"three-approaches-table-{table}")
        assert value(cells, label, column) == expected


def test_the_separate_variant_is_no_mapper(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = {**INTERPOLATE, "adaptation.objective": "own"}
    make_run(tmp_path / "run", 0.9, dataset="emnist", config=config)
    cells = saved(capsys, tmp_path, "--table", "three-approaches-table-2")
    assert value(cells, "fedavg+interpolate", "weighted") == pytest.approx(90)
    assert value(cells, "fedavg+interpolate", "paper_mean") is None


def make_density_run(folder: Path, loss: float, algorithm: str, n_components: int = 1, **options: Any) -> Path:
    """Of the density federation: the loss is what counts, and its minima are known."""
    adapted = "adaptation._target_" in options.get("config", {})
    known: dict[str, Any] = {
        "n_clients": 100,
        "n_served_models": None if adapted else n_components,
        "reference": {"minimum_loss": 1.93},
        "data": {"minimum_loss_by_models": {"1": [3.17, 3.17], "2": [2.78, 2.89], "4": [2.47, 2.47]}},
    }
    config = {"algorithm.n_components": n_components, "dataset.n_samples": 100, **options.pop("config", {})}
    run = make_run(folder, algorithm=algorithm, dataset="density", config=config, **known, **options)
    results = json.loads((run / "results.json").read_text())
    results["test"] = {"loss": sums(loss)}
    (run / "results.json").write_text(json.dumps(results))
    return run


def test_a_known_minimum_stands_beside_the_loss(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_density_run(tmp_path / "avg", 3.3, "fedavg")
    for seed, loss in enumerate((2.9, 3.1)):
        make_density_run(tmp_path / f"hyp{seed}", loss, "hypcluster", 2, seed=seed)
    make_density_run(tmp_path / "tuned", 2.2, "hypcluster", 2, config={"adaptation._target_": "x.Dapper"})
    make_density_run(tmp_path / "few", 3.0, "hypcluster", 4, config={"dataset.n_samples": 10})
    cells = saved(capsys, tmp_path)
    few = cells.setting.str.contains("n_samples=10$")
    hundred = cells[~few]
    ranges = {row: (value(hundred, row, "minimum"), value(hundred, row, "minimum", "high")) for row in set(hundred.row)}
    assert ranges["hypcluster"] == (2.78, 2.89)
    assert [ranges[row][0] for row in ("fedavg", "hypcluster+dapper")] == [3.17, 1.93]
    assert all(math.isnan(ranges[row][1]) for row in ("fedavg", "hypcluster+dapper"))
    assert value(hundred, "hypcluster", "mean") == pytest.approx(3.02)
    assert value(hundred, "hypcluster", "paper_mean") == 3.1  # without being asked
    assert value(cells[few], "hypcluster", "paper_mean") is None  # the paper has 100 samples a client
    assert value(cells[few], "hypcluster", "minimum") == 2.47
    out = " ".join(report(capsys, tmp_path)[0].split())
    assert "3.1 -0.08 2.78-2.89" in out
    assert "loss in nats" in out


def make_scored_run(folder: Path, val: list[float], test: list[float], q: int = 1, seed: int = 0, **more: Any) -> Path:
    """Four clients with 10, 20, 30 training and 1, 1, 2 test samples, the last one unseen; validation losses `val`."""
    run = make_run(folder, 0.7, "hypcluster", seed, config={"algorithm.n_components": q}, unseen=UNSEEN, **more)
    population = ["seen"] * 3 + ["unseen"]
    clients = pd.DataFrame({"id": list("abcd"), "population": population, "n_train": [10, 20, 30, 40]})
    clients["n_val"], clients["n_test"] = np.where(np.isnan(val), 0, 5), [1, 1, 2, 1]
    clients["val_loss"], clients["test_accuracy"], clients["test_loss"], clients["cluster"] = val, test, 1.0, q
    clients.to_parquet(run / "clients.parquet")
    return run


def test_every_client_chooses_by_its_own_validation_loss(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nan = math.nan
    make_scored_run(tmp_path / "q1", [0.5, 0.9, 0.5, 0.9], [0.1, 0.2, 0.3, 0.4], 1)
    make_scored_run(tmp_path / "q2", [0.6, 0.8, 0.5, 0.8], [0.6, 0.7, 0.8, 0.9], 2)
    # seed 1: the first client has no validation sample and goes by all clients' loss, (5 * 0.2 + 5 * 0.3 + ...) / 15
    make_scored_run(tmp_path / "r1", [nan, 0.2, 0.3, 0.1], [0.1, 0.2, 0.3, 0.4], 1, seed=1)
    make_scored_run(tmp_path / "r2", [nan, 0.1, 0.9, 0.9], [0.6, 0.7, 0.8, 0.9], 2, seed=1)
    row = "hypcluster (n_components=best by hold-out)"
    cells = saved(capsys, tmp_path, "--choose", "algorithm.n_components")
    # seed 0 takes q = 1, 2, 1 (the first of equals), unseen 2; seed 1 takes 1, 2, 1, unseen 1
    weighted = 100 * (10 * 0.1 + 20 * 0.7 + 30 * 0.3) / 60
    assert value(cells, row, "weighted") == pytest.approx(weighted)
    assert value(cells, row, "pooled") == pytest.approx(100 * (0.1 + 0.7 + 2 * 0.3) / 4)
    assert value(cells, row, "seeds") == 2
    assert value(cells, row, "unseen") == pytest.approx((90 + 40) / 2)
    assert value(cells, row, "unseen", "std") == pytest.approx(50 / math.sqrt(2))
    assert value(cells, row, "megabytes") == pytest.approx(2 * 4.0 / 2)  # both runs were made
    assert value(cells, "hypcluster (n_components=1)", "weighted") == pytest.approx(70)
    text = (tmp_path / "report" / "report.md").read_text()
    assert "best by hold-out over algorithm.n_components: hypcluster, seed 0, clients took 1 by 2, 2 by 1" in text
    assert "\n4 runs." in text
    labels = [line.split("|")[1].strip() for line in text.splitlines() if line.startswith("| hypcluster")]
    assert labels == ["hypcluster (n_components=1)", "hypcluster (n_components=2)", row]


def test_a_loss_that_is_not_finite_is_never_chosen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_scored_run(tmp_path / "q1", [math.inf, 3.0, math.inf, 3.0], [0.1, 0.2, 0.3, 0.4], 1)
    make_scored_run(tmp_path / "q2", [5.0, 5.0, 5.0, 5.0], [0.6, 0.7, 0.8, 0.9], 2)
    run = make_scored_run(tmp_path / "q3", [0.1] * 4, [1.0] * 4, 3)
    (run / "clients.parquet").unlink()
    cells = saved(capsys, tmp_path, "--choose", "algorithm.n_components")
    row = "hypcluster (n_components=best by hold-out)"
    assert value(cells, row, "pooled") == pytest.approx(100 * (0.6 + 0.2 + 2 * 0.8) / 4)


def test_nothing_to_choose_from_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    numbers = [0.5] * 4
    make_scored_run(tmp_path / "other" / "data", numbers, numbers, 1, federation_digest="a")
    make_scored_run(tmp_path / "other" / "seed", numbers, numbers, 2, seed=1)
    make_scored_run(tmp_path / "other" / "again", numbers, numbers, 3, federation_digest="b")
    for q in (1, 2):
        make_scored_run(tmp_path / "empty" / str(q), [math.nan] * 4, numbers, q)
    wrong = {
        "--choose algorithm.n_components: nothing to choose from": ["other", "--choose", "algorithm.n_components"],
        "--choose algorithm.none: nothing to choose from": ["empty", "--choose", "algorithm.none"],
        "no validation samples to choose by": ["empty", "--choose", "algorithm.n_components"],
        "leave out --equal-communication": ["empty", "--choose", "algorithm.x", "--equal-communication"],
    }
    for message, (folder, *arguments) in wrong.items():
        out, err, code = report(capsys, tmp_path / folder, *arguments)
        assert (out, code) == ("", 2)
        assert err.startswith("error: --choose")
        assert err.count("\n") == 1
        assert message in err


def test_a_sweep_of_the_datas_numbers_gets_a_figure_over_settings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for n in (10, 100, 1000):
        for seed in (0, 1):
            for name, config in (
                ("fedavg", {}),
                ("mapper", INTERPOLATE),
                ("fedavg", {"adaptation._target_": "x.Finetune"}),
            ):
                more: dict[str, Any] = {"seed": seed, "config": {"dataset.n_samples": n, **config}}
                make_density_run(tmp_path / f"{name}{len(config)}-{n}-{seed}", 3 - n / 1000 + seed / 10, name, **more)
    settings, _ = group_runs(find_runs([tmp_path])[0])
    (family,) = families(settings)
    assert varied_numbers(family) == ["dataset.n_samples"]
    drawn = sweep(DrawnRows(family, looks([family])), "dataset.n_samples")
    assert drawn is not None
    (axes,) = drawn.figure.axes
    assert axes.get_xlabel() == "number of samples"
    assert drawn.figure.get_suptitle() == "density: test score by number of samples"
    assert axes.get_ylabel() == "test loss, nats, seen clients, weighted"
    assert axes.get_xscale() == "log"
    assert [c.get_label() for c in axes.containers] == ["FedAvg", "FedAvg + finetune", "Mapper"]
    for container in axes.containers:
        assert isinstance(container, ErrorbarContainer)
        x, y = np.array(container.lines[0].get_data())
        np.testing.assert_allclose(x, [10, 100, 1000])
        np.testing.assert_allclose(y, [3.04, 2.95, 2.05])
        (bars,) = container.lines[2]
        lengths = [segment[1, 1] - segment[0, 1] for segment in bars.get_segments()]
        np.testing.assert_allclose(lengths, 2 * 0.1 / math.sqrt(2))
    saved(capsys, tmp_path, drawn=True)
    assert (tmp_path / "report" / "density_by_n_samples.png").exists()


@pytest.mark.parametrize(
    ("key", "score"),
    [("participation", 0), ("n_components", 0), *((f"personalize_{name}", 1) for name in ("fraction", "steps"))],
)
def test_a_sweep_gets_a_figure(key: str, score: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for n in (0.25, 0.5, 1.0):
        unseen = UNSEEN if score else None
        make_run(tmp_path / str(n), 0.7 + n / 10, "fedem", unseen=unseen, config={f"algorithm.{key}": n})
    saved(capsys, tmp_path, drawn=True)
    made = {p.name for p in (tmp_path / "report").glob("synthetic_by_*.png")}
    assert made == {f"synthetic_by_{name}.png" for name in ("round", "megabytes", key)}


def test_a_sweep_over_steps_of_clients_that_train_is_drawn_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Per-FedAvg's clients personalise before each score, those that train as well."""
    for n in (1, 5):
        make_run(tmp_path / str(n), 0.7 + n / 100, "per_fedavg", config={"algorithm.personalize_steps": n})
    saved(capsys, tmp_path, drawn=True)
    data = pd.read_csv(next((tmp_path / "report").rglob("synthetic_by_personalize_steps.csv")))
    np.testing.assert_allclose(data["mean"], [71, 75])


def test_accuracy_is_drawn_against_streams_and_unicast_is_one_for_each(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for k, test in ((1, 0.5), (4, 0.7), (None, 0.6), ("auto", 0.9)):
        make_run(tmp_path / str(k), test, "user_centric", n_clients=40, config={"algorithm.n_streams": k})
    make_run(tmp_path / "avg")
    (setting,), _ = group_runs(find_runs([tmp_path])[0])
    assert varied_numbers(setting) == ["algorithm.n_streams"]
    drawn = sweep(DrawnRows(setting, looks([setting])), "algorithm.n_streams")
    assert drawn is not None
    (axes,) = drawn.figure.axes
    (container,) = axes.containers
    assert isinstance(container, ErrorbarContainer)
    x, y = np.array(container.lines[0].get_data())
    np.testing.assert_allclose(x, [1, 4, 40])
    np.testing.assert_allclose(y, [50, 70, 60])
    saved(capsys, tmp_path, drawn=True)
    assert (tmp_path / "report" / "synthetic_by_n_streams.png").exists()


def test_curves_keep_their_room_beside_long_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Matplotlib warns, and tests fail, if a legend leaves nothing for the panels."""
    for name in ("first", "second"):
        config = {f"algorithm.a_long_option_{letter}": f"its_{name}_value" for letter in "abcdefghij"}
        make_run(tmp_path / name, config=config)
    saved(capsys, tmp_path, drawn=True)
    assert (tmp_path / "report" / "synthetic_by_round.png").exists()


def test_runs_without_their_tables_stay_in_the_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run(tmp_path / "run")
    (run / "clients.parquet").write_bytes(b"PAR1")
    (run / "metrics.csv").unlink()
    assert value(saved(capsys, tmp_path, drawn=True), "fedavg", "weighted") == pytest.approx(70)
    assert not list((tmp_path / "report").glob("*.png"))


def test_the_library_can_be_used_without_the_command(tmp_path: Path) -> None:
    make_run(tmp_path / "run", 0.682, **PAPER)
    (setting,), notes = group_runs(find_runs([tmp_path, tmp_path / "run"])[0])  # found twice, counted once
    assert notes == []
    ((_, cells),) = scores_table(setting, Papers()).rows
    assert cells["difference_weighted"].value == pytest.approx(0)
    with pytest.raises(UserError, match="expected one of fedem-table-2"):
        Papers("table-2")


CURVES = ("by_round", "by_megabytes", "by_air_megabytes", "by_seconds", "by_time_reliable")
OTHER_CURVES = ("test_loss", "val_accuracy", "val_loss", "train_accuracy", "train_loss")
MIXTURE = ("weights", "weights_by_round", "simplex", "agreement")


def test_real_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = ["dataset.n_clients=6", "dataset.dimension=5", "dataset.test_size=20", "dataset.unseen_fraction=0.34"]
    options += ["trainer.max_epochs=3", "trainer.check_val_every_n_epoch=1", "run_dir=sweep", "network=reliable"]
    with monkeypatch.context() as patched:  # the figures of the runs themselves are tested elsewhere
        leave_undrawn(patched)
        assert (
            call(tmp_path, patched, "-m", "algorithm=fedem,local", "seed=0,1", "initialization=random", *options) == 0
        )
    command = [sys.executable, "-m", "fedem_lightning.report", "sweep", "--out", "report"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=200)
    assert (done.returncode, done.stderr) == (0, "")
    cells = pd.read_csv(tmp_path / "report" / "report.csv")
    found = [json.loads(p.read_text()) for p in tmp_path.glob("sweep/*/results.json")]
    for algorithm in ("fedem", "local"):
        runs = [r for r in found if r["algorithm"] == algorithm]
        assert len(runs) == 2
        tests = [100 * r["test"]["accuracy"]["weighted"] for r in runs]
        scores = cells[cells.table == "scores"]
        assert value(scores, algorithm, "weighted") == pytest.approx(np.mean(tests))
        assert value(scores, algorithm, "weighted", "std") == pytest.approx(np.std(tests, ddof=1))
        unseen = [100 * r["unseen"]["test"]["accuracy"]["weighted"] for r in runs]
        assert value(scores, algorithm, "unseen") == pytest.approx(np.mean(unseen))
    # 3 models of 5 weights and a bias in float32, both ways, 3 rounds
    assert value(cells[cells.table == "scores"], "fedem", "megabytes") == pytest.approx(3 * 3 * 24 * 2 / 1e6)
    assert value(cells[cells.table == "scores"], "local", "megabytes") == 0
    assert {p.name for p in (tmp_path / "report").glob("*.png")} == {
        f"synthetic_{n}.png"
        for n in (
            *CURVES,
            *(f"{name}_by_round" for name in OTHER_CURVES),
            *("methods", "fairness", "spread", "gain_by_size", "client_sizes", "labels"),
            "FedEM_and_Local",
            "entropy",
            *(f"FedEM_{name}" for name in MIXTURE),
        )
    }
    for algorithm, per_round in (("fedem", 1 + 2 * 3 + 3), ("local", 1)):
        metrics = [pd.read_csv(p.parent / "metrics.csv") for p in tmp_path.glob(f"sweep/*{algorithm}*/results.json")]
        assert all((m["time_reliable"] == per_round * m["round"]).all() for m in metrics)
