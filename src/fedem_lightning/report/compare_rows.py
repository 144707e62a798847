"""`--compare A B`: two rows client by client and seed by seed, with tests, and the clients that lose most."""

import difflib
import math
from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd
from rich import box
from rich.table import Table as RichTable
from rich.text import Text

from fedem_lightning.errors import UserError, one_line, require
from fedem_lightning.report.gains_by_client import Shares, compare_clients, gains_and_losses
from fedem_lightning.report.groups import Group, Setting
from fedem_lightning.report.looks import row_names
from fedem_lightning.report.markup import cell_text, shorten
from fedem_lightning.report.significance import mean_tests, said_p, show_p, t_test

_N_LOSERS = 10


def compared(settings: Sequence[Setting], names: Sequence[str]) -> list[tuple[Setting, Group, Group]]:
    """The two rows that `names` mean, for each setting that has both.

    Raises:
        UserError: no row has such a name (the message has the nearest), a name means several rows of one table, or no
            table has both.

    """
    first, second = names
    found = [(setting, _row(setting, first), _row(setting, second)) for setting in settings]
    for name, known in ((first, any(a for _, a, _ in found)), (second, any(b for _, _, b in found))):
        require(known, f"--compare: no row {one_line(name)!r}; the nearest is {_nearest(settings, name)!r}")
    pairs = [(setting, a, b) for setting, a, b in found if a is not None and b is not None]
    require(bool(pairs), f"--compare: no table has both {one_line(first)!r} and {one_line(second)!r}")
    return pairs


def _nearest(settings: Sequence[Setting], name: str) -> str:
    known = [each for setting in settings for group in setting.groups for each in (group.label, group.algorithm)]
    return difflib.get_close_matches(name, known, 1, cutoff=0)[0]


def _row(setting: Setting, name: str) -> Group | None:
    rows = [group for group in setting.groups if group.label == name]
    rows = rows or [group for group in setting.groups if group.algorithm == name]
    rows = rows or [group for group in setting.groups if row_names(setting)[group.label] == name]  # as on the page
    if len(rows) > 1:
        labels = ", ".join(repr(group.label) for group in rows)
        raise UserError(
            f"--compare: {one_line(name)!r} means {len(rows)} rows of {setting.title}; expected one of {labels}"
        )
    return rows[0] if rows else None


def comparison_parts(setting: Setting, a: Group, b: Group) -> Iterator[Text | RichTable]:
    """The comparison of two rows piece by piece, for a terminal."""
    unit = setting.unit.replace(",", " in")
    yield Text(f"\n{shorten(setting.title)}: {a.label} against {b.label}, {unit}", style="bold")
    clients = compare_clients(a, b)
    if clients is None:
        yield Text("no client is in both: the runs have no common seed, or no readable clients.parquet")
        return
    yield _by_seed(clients, a, b)
    yield from map(Text, _over_all(clients))
    yield from map(Text, _in_words(gains_and_losses(clients), clients))
    losers = clients[clients["gain"] < 0].sort_values("gain", kind="stable").head(_N_LOSERS)
    if len(losers):
        yield Text(f"the clients that lose most with {a.label}:")
        yield _losers(losers, a, b)


def _by_seed(clients: pd.DataFrame, a: Group, b: Group) -> RichTable:
    table = _table("seed", "clients", f"mean {a.label}", f"mean {b.label}", "mean gain", "95 % interval", "p")
    for seed, part in clients.groupby("seed"):
        table.add_row(str(seed), *_numbers(part))
    return table


def _numbers(part: pd.DataFrame) -> list[str]:
    gain = part["gain"].to_numpy()
    low, high, p = _over_clients(gain)
    means = [f"{value:.4g}" for value in (part["a"].mean(), part["b"].mean())]
    return [str(len(part)), *means, f"{gain.mean():+.3g}", f"{low:+.3g} to {high:+.3g}", show_p(p)]


def _over_clients(gain: np.ndarray) -> tuple[float, float, float]:
    """95 % interval of the mean gain, and its p-value."""
    found = mean_tests(gain, np.zeros(len(gain), dtype=np.int64), 1)
    return float(found.low[0]), float(found.high[0]), float(found.p[0])


def _over_all(clients: pd.DataFrame) -> Iterator[str]:
    """Lines about all seeds together: each client counts once, with its mean over seeds."""
    gain = clients.groupby("id")["gain"].mean().to_numpy()
    seeds = clients.groupby("seed")["gain"].mean().to_numpy()
    low, high, p = _over_clients(gain)
    over = f"{len(gain)} clients" + (f", means over {len(seeds)} seeds" if len(seeds) > 1 else "")
    yield (
        f"mean gain {gain.mean():+.3g}, 95 % interval {low:+.3g} to {high:+.3g}, {said_p(p)} ({over}); "
        "interval and p are about other clients with these trained models, not about other seeds"
    )
    if len(seeds) > 1:
        yield f"t-test over {len(seeds)} seeds: {said_p(t_test(seeds.tolist()))}"


def _in_words(shares: Shares, clients: pd.DataFrame) -> Iterator[str]:
    yield f"clients: {shares.better:.1%} better, {shares.worse:.1%} worse, {shares.equal:.1%} equal"
    if math.isnan(shares.gains):
        yield "no client can be tested alone: the scores of its samples are not known"
        return
    by_chance = f"by chance alone at most {shares.chance:.1%} each"
    yield f"beyond chance: {shares.gains:.1%} gain, {shares.loses:.1%} lose; {by_chance}"
    if clients["p"].isna().any():
        yield f"{clients['p'].isna().mean():.1%} of the clients could not be tested alone"


def _losers(losers: pd.DataFrame, a: Group, b: Group) -> RichTable:
    table = _table("client", "seed", "test samples", a.label, b.label, "p")
    for row in losers.itertuples():
        numbers = (f"{row.a:.4g}", f"{row.b:.4g}", show_p(float(str(row.p))))
        table.add_row(Text(shorten(one_line(row.id))), str(row.seed), f"{row.n_test:.0f}", *numbers)
    return table


def _table(*headers: str) -> RichTable:
    table = RichTable(box=box.SIMPLE_HEAD)
    for i, header in enumerate(headers):
        table.add_column(Text(shorten(header)), justify="right" if i else "left", overflow="fold")
    return table


def client_rows(pairs: Sequence[tuple[Setting, Group, Group]]) -> pd.DataFrame:
    """All clients of all comparisons, for compare.csv: setting, row_a, row_b, and the columns of `compare_clients`."""
    tables = []
    for setting, a, b in pairs:
        clients = compare_clients(a, b)
        if clients is not None:
            clients["id"] = [cell_text(name) for name in clients["id"]]
            for i, name in enumerate((setting.title, a.label, b.label)):
                clients.insert(i, ("setting", "row_a", "row_b")[i], cell_text(name))
            tables.append(clients)
    return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame()
