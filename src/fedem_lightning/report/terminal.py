"""What the terminal shows: the report, once or again and again (`--watch`), and two rows client by client."""

import math
import textwrap
import time
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import pandas as pd
from rich import box
from rich.console import Console
from rich.console import Group as Stack
from rich.live import Live
from rich.table import Table as RichTable
from rich.text import Text

from fedem_lightning.errors import one_line
from fedem_lightning.evaluation.mean_tests import mean_tests
from fedem_lightning.report.cells import Table, TableColumn, shorten
from fedem_lightning.report.gains_by_client import compare_clients, gains_and_losses
from fedem_lightning.report.groups import Group, Setting
from fedem_lightning.report.headline import in_a_sentence
from fedem_lightning.report.ranks import Ranks
from fedem_lightning.report.report_files import CAVEAT, Report
from fedem_lightning.report.significance import said_p, show_p, t_test

_FIRST = (
    *("weighted", "paper_weighted", "bottom_decile", "val", "learning_rate", "unseen", "mean", "seeds"),
    "worse_than_local",
)
"""Columns that are left out last; of the others the right ones go first."""
_LEAST_LABEL = 24
"""Letters of a label that always have room on one line."""
_PADDING = 3
_N_LOSERS = 10


def print_parts(parts: Iterable[Text | RichTable], console: Console | None = None) -> None:
    """Prints texts and tables."""
    console = full_width(console or Console())
    for part in parts:
        console.print(part, soft_wrap=isinstance(part, Text))


def full_width(console: Console) -> Console:
    """The console itself, or one without a limit if the output is no terminal."""
    return console if console.is_terminal else Console(file=console.file, width=max(console.width, 500))


def print_report(report: Report, console: Console | None = None) -> None:
    """Prints tables, notes and the runs that are left out; the full width if the output is no terminal."""
    console = full_width(console or Console())
    print_parts(report_parts(report, console.width), console)


def report_parts(report: Report, width: int) -> Iterator[Text | RichTable]:
    """The report piece by piece, for a terminal of `width` letters; no number is cut, and what has no room is named."""
    for table in report.tables:
        yield Text(f"\n{one_line(table.title)}", style="bold")
        columns = table.filled()
        shown = _fitting(table, width)
        yield _drawn(table, {key: column for key, column in columns.items() if key in shown}, width)
        left_out = ", ".join(column.header for key, column in columns.items() if key not in shown)
        if left_out:
            yield Text(f"no room for: {left_out} (report.csv of --out has all columns)", style="dim")
        if table.name == "scores":
            yield Text(one_line(in_a_sentence(table, report.main)), style="bold")
        yield from (Text(one_line(note)) for note in [*table.notes, *table.warnings])
    if report.ranks is not None:
        yield from _ranks(report.ranks)
    if report.compares:
        yield Text(f"\n{CAVEAT}")
    if report.left_out:
        yield Text("\nleft out of the tables:")
        yield from (Text(f"  {one_line(line)}") for line in report.left_out)


def _ranks(ranks: Ranks) -> Iterator[Text | RichTable]:
    """Methods by data sets, with their average ranks."""
    yield Text("\nmethods by data sets: mean test scores and average ranks, 1 is best", style="bold")
    rows = [
        (name, f"{ranks.average[name]:.2f}", *(f"{score:.4g}" for score in ranks.scores.loc[name]))
        for name in ranks.average.index
    ]
    yield _plain(("method", "average rank", *ranks.scores.columns), rows)
    yield from map(Text, [ranks.sentence, *ranks.notes])


def _fitting(table: Table, width: int) -> list[str]:
    """The columns for which there is room beside the labels; no lesser column takes the place of a greater one."""
    columns = table.filled()
    order = sorted(columns, key=lambda key: _FIRST.index(key) if key in _FIRST else len(_FIRST))
    ends = np.cumsum([_width(table, key, columns[key]) + _PADDING for key in order])
    room = width - min(_longest_label(table), _LEAST_LABEL) - _PADDING - 2
    return order[: int((ends <= room).sum())]


def _width(table: Table, key: str, column: TableColumn) -> int:
    cells = [column.show(cells.get(key)) for _, cells in table.rows]
    return max(map(len, [*cells, *one_line(column.header).split()]))


def _longest_label(table: Table) -> int:
    return max([len("algorithm"), *(len(shorten(group.in_text)) for group, _ in table.rows)])


