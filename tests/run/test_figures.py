"""The figures of a run: titles, whole numbers, colours."""

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from matplotlib.figure import Figure

from fedem_lightning.run.figures import draw_figures
from helpers.runs import make_run

BAD = "<script>alert(1)</script> $\\frac{$ \x00\x1b[31m\u202e\n" + "long" * 75


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> dict[str, Figure]:
    """The figures that are saved, by name; they are rendered, too."""
    figures: dict[str, Figure] = {}
    save = Figure.savefig

    def kept(figure: Figure, path: Path, **options: Any) -> None:
        figures[Path(path).name.removeprefix(".").partition(".")[0]] = figure  # a temporary name
        save(figure, path, **options)

    monkeypatch.setattr(Figure, "savefig", kept)
    return figures


def ticks(axis: Any) -> list[float]:
    low, high = sorted(axis.get_view_interval())
    return [float(t) for t in axis.get_majorticklocs() if low <= t <= high]


@pytest.mark.parametrize(
    ("algorithm", "title"),
    [
        ("fedem", "FedEM on"),
        (BAD, "<script>alert(1)</script> \\$\\frac{\\$ [31m long"),
    ],
)
def test_figures_have_the_methods_name_and_whole_numbers(
    algorithm: str, title: str, tmp_path: Path, drawn: dict[str, Figure]
) -> None:
    pi = [[0.7, 0.2, 0.1], [0.1, 0.1, 0.8]]
    folder = make_run(tmp_path / "run", algorithm=algorithm, dataset="cost $5, not $6", pi=pi)
    results = {**json.loads((folder / "results.json").read_text()), "reference": {"bayes_accuracy": 0.9}}
    clients = pd.read_parquet(folder / "clients.parquet")
    draw_figures(folder, results, clients)
    assert drawn.keys() == {"accuracy_by_round", "mixture_weights", "accuracy_over_clients"}
    titles = [figure.get_suptitle().partition("\n") for figure in drawn.values()]
    assert [words for words, _, _ in titles] == [
        *("Accuracy by round", "Mixture weights of the clients", "Test accuracy over the clients")
    ]
    assert all(run.startswith(title) and run.count("\n") <= 2 for _, _, run in titles)
    for figure in drawn.values():
        figure.set_dpi(100)
        figure.draw_without_rendering()
        extent = figure._suptitle.get_window_extent()  # type: ignore[attr-defined]
        assert extent.x0 > 0
        assert extent.x1 < figure.bbox.x1
        for legend in figure.legends:
            extent = legend.get_window_extent()
            assert 0 <= extent.x0 < extent.x1 <= figure.bbox.x1
    assert drawn["accuracy_by_round"].axes[0].get_xlim() == (0, 4)
    heat = drawn["mixture_weights"].axes[0]
    assert ticks(heat.yaxis) == [0, 1, 2]
    assert all(t == round(t) for t in ticks(heat.xaxis) + ticks(drawn["accuracy_by_round"].axes[0].xaxis))
