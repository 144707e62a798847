"""The command `personalize`: models for new clients, and their scores; with `--few-shot` by the number of samples."""

import argparse
import hashlib
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from fedem_lightning.algorithms import FederatedAlgorithm
from fedem_lightning.errors import UserError, require
from fedem_lightning.randomness import Purpose, generator
from fedem_lightning.records.measures import headline
from fedem_lightning.serving.clients_on_rows import personalized, scores_by_client
from fedem_lightning.serving.model_files import load, write_clients
from fedem_lightning.serving.output import (
    SHOWN_SUMS,
    number,
    print_scores,
    print_table,
    summaries,
    write_figure,
    write_table,
)
from fedem_lightning.serving.rows import ClientRows, chosen_columns, read_rows

_DIGITS = 18
"""Of the largest number of samples that is read: it fits 64 bits."""


def run(chosen: argparse.Namespace) -> None:
    """Runs the command with the options of its parser.

    Raises:
        UserError: the user's input is wrong; nothing has been written.

    """
    if chosen.few_shot is not None:
        return run_few_shot(chosen)
    model = load_with_steps(chosen.run, chosen)
    schema = model.schema
    assert schema is not None  # `load` refuses a model without
    rows = read_rows(chosen.data, schema, chosen_columns(chosen), labelled=True)
    codes, began = rows.codes(), time.perf_counter()
    models = personalized(model, rows, codes)
    seconds = time.perf_counter() - began
    n_train = np.bincount(rows.client[codes == 0], minlength=len(rows.names))
    table = scores_by_client(models, rows, codes == 2) if bool((codes == 2).any()) else None
    write_clients(chosen.out, models)
    places = {name: schema.place(name) for name in rows.names}
    held_out = [name for name, place in places.items() if place is not None and not schema.seen[place]]
    if held_out and rows.split is None:
        print(f"note: {held_out[0]} was held out of the run; without a column `split` its test rows are used, too")
    n = f"{len(rows.names)} client{'s' * (len(rows.names) != 1)} personalised on {int(n_train.sum())} training rows"
    print(f"{type(model).__name__}: {n} in {seconds:.2f} s; written: {chosen.out}")
    idle = int((n_train == 0).sum())
    if idle:
        print(f"{idle} of the clients have no training row; they have what the method gives a client without samples")
    if table is not None:
        clients = f"{int((table.n_test > 0).sum())}"
        title = f"scores on {int(table.n_test.sum())} test rows"
        print_scores(title, {clients: summaries(table, n_train)})


def load_with_steps(path: Path, chosen: argparse.Namespace, strict: bool = True) -> FederatedAlgorithm:
    """The model of a run, with --steps and --tolerance.

    Args:
        path: the run.
        chosen: the options.
        strict: whether a method that has no such thing is refused; otherwise it goes without.

    """
    model = load(path, chosen.trust)
    wanted = {"personalize_steps": chosen.steps, "personalize_tolerance": chosen.tolerance}
    given: dict[str, Any] = {name: value for name, value in wanted.items() if value is not None}
    if not given:
        return model
    missing = [name.replace("personalize_", "--") for name in given if not hasattr(model, name)]
    require(not missing or not strict, f"{', '.join(missing)}: {type(model).__name__} has no such steps")
    try:
        return model if missing else load(path, chosen.trust, **given)
    except UserError as error:  # names the arguments of the class
        raise UserError(re.sub(r"(?:\w+\.)?personalize_(?=steps|tolerance)", "--", str(error))) from error


def run_few_shot(chosen: argparse.Namespace) -> None:
    """Runs the command with --few-shot; it writes few_shot.csv and few_shot.png."""
    shots = parse_shots(chosen.few_shot)
    paths = [chosen.run, *chosen.compare]
    models = [load_with_steps(path, chosen, strict=len(paths) == 1) for path in paths]
    if len(paths) > 1 and (chosen.steps is not None or chosen.tolerance is not None):
        has = [model for model in models if hasattr(model, "personalize_steps")]
        require(bool(has), "--steps: none of the runs has such steps")
    tables = []
    for name, model in zip(_labels(paths, models), models, strict=True):
        assert model.schema is not None
        rows = read_rows(chosen.data, model.schema, chosen_columns(chosen), labelled=True)
        tables.append(scores(model, rows, with_test(rows, chosen.test_fraction, chosen.seed), shots, chosen.seed))
        tables[-1].insert(0, "run", name)
    table = pd.concat(tables, ignore_index=True)
    write_table(chosen.out_dir / "few_shot.csv", table)
    write_figure(chosen.out_dir / "few_shot.png", draw_shots(table))
    measure, _, unit = headline(_measures(table))
    kinds = SHOWN_SUMS[:3]
    cells = [
        [r.run, r.k, f"{r.samples:.4g}", *(number(r[f"{measure}_{s}"], measure) for s in kinds)]
        for _, r in table.iterrows()
    ]
    titles = ["run", "samples", "on average", *(kind.replace("_", " ") for kind in kinds)]
    print_table(f"{unit}, on {int(table.n_test.max())} test rows of {int(table.clients.max())} clients", titles, cells)
    print(f"written: {chosen.out_dir / 'few_shot.csv'}, few_shot.png")


