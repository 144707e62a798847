"""What the report's figure shows, point by point."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedem_lightning.report.figures import curves
from helpers.report_runs import tables_in
from helpers.runs import make_run


def figure(folder: Path) -> Any:
    drawn = curves([table.setting for table in tables_in(folder)])
    assert drawn is not None
    assert drawn.png.startswith(b"\x89PNG")
    return drawn.figure


def lines_of(figure: Any) -> dict[str, np.ndarray]:
    return {str(line.get_label()): np.array(line.get_data(), dtype=float) for line in figure.axes[0].lines}


def test_curves_are_means_over_seeds_with_a_panel_for_each_setting(tmp_path: Path) -> None:
    for seed, test in enumerate((0.7, 0.8)):
        make_run(tmp_path / f"e{seed}", test, "fedem", seed)
    make_run(tmp_path / "a", 0.6, "fedavg")
    make_run(tmp_path / "other", 0.6, "fedavg", dataset="wisdm")
    drawn = figure(tmp_path)
    assert [axes.get_title() for axes in drawn.axes] == ["synthetic", "wisdm"]
    lines = lines_of(drawn)
    np.testing.assert_allclose(lines["FedEM"], [[2, 4], [65, 75]])  # 60 and 70, 70 and 80
    np.testing.assert_allclose(lines["FedAvg"], [[2, 4], [50, 60]])
    (band,) = drawn.axes[0].collections
    assert np.ptp(band.get_paths()[0].vertices[:, 1]) == pytest.approx(20)  # from 60 to 80
    assert [text.get_text() for text in drawn.legends[0].get_texts()] == ["FedAvg", "FedEM"]
    assert [axes.get_xlim() for axes in drawn.axes] == [(0, 4), (0, 4)]  # the last round


def test_a_legend_of_long_names_fits(tmp_path: Path) -> None:
    for i in range(9):
        own = {"algorithm.title": f"WWW MMM WWW MMM {'long ' * 15}{i}"}
        make_run(tmp_path / str(i), 0.6 + i / 100, f"own{i}", config=own)
    drawn = figure(tmp_path)
    drawn.draw_without_rendering()
    extent = drawn.legends[0].get_window_extent()
    assert 0 <= extent.x0 < extent.x1 <= drawn.bbox.x1
    assert extent.y0 >= 0
    assert {text.get_text()[-1] for text in drawn.legends[0].get_texts()} == {*map(str, range(9))}
