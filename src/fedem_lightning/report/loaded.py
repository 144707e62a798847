"""Results in Python: `load(folders)` reads runs, for tables, a sentence, comparisons and the report's figures."""

from collections.abc import Callable, Sequence
from pathlib import Path

import matplotlib as mpl
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedem_lightning.errors import one_line, require
from fedem_lightning.records.measures import SPLITS
from fedem_lightning.report.client_figures import pair_figure, percentile_figure, size_figure, spread_figure
from fedem_lightning.report.command import require_runs, usable_runs
from fedem_lightning.report.curves import curves
from fedem_lightning.report.drawing import STYLE, Drawn, DrawnRows, looks
from fedem_lightning.report.gains_by_client import client_rows, compared
from fedem_lightning.report.groups import Setting, group_runs
from fedem_lightning.report.headline import in_a_sentence
from fedem_lightning.report.mixture_figures import weights_heat_map
from fedem_lightning.report.papers import Papers
from fedem_lightning.report.score_figures import seeds_figure, sweep, varied_numbers
from fedem_lightning.report.scores_table import scores_table

_Draw = Callable[[DrawnRows], Drawn | None]


def load(folders: str | Path | Sequence[str | Path]) -> "LoadedRuns":
    """The complete runs in one or several folders, at any depth.

    Raises:
        UserError: a folder is missing, or there is no complete run.

    """
    several = [folders] if isinstance(folders, (str, Path)) else list(folders)
    runs, skipped = usable_runs(several, Papers())
    require_runs(runs, skipped)
    settings, notes = group_runs(runs)
    return LoadedRuns(settings, [f"{one_line(left.folder)}: {left.reason}" for left in skipped] + notes)


class LoadedRuns:
    """Finished runs, by data set and method; seeds of one method are one row.

    Args:
        settings: the runs, grouped.
        skipped: a line for each folder that has no complete run.

    """

    def __init__(self, settings: Sequence[Setting], skipped: Sequence[str]) -> None:
        self.settings, self.skipped = list(settings), list(skipped)
        self._tables = [scores_table(setting, Papers()) for setting in self.settings]

    @property
    def plot(self) -> "Plots":
        """Functions that draw these runs."""
        return Plots(self.settings)

    def table(self) -> pd.DataFrame:
        """A row for each data set and method: means over seeds and, in columns that end in "std", their deviations.

        Scores are in percent where they are accuracies; `std` has ddof 1 and is NaN for one seed.
        """
        rows: dict[tuple[str, str], dict[str, float | None]] = {}
        for table in self._tables:
            columns = table.filled()
            for group, cells in table.rows:
                row = rows.setdefault((table.setting.title, group.name), {})
                for key, column in columns.items():
                    if key in cells:
                        row[column.header] = cells[key].value
                        row |= {f"{column.header} std": cells[key].std} if column.std_form else {}
        index = pd.MultiIndex.from_tuples(rows, names=["data", "method"])
        return pd.DataFrame(list(rows.values()), index=index).dropna(axis=1, how="all")

    def summary(self) -> str:
        """A sentence for each data set: which method is best on test samples, by how much, and whether that is sure."""
        return "\n".join(f"{table.setting.title}: {in_a_sentence(table)}" for table in self._tables)

    def compare(self, a: str, b: str) -> pd.DataFrame:
        """Two methods client by client, as compare.csv of the report has it; see `compare_clients`.

        Raises:
            UserError: no row has such a name, or a name means several.

        """
        return client_rows(compared(self.settings, (a, b), "compare"))

    def __repr__(self) -> str:
        """How many runs there are, and the summary."""
        n_runs, n_skipped = sum(len(setting.runs) for setting in self.settings), len(self.skipped)
        left_out = f", {n_skipped} folder{'s' * (n_skipped > 1)} left out" if self.skipped else ""
        return f"{n_runs} run{'s' * (n_runs > 1)}{left_out}\n{self.summary()}"


class Plots:
    """Figures of loaded runs; each function returns a Matplotlib figure, or draws into `ax` and returns its figure.

    Where the runs are of several data sets, `data` is the title of one, as `LoadedRuns.table` has it.
    """

    def __init__(self, settings: Sequence[Setting]) -> None:
        self._settings, self._looks = {setting.title: setting for setting in settings}, looks(settings)

    def methods(self, ax: Axes | None = None, data: str | None = None) -> Figure:
        """The test score of each method: every seed, the mean and its 95 % interval."""
        return self._drawn(ax, data, seeds_figure, "two methods with test scores")

    def curves(
        self,
        x: str = "round",
        split: str = "test",
        score: str | None = None,
        ax: Axes | None = None,
        data: str | None = None,
    ) -> Figure:
        """The score during training, mean and range over seeds.

        Args:
            x: round, megabytes, air_megabytes, training_seconds, or time_NAME for the simulated time in a network.
            split: train, val or test.
            score: accuracy, loss or mse; None: the one that tables show.
            ax: where to draw; None: a new figure.
            data: title of a data set.

        """
        words = f"curve of {split} {score or 'score'} by {x}"
        require(split in SPLITS, f"split: expected one of {', '.join(SPLITS)}, got {split!r}")
        return self._drawn(ax, data, lambda rows: curves(rows, x, split, score), words)

    def clients(self, ax: Axes | None = None, data: str | None = None) -> Figure:
        """Test scores over clients, from the lowest to the highest."""
        return self._drawn(ax, data, percentile_figure, "clients.parquet")

    def spread(self, ax: Axes | None = None, data: str | None = None) -> Figure:
        """How the clients' test scores spread with each method."""
        return self._drawn(ax, data, spread_figure, "two methods with the scores of eight clients")

    def sizes(self, ax: Axes | None = None, data: str | None = None) -> Figure:
        """The clients' gain over Local (else FedAvg) by their number of training samples."""
        return self._drawn(ax, data, size_figure, "baseline, or no clients of different sizes")

    def compare(self, a: str, b: str, ax: Axes | None = None, data: str | None = None) -> Figure:
        """Every client as a point: its score with method b to the right, with method a upwards."""
        ((_, first, second),) = compared([self._setting(data)], (a, b), "compare")
        return self._drawn(ax, data, lambda rows: pair_figure(rows, first, second), "client that both methods have")

    def mixture(self, method: str = "fedem", ax: Axes | None = None, data: str | None = None) -> Figure:
        """Mixture weights after the last round of a method's first seed, a column a client."""
        ((_, group, _),) = compared([self._setting(data)], (method, method), "method")
        return self._drawn(ax, data, lambda rows: weights_heat_map(rows, group), "mixture weights")

    def sweep(self, key: str, ax: Axes | None = None, data: str | None = None) -> Figure:
        """The test score by a key of the configuration that the runs vary."""
        varied = varied_numbers(self._setting(data))
        require(key in varied, f"key: {one_line(key)} is not varied; varied: {', '.join(varied) or 'none'}")
        return self._drawn(ax, data, lambda rows: sweep(rows, key), f"line along {key}")

    def _setting(self, data: str | None) -> Setting:
        titles = ", ".join(map(repr, self._settings))
        require(data is not None or len(self._settings) == 1, f"data: expected one of {titles}")
        require(data is None or data in self._settings, f"data: expected one of {titles}, got {data!r}")
        return next(iter(self._settings.values())) if data is None else self._settings[data]

    def _drawn(self, ax: Axes | None, data: str | None, draw: _Draw, what: str) -> Figure:
        with mpl.rc_context(STYLE):
            drawn = draw(DrawnRows(self._setting(data), self._looks, ax))
        require(drawn is not None, f"these runs have no {what}")
        assert drawn is not None
        return drawn.figure
