"""Rows whose training had not ended, or whose learning rate nobody chose: marked, and compared with no other row."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedem_lightning.report.scores_table import Table, headline
from helpers.report_runs import make_sampled_run, report, tables_in

FALLING = {"finished": False, "share": 0.031, "rounds": [18, 20], "split": "val", "reason": None}
ENDED = {**FALLING, "finished": True, "share": 0.001}
UNCHOSEN = [{"of": "clients", "rate": 0.1, "chosen_by": None}]
RIGHT = {"local": 30, "fedem": 36, "fedavg": 48, "apfl": 54}
"""How many of 60 test samples each client's model predicts well."""


def four_methods(folder: Path, doubtful: dict[str, dict[str, Any]]) -> Table:
    """The table of four methods with six seeds, whose runs also say what `doubtful` has for them."""
    for i, (name, n) in enumerate(RIGHT.items()):
        for seed in range(6):
            more = {"convergence": ENDED, **doubtful.get(name, {})}
            right = [np.arange(60) < n + seed * seed * i % 5 + client % 2 for client in range(8)]
            make_sampled_run(folder / f"{name}{seed}", right, name, seed, **more)
    return tables_in(folder)[0]


DOUBTS: dict[str, tuple[dict[str, Any], str]] = {
    "training": ({"convergence": FALLING}, "its training had not ended"),
    "rate": ({"learning_rates": UNCHOSEN}, "nobody chose its learning rate"),
    "both": (
        {"convergence": FALLING, "learning_rates": UNCHOSEN},
        "its training had not ended and nobody chose its learning rate",
    ),
}


@pytest.mark.parametrize("doubt", DOUBTS)
def test_a_doubtful_row_is_tested_against_no_other_and_the_others_are(doubt: str, tmp_path: Path) -> None:
    more, reason = DOUBTS[doubt]
    table = four_methods(tmp_path, {"apfl": more})
    assert f"not compared with other rows: APFL ({reason})" in table.warnings
    assert table.leaders["weighted"] == "fedavg"
    assert headline(table).startswith("Of the 3 rows that can be compared FedAvg is best with a test accuracy of ")
    assert "APFL" not in headline(table)
    assert headline(table).endswith("than with FedEM, beyond chance.")
    shares = {label: table.mean["loses_to_local"].get(label) for label in RIGHT}
    assert {label for label, share in shares.items() if share == 100 or share == 0} == {"fedem", "fedavg"}
    assert {label for label, share in table.mean["worse_than_local"].items() if np.isfinite(share)} == {
        *("fedem", "fedavg")
    }


def test_a_doubtful_baseline_is_no_yardstick(tmp_path: Path) -> None:
    table = four_methods(tmp_path, {"local": {"convergence": FALLING}})
    assert "worse_than_local" not in table.columns
    assert table.mean["worse_than_fedavg"]["fedem"] == 100
    sentence = headline(table)
    assert sentence.startswith("Of the 3 rows that can be compared APFL is best")
    assert "Local" not in sentence


def test_without_two_rows_to_compare_no_row_is_best(tmp_path: Path) -> None:
    rate = {"learning_rates": UNCHOSEN}
    table = four_methods(tmp_path, {"local": {"convergence": FALLING}, "fedem": rate, "fedavg": rate})
    assert table.leaders == {}
    assert headline(table) == (
        "No method is called better than another: Local (its training had not ended), FedAvg (nobody chose its "
        "learning rate), FedEM (nobody chose its learning rate)."
    )


def test_rows_are_marked_everywhere(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    four_methods(tmp_path / "runs", {"fedem": {"convergence": FALLING}})
    out, err, code = report(capsys, tmp_path / "runs", "--out", tmp_path / "out")
    assert (code, err) == (0, "")
    assert [line.split()[0] for line in out.splitlines() if " † " in line[:15]] == ["FedEM"]
    (said,) = [line for line in out.splitlines() if line.startswith("† FedEM, seeds 0, 1, 2, 3, 4, 5: not finished: ")]
    assert "the validation loss fell by 3.1% over the last tenth of the rounds (rounds 18 to 20;" in said
    page = (tmp_path / "out" / "report.html").read_text()
    assert ">FedEM †</th>" in page
    assert ">APFL</th>" in page
    finished = pd.read_csv(tmp_path / "out" / "report.csv").set_index("row").finished
    assert finished.to_dict() == {"local": True, "fedavg": True, "fedem": False, "apfl": True}


def test_what_is_not_known_is_said_once_and_withholds_nothing(tmp_path: Path) -> None:
    few = {"finished": None, "share": None, "rounds": None, "split": None, "reason": "fewer than 4 evaluations"}
    table = four_methods(tmp_path, {"fedem": {"convergence": few}, "local": {"convergence": None}})
    assert [line for line in table.notes if "had ended" in line] == [
        "whether training had ended is not known of Local, FedEM"
    ]
    assert table.leaders["weighted"] == "apfl"
    assert headline(table).startswith("APFL is best")
    assert not [line for line in table.warnings if "compared" in line]
