"""A comparison from data to answer: trials, runs on several seeds, the answer, the model and the page."""

import math
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from fedem_lightning.comparison.answer import MARGIN, Answer, answer
from fedem_lightning.comparison.inputs import words_of
from fedem_lightning.comparison.models import constant_errors, final_model, new_clients
from fedem_lightning.comparison.page import write_page
from fedem_lightning.comparison.runs import Done, Runs, Source
from fedem_lightning.comparison.search import NEEDED, Search
from fedem_lightning.comparison.sentences import Findings, sentences
from fedem_lightning.comparison.trials import Candidate, Setting, candidates
from fedem_lightning.comparison.warnings_of_data import data_warnings
from fedem_lightning.data import FederatedDataModule
from fedem_lightning.models.components import Backbone
from fedem_lightning.report.finished_run import read_run
from fedem_lightning.run.building import quieten
from fedem_lightning.settings.errors import require
from fedem_lightning.settings.measures import HIGHER_IS_BETTER

CONSTANT = "constant"


@dataclass(frozen=True)
class Comparison:
    """What a comparison has found, and where its files are."""

    answer: Answer
    lines: list[str]
    table: pd.DataFrame  # a row for each method
    errors: Mapping[str, pd.DataFrame]  # test errors by method, [clients, seeds]
    folder: Path

    def __str__(self) -> str:
        return "\n".join(self.lines)


def compare(
    data: str | Path | FederatedDataModule | Source | None = None,
    label: str | None = None,
    client: str | None = None,
    *,
    backbone: Backbone | None = None,
    methods: Sequence[str] = (),
    minutes: float | None = None,
    trials: int = 8,
    seeds: int = 5,
    out: str | Path = "comparison",
    overrides: Sequence[str] = (),
    say: Callable[[str], None] = print,
) -> Comparison:
    """Whether each client should have a model of its own, and which method gives the best ones.

    Every method gets the same number of trials, of which validation chooses the best; its setting is then trained on
    several seeds of split and training, whose test samples are looked at once. Called again, it goes on where it was.

    Args:
        data: a table, an .npz, a folder of images, a data set on disk; a data module, whose split is kept; or a
            function from a seed to a data module. None: `overrides` choose them.
        label, client: names of columns, of a table or a data set on disk.
        backbone: a network, or a function that makes one; None: a linear one, for images a convolutional one.
        methods: names of shipped methods, or import paths of classes; none: those of `default_candidates`.
        minutes: how long the runs may take together; more trials are made if there is time. None: `trials` each.
        trials: of each method.
        seeds: of split and training, at least two.
        out: a folder for the runs, the page and the model.
        overrides: further words of the command line, which all runs have, such as "trainer.max_epochs=100".
        say: prints a line.

    Raises:
        UserError: the data cannot be read, a method is unknown, or nothing could be trained.

    """
    require(seeds >= 2, f"seeds: expected at least 2, got {seeds}")
    require(trials >= 1, f"trials: expected at least 1, got {trials}")
    require(minutes is None or minutes > 0, f"minutes: expected a number above 0, got {minutes}")
    quieten()
    begin, folder = time.perf_counter(), Path(out).expanduser().absolute()
    given = data if callable(data) else (lambda _: data) if isinstance(data, FederatedDataModule) else None
    words = words_of(data if isinstance(data, str | Path) else None, label, client)
    runs = Runs(folder, [*words, *overrides], given, backbone)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        first = runs.data(0).federation
    require(len(first.clients()) >= 2, f"data: a comparison needs two clients, there are {len(first.clients())}")
    require(len(first.splits["val"]) > 0, "data: there are no validation samples, by which settings are chosen")
    network = runs.settle()
    of = {candidate.name: candidate for candidate in candidates(methods, runs.is_linear)}
    say(f"{first}; {len(of)} methods, {network}; folder: {folder}")
    search = Search(runs, say, trials, minutes, seeds)
    best = search.best(list(of.values()))
    on_seeds = {name: search.on_seeds(of[name], setting) for name, setting in best.items()}
    findings = _findings(runs, of, best, on_seeds, client or "client")
    lines = sentences(findings)
    doubts = [*(" ".join(str(one.message).split()) for one in caught), *data_warnings(first)]
    page = write_page(findings, lines, runs, doubts, search.left_out)
    for line in ["", *lines, f"Page: {page}; {(time.perf_counter() - begin) / 60:.1f} min"]:
        say(line)
    return Comparison(findings.answer, lines, findings.table(), findings.errors, folder)


def _findings(
    runs: Runs,
    of: Mapping[str, Candidate],
    best: Mapping[str, Setting],
    on_seeds: Mapping[str, Sequence[Done]],
    noun: str,
) -> Findings:
    """Looks at the test errors, once; trains the chosen method on all rows, and tries it on new clients."""
    finished = {name: done for name, done in on_seeds.items() if all(math.isfinite(one.error) for one in done)}
    require(
        set(NEEDED) <= finished.keys(), f"the training of {' or '.join(NEEDED)} diverged; {runs.folder}/logs says where"
    )
    errors = {name: _test_errors(done) for name, done in finished.items()}
    measure = read_run(Path(finished["fedavg"][0].folder)).measure[0]
    validation = {name: sum(one.error for one in done) / len(done) for name, done in finished.items()}
    shared = [name for name, candidate in of.items() if candidate.one_model and name in errors]
    margin = MARGIN if HIGHER_IS_BETTER[measure] else MARGIN * float(errors["fedavg"].to_numpy().mean())
    decided = answer(validation, errors, shared, margin)
    n_seeds = len(on_seeds["fedavg"])
    constants = {seed: constant_errors(runs.data(seed).federation) for seed in range(1, n_seeds + 1)}
    if all(one is not None for one in constants.values()):
        errors[CONSTANT] = pd.DataFrame(constants).reindex(errors["fedavg"].index)
    shown = dict.fromkeys([decided.chosen, *NEEDED])
    new = new_clients(runs, [(of[name], best[name]) for name in shown])
    model = final_model(
        runs, of[decided.chosen], best[decided.chosen], [one.rounds for one in finished[decided.chosen]]
    )
    folders = {name: Path(done[0].folder) for name, done in finished.items()}
    return Findings(decided, of, best, validation, errors, measure, noun, new, model, n_seeds, folders)


def _test_errors(done: Sequence[Done]) -> pd.DataFrame:
    """Test errors of the clients that train, [clients, seeds], by name."""
    columns = {}
    for one in done:
        run = read_run(Path(one.folder))
        score = run.scored["score"] / run.measure[1]
        columns[one.seed] = 1 - score if run.sign > 0 else score
    return pd.DataFrame(columns)
