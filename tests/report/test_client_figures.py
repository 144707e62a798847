"""Figures of clients: their spread, gains by size, what they hold; and curves whose lines coincide."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fedem_lightning.report import find_runs, group_runs
from fedem_lightning.report.client_figures import size_figure, spread_figure
from fedem_lightning.report.curves import all_curves, curves
from fedem_lightning.report.data_card import data_card, data_figures
from fedem_lightning.report.drawing import DrawnRows, looks
from fedem_lightning.report.papers import Papers
from helpers.runs import make_run

N = 10


def rows_in(folder: Path) -> DrawnRows:
    (setting,), _ = group_runs(find_runs([folder])[0])
    return DrawnRows(setting, looks([setting]))


def with_clients(folder: Path, method: str, scores: np.ndarray, sizes: np.ndarray | int) -> Path:
    make_run(folder, float(scores.mean()), method)
    table = {"id": [f"c{i}" for i in range(N)], "population": "seen", "n_train": sizes, "n_val": 3, "n_test": 10}
    pd.DataFrame({**table, "test_accuracy": scores}).to_parquet(folder / "clients.parquet", index=False)
    return folder


def test_gain_over_local_by_size_by_hand(tmp_path: Path) -> None:
    """Client i has 10 (i + 1) samples, and gains i points; a fifth of ten clients are two."""
    with_clients(tmp_path / "l", "local", np.full(N, 0.5), 10 * np.arange(1, N + 1))
    with_clients(tmp_path / "e", "fedem", 0.5 + np.arange(N) / 100, 10 * np.arange(1, N + 1))
    drawn = size_figure(rows_in(tmp_path))
    assert drawn is not None
    line = drawn.figure.axes[0].lines[0]
    points = np.array(line.get_xydata(), dtype=float)
    np.testing.assert_allclose(points, [[15, 0.5], [35, 2.5], [55, 4.5], [75, 6.5], [95, 8.5]])
    assert drawn.data is not None
    gains = drawn.data.sort_values("n_train")["gain"].to_numpy(dtype=float)
    np.testing.assert_allclose(gains, np.arange(N), atol=1e-9)


def test_no_gain_by_size_where_all_are_equally_large_or_nobody_is_the_baseline(tmp_path: Path) -> None:
    with_clients(tmp_path / "1" / "l", "local", np.full(N, 0.5), 10)
    with_clients(tmp_path / "1" / "e", "fedem", np.full(N, 0.6), 10)
    assert size_figure(rows_in(tmp_path / "1")) is None
    with_clients(tmp_path / "2" / "e", "fedem", np.full(N, 0.6), np.arange(1, N + 1))
    assert size_figure(rows_in(tmp_path / "2")) is None


def test_the_spread_has_median_and_quartiles(tmp_path: Path) -> None:
    scores = np.arange(N) / N
    with_clients(tmp_path / "l", "local", np.full(N, 0.5), 10)  # no spread: a point without a violin
    with_clients(tmp_path / "e", "fedem", scores + 0.2, 10)
    drawn = spread_figure(rows_in(tmp_path))
    assert drawn is not None
    bar, point = drawn.figure.axes[0].lines[2:]
    np.testing.assert_allclose(np.array(bar.get_xdata()), 100 * np.quantile(scores + 0.2, [0.25, 0.75]))
    np.testing.assert_allclose(np.array(point.get_xdata()), [65])
    assert len(drawn.figure.axes[0].collections) == 1


def test_the_data_card_and_its_figures(tmp_path: Path) -> None:
    folder = with_clients(tmp_path / "l", "local", np.full(N, 0.5), np.arange(1, N + 1))
    np.savez(folder / "label_counts.npz", counts=np.array([[3, 1, 0]] * 5 + [[0, 0, 2]] * 5))
    rows = rows_in(tmp_path)
    assert data_card(rows.setting) == {
        "clients": "2 that train",
        "samples": "55 for training, 30 for validation, 100 for tests",
        "training samples a client": "1 to 10, median 6",
        "labels": "3 classes; a client has samples of 2, and 88 % of them are of its most frequent class "
        "(medians over clients)",
    }
    sizes, labels = data_figures(rows)
    assert (sizes.section, labels.section) == ("data", "data")
    image = labels.figure.axes[0].images[0].get_array()
    assert image is not None
    np.testing.assert_allclose(image[:, 0], [0.75, 0.25, 0])  # the clients with most of class 0 come first
    np.testing.assert_allclose(image[:, -1], [0, 0, 1])


@pytest.mark.parametrize("counts", [np.zeros(3), np.array([[-1, 2]]), np.array([[0.5, 2]])])
def test_damaged_label_counts_are_left_out(tmp_path: Path, counts: np.ndarray) -> None:
    folder = with_clients(tmp_path / "l", "local", np.full(N, 0.5), 10)
    np.savez(folder / "label_counts.npz", counts=counts)
    assert data_figures(rows_in(tmp_path)) == []


def test_curves_of_every_split_and_score_differ_in_their_switches(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "a", 0.7)
    columns = {f"{split}/{name}": [0.5, 0.6] for split in ("train", "val", "test") for name in ("accuracy", "loss")}
    sent = {"up_megabytes": [1, 2], "down_megabytes": [1, 2]}
    pd.DataFrame({"round": [1, 2], **sent, **columns}).to_csv(folder / "metrics.csv", index=False)
    found = all_curves(rows_in(tmp_path), Papers())
    switches = [tuple(drawn.switches.values()) for drawn in found]
    assert len(switches) == len(set(switches)) == 7  # the test accuracy by rounds and megabytes, and five by rounds
    assert ("validation loss", "communication round") in switches
    titles = [drawn.figure.get_suptitle() for drawn in found]
    assert len(titles) == len(set(titles))


def test_lines_that_coincide_are_named(tmp_path: Path) -> None:
    make_run(tmp_path / "a", 0.7, "fedavg")
    make_run(tmp_path / "c", 0.7, "clustered")
    make_run(tmp_path / "e", 0.8, "fedem")
    drawn = curves(rows_in(tmp_path))
    assert drawn is not None
    assert drawn.caption.endswith("FedAvg and Clustered FL coincide.")