def _drawn(table: Table, columns: dict[str, TableColumn], width: int) -> RichTable:
    drawn = RichTable(box=box.SIMPLE_HEAD)
    widths = {key: _width(table, key, column) for key, column in columns.items()}
    room = width - sum(widths.values()) - _PADDING * (len(widths) + 1) - 2
    drawn.add_column("algorithm", overflow="fold", width=max(1, min(room, _longest_label(table))))
    for key, column in columns.items():
        header = textwrap.fill(one_line(column.header), widths[key], break_long_words=False, break_on_hyphens=False)
        drawn.add_column(Text(header), justify="right", width=widths[key], no_wrap=True)
    for label, texts in table.lines(columns):
        drawn.add_row(Text(label), *(Text(text, style="bold" if bold else "") for text, bold in texts))
    return drawn


def watch(
    report: Callable[[], Report],
    every: float,
    console: Console | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Draws what `report` returns every `every` seconds until Ctrl-C, then prints it once more."""
    console = console or Console()
    try:
        with Live(console=console, auto_refresh=False, transient=True) as live:
            while True:
                live.update(Stack(*report_parts(report(), console.width)), refresh=True)
                sleep(every)
    except KeyboardInterrupt:
        console.print(Stack(*report_parts(report(), console.width)))


def comparison_parts(setting: Setting, a: Group, b: Group) -> Iterator[Text | RichTable]:
    """The comparison of two rows piece by piece, for a terminal."""
    unit = setting.unit.replace(",", " in")
    yield Text(f"\n{shorten(setting.title)}: {a.label} against {b.label}, {unit}", style="bold")
    clients = compare_clients(a, b)
    if clients is None:
        yield Text("no client is in both: the runs have no common seed, or no readable clients.parquet")
        return
    by_seed = []
    for seed, part in clients.groupby("seed"):
        low, high, p = _over_clients(part["gain"])
        means = (f"{part['a'].mean():.4g}", f"{part['b'].mean():.4g}", f"{part['gain'].mean():+.3g}")
        by_seed.append((str(seed), str(len(part)), *means, f"{low:+.3g} to {high:+.3g}", show_p(p)))
    yield _plain(("seed", "clients", f"mean {a.label}", f"mean {b.label}", "mean gain", "95 % interval", "p"), by_seed)
    yield from map(Text, _in_words(clients))
    losers = clients[clients["gain"] < 0].sort_values("gain", kind="stable").head(_N_LOSERS)
    if len(losers):
        yield Text(f"the clients that lose most with {a.label}:")
        rows = [
            (one_line(r["id"]), str(r["seed"]), f"{r['n_test']:.0f}", f"{r['a']:.4g}", f"{r['b']:.4g}", show_p(r["p"]))
            for r in losers.to_dict("records")
        ]
        yield _plain(("client", "seed", "test samples", a.label, b.label, "p"), rows)


def _plain(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> RichTable:
    table = RichTable(box=box.SIMPLE_HEAD)
    for i, header in enumerate(headers):
        table.add_column(Text(shorten(header)), justify="right" if i else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(shorten(text)) for text in row))
    return table


def _over_clients(gain: pd.Series) -> tuple[float, float, float]:
    """95 % interval of the mean gain, and its p-value."""
    found = mean_tests(gain.to_numpy(), np.zeros(len(gain), dtype=np.int64), 1)
    return float(found.low[0]), float(found.high[0]), float(found.p[0])


def _in_words(clients: pd.DataFrame) -> Iterator[str]:
    """Lines about all seeds together: means, where each client counts once, and who gains."""
    gain, seeds = (clients.groupby(key)["gain"].mean() for key in ("id", "seed"))
    low, high, p = _over_clients(gain)
    over = f"{len(gain)} clients" + (f", means over {len(seeds)} seeds" if len(seeds) > 1 else "")
    yield (
        f"mean gain {gain.mean():+.3g}, 95 % interval {low:+.3g} to {high:+.3g}, {said_p(p)} ({over}); "
        "interval and p are about other clients with these trained models, not about other seeds"
    )
    if len(seeds) > 1:
        yield f"t-test over {len(seeds)} seeds: {said_p(t_test(seeds.to_numpy()))}"
    shares = gains_and_losses(clients)
    yield f"clients: {shares.better:.1%} better, {shares.worse:.1%} worse, {shares.equal:.1%} equal"
    if math.isnan(shares.gains):
        yield "no client can be tested alone: the scores of its samples are not known"
        return
    by_chance = f"by chance alone at most {shares.chance:.1%} each"
    yield f"beyond chance: {shares.gains:.1%} gain, {shares.loses:.1%} lose; {by_chance}"
    if clients["p"].isna().any():
        yield f"{clients['p'].isna().mean():.1%} of the clients could not be tested alone"