def parse_shots(text: str) -> list[int | None]:
    """Numbers of samples, ascending; None is "all".

    Raises:
        UserError: something else is among them.

    """
    words = [word.strip() for word in text.split(",")]
    wrong = [word for word in words if word != "all" and not (word.isdecimal() and len(word) <= _DIGITS)]
    require(not wrong, f"--few-shot: expected numbers of samples, or all, as in 0,1,5,all; got {text!r}")
    numbers = sorted({int(word) for word in words if word != "all"})
    return [*numbers, *[None] * ("all" in words)]


def with_test(rows: ClientRows, fraction: float | None, seed: int) -> np.ndarray:
    """The split of each row, int8 [n]; without one in DATA, a share of every client's rows is drawn for the test.

    Raises:
        UserError: no client has a test row.

    """
    if rows.split is not None:
        require(fraction is None, "--test-fraction: DATA has a split already")
        require(bool((rows.split == 2).any()), "DATA: its split has no test rows, which few-shot scores need")
        return rows.split
    require(fraction is not None, "DATA: it has no split; --test-fraction 0.2 draws test rows for every client")
    assert fraction is not None
    require(0 < fraction < 1, f"--test-fraction: expected a number above 0 and below 1, got {fraction}")
    codes = np.zeros(len(rows), dtype=np.int8)
    sizes = np.bincount(rows.client)
    codes[_ranks(rows, np.arange(len(rows)), seed, 0) < np.floor(fraction * sizes + 1e-9)[rows.client]] = 2
    require(bool((codes == 2).any()), f"--test-fraction: {fraction} of a client's rows is less than one row")
    return codes


def only_shots(rows: ClientRows, codes: np.ndarray, k: int | None, seed: int) -> np.ndarray:
    """The split with k training samples of each client; the others are -1, left out. Fewer are among those of more.

    Args:
        rows: of K clients.
        codes: 0 train, 1 val, 2 test, [n].
        k: None: all.
        seed: of the draw, which depends on it and on the client's name and rows alone.

    """
    if k is None:
        return codes
    train = np.flatnonzero(codes == 0)
    left = codes.copy()
    left[train[_ranks(rows, train, seed, 1) >= k]] = -1
    return left


def _ranks(rows: ClientRows, index: np.ndarray, seed: int, what: int) -> np.ndarray:
    """The place of each row among its client's rows in random order: index [n'] -> int64 [n']."""
    order = index[np.argsort(rows.client[index], kind="stable")]
    sizes = np.bincount(rows.client[index], minlength=len(rows.names))
    keys = [int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") for name in rows.names]
    draws = [generator(seed, Purpose.FEW_SHOT, what, t).permutation(n) for t, n in zip(keys, sizes, strict=True)]
    ranks = np.empty(len(rows), dtype=np.int64)
    ranks[order] = np.concatenate(draws)
    return ranks[index]


def scores(
    model: FederatedAlgorithm, rows: ClientRows, codes: np.ndarray, shots: Sequence[int | None], seed: int
) -> pd.DataFrame:
    """A row for each number of samples: k, clients, samples (mean number used), n_test, MEASURE_SUMMARY.

    The weights of the weighted mean are all training samples of each client, whatever k is.
    """
    n_train = np.bincount(rows.client[codes == 0], minlength=len(rows.names))
    found = []
    for k in shots:
        split = only_shots(rows, codes, k, seed)
        table = scores_by_client(personalized(model, rows, split), rows, split == 2)
        used = n_train if k is None else n_train.clip(max=k)
        row: dict[str, Any] = {"k": "all" if k is None else str(k), "clients": int((table.n_test > 0).sum())}
        sums = {f"{m}_{s}": v for m, found_ in summaries(table, n_train).items() for s, v in found_.items()}
        found.append({**row, "samples": float(used.mean()), "n_test": int(table.n_test.sum()), **sums})
    return pd.DataFrame(found)


def draw_shots(table: pd.DataFrame) -> Figure:
    """The headline score by number of samples: a line for each run, the bottom decile dashed."""
    measure, factor, unit = headline(_measures(table))
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    ticks = list(dict.fromkeys(table.k))
    for i, (name, part) in enumerate(table.groupby("run", sort=False)):
        for kind, style in (("weighted", "o-"), ("bottom_decile", "o--")):
            label = f"{name}, {kind.replace('_', ' ')}"
            x = [ticks.index(k) for k in part.k]
            axes.plot(x, factor * part[f"{measure}_{kind}"], style, color=f"C{i}", markersize=4, label=label)
    axes.set_xticks(range(len(ticks)), ticks)
    axes.set(xlabel="training samples of a client", ylabel=unit)
    axes.grid(alpha=0.3)
    axes.legend()
    return figure


def _measures(table: pd.DataFrame) -> list[str]:
    return [column.removesuffix("_weighted") for column in table.columns if column.endswith("_weighted")]


def _labels(paths: Sequence[Path], models: Sequence[FederatedAlgorithm]) -> list[str]:
    """The method of each run; with the path where methods repeat.

    Raises:
        UserError: a run is given twice.

    """
    twice = [str(path) for path in paths if list(paths).count(path) > 1]
    if twice:
        raise UserError(f"--compare: {twice[0]} is given twice")
    kinds = [type(model).__name__ + (f" + {type(a).__name__}" if (a := model.adaptation) else "") for model in models]
    return [f"{kind} ({path})" if kinds.count(kind) > 1 else kind for kind, path in zip(kinds, paths, strict=True)]
