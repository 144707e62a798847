"""Groups of runs that differ by seed alone, and settings of groups that one table compares."""

import json
import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from fedem_lightning.report.finished_run import Run
from fedem_lightning.settings import keys
from fedem_lightning.settings.errors import one_line
from fedem_lightning.settings.measures import headline

BASELINES = ("local", "fedavg")
"""The methods that every deployment could fall back to; the rows of others are compared with them by client."""

_WITHOUT_EFFECT = {*keys.WITHOUT_EFFECT, *keys.PASSED_ON, *keys.LOOKS, "seed"}
"""Parts and keys of the configuration in which repetitions may differ; some set others, in the algorithm's part."""
_BEST, _CHOOSES_BEST = "callbacks.best_round.", {"trainer.check_val_every_n_epoch"}
"""What keeps the model of the best round on validation, and the key on which that round then depends."""
_COMMON_KEYS = ("algorithm.participation", "algorithm.local_epochs")
"""Keys shown if rows of a table differ in them; other keys are shown if they distinguish rows of one method."""


@dataclass(frozen=True)
class Group:
    """Runs that differ in their seed alone, one for each and sorted by it.

    The label has the algorithm and the `values`, by key of the configuration, that others of the table do not have.
    """

    algorithm: str
    label: str
    runs: list[Run]
    values: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The label with the algorithm's title for readers, e.g. FedEM."""
        title = keys.method_title(self.algorithm, self.runs[0].config.get("algorithm.title"))
        return self.label.replace(self.algorithm, one_line(title), 1)


@dataclass(frozen=True)
class Setting:
    """Groups in the order of the table that compares them: they have the same data and backbone.

    The title has the data set and the `values`, by key of the configuration, that its other settings do not have.
    """

    dataset: str
    backbone: str
    title: str
    groups: list[Group]
    values: dict[str, Any] = field(default_factory=dict)

    @property
    def runs(self) -> list[Run]:
        """The runs of all groups."""
        return [run for group in self.groups for run in group.runs]

    @property
    def measure(self) -> tuple[str, float]:
        """The score that the table shows, and its factor."""
        return self.groups[0].runs[0].measure

    @property
    def scored(self) -> str:
        """Of which round the scores are."""
        kept, best = {run.keeps_best for run in self.runs}, "of the best round on validation"
        return best if kept == {True} else "after the last round" + f", or {best}" * (True in kept)

    @property
    def unit(self) -> str:
        """The unit of that score, for an axis."""
        return headline([self.measure[0]])[2]

    @property
    def sign(self) -> int:
        """1 if higher scores are better, else -1."""
        return self.groups[0].runs[0].sign

    @property
    def better(self) -> str:
        """How the better one of two scores is."""
        return "higher" if self.sign > 0 else "lower"

    @property
    def seeds(self) -> str:
        """The number of seeds of the rows, in words."""
        counts = sorted({len(group.runs) for group in self.groups})
        return "one seed" if counts == [1] else " to ".join(map(str, counts[:1] + counts[1:][-1:])) + " seeds"


def group_runs(runs: Iterable[Run]) -> tuple[list[Setting], list[str]]:
    """The settings and groups of runs, and a line for each run that a newer one with the same seed replaces."""
    tree: dict[tuple[str, str, str], dict[tuple[str, str], list[Run]]] = defaultdict(lambda: defaultdict(list))
    for run in runs:
        key = (run.results["dataset"], run.results["backbone"], _comparable(_setting_part(run)))
        tree[key][run.algorithm, _comparable(_own_part(run))].append(run)
    notes: list[str] = []
    kept = [[_one_a_seed(group, notes) for group in groups.values()] for groups in tree.values()]
    examples = [groups[0][0] for groups in kept]
    settings = [_titled(groups[0][0], examples, _labelled(groups)) for groups in kept]
    return sorted(settings, key=lambda setting: _natural(setting.title)), notes


def shorten(text: str, longest: int = 80) -> str:
    """A text of at most `longest` letters; beginning and end are kept, because labels often differ at their end."""
    text, end = one_line(text), longest // 3
    return text if len(text) <= longest else f"{text[: longest - end - 3]}...{text[-end:]}"


def as_typed(value: Any) -> str:
    """A value of the configuration as a user would type it."""
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _own_part(run: Run) -> dict[str, Any]:
    """The part of a configuration that repetitions must share, beside that of their setting."""
    without = {*_WITHOUT_EFFECT, *keys.OF_SETTING} - (_CHOOSES_BEST if run.keeps_best else set())
    return {k: v for k, v in run.config.items() if k.startswith(_BEST) or not {k, k.split(".")[0]} & without}


def _setting_part(run: Run) -> dict[str, Any]:
    result = {key: value for key, value in run.config.items() if key.split(".")[0] in keys.OF_SETTING}
    return {key: value for key, value in result.items() if key not in _WITHOUT_EFFECT}


def _comparable(config: dict[str, Any]) -> str:
    """A value for comparison: 1 and 1.0 are equal, and a key that a run lacks is null."""
    numbers = {k: float(v) for k, v in config.items() if isinstance(v, int) and not isinstance(v, bool)}
    given = {k: v for k, v in (config | numbers).items() if v is not None}
    return json.dumps(given, sort_keys=True, default=str)


def _differing_keys(configs: list[dict[str, Any]]) -> list[str]:
    """The keys in which configurations differ, in their order of appearance."""
    known = dict.fromkeys(key for config in configs for key in config)
    return [key for key in known if len({_comparable({key: c.get(key)}) for c in configs}) > 1]


def _one_a_seed(runs: list[Run], notes: list[str]) -> list[Run]:
    """The newest run of each seed; notes list the older ones."""
    newest: dict[int, Run] = {}
    for run in sorted(runs, key=lambda r: r.date):
        if run.seed in newest:
            what = f"{one_line(newest[run.seed].folder)}: left out, {one_line(run.folder)}"
            notes.append(f"{what} repeats {run.algorithm}, seed {run.seed}, and is newer")
        newest[run.seed] = run
    return [newest[seed] for seed in sorted(newest)]


def _labelled(groups: list[list[Run]]) -> list[Group]:
    """Groups with labels, the baselines first."""
    configs = [_own_part(runs[0]) for runs in groups]
    common = [key for key in _COMMON_KEYS if key in _differing_keys(configs)]
    shown = []
    for runs, config in zip(groups, configs, strict=True):
        rivals = [c for c, others in zip(configs, groups, strict=True) if others[0].algorithm == runs[0].algorithm]
        wanted = dict.fromkeys([*(key for key in common if key in config), *_differing_keys(rivals)])
        shown.append({key: config.get(key) for key in wanted})
    in_labels = {key for values in shown for key in values}
    result = []
    for runs, values in zip(groups, shown, strict=True):
        name, message = runs[0].algorithm, ", ".join(_said(key, v, in_labels, configs) for key, v in values.items())
        result.append(Group(name, one_line(f"{name} ({message})" if message else name), runs, values))
    return sorted(result, key=lambda row: ((*BASELINES, row.algorithm).index(row.algorithm), _natural(row.label)))


def _said(key: str, value: Any, others: Iterable[str], configs: Iterable[dict[str, Any]]) -> str:
    """A key and its value, with three digits if these tell it from others; of a part with a target name and class."""
    part, _, name = key.rpartition(".")
    if part and name == "_target_":
        return f"{part}={'default' if value is None else str(value).rpartition('.')[2]}"
    texts = {as_typed(v): _three_digits(v) for v in (value, *(config.get(key) for config in configs))}
    text = texts[as_typed(value)]
    single = [*texts.values()].count(text) == 1
    return f"{keys.short(key, others)}={text if single else as_typed(value)}"


def _three_digits(value: Any) -> str:
    round_it = isinstance(value, float) and abs(value) < 1000 and not value.is_integer()
    return f"{value:.3g}" if round_it else as_typed(value)


def _titled(run: Run, rivals: list[Run], groups: list[Group]) -> Setting:
    """The setting of a run, whose title has the values in which it differs from the settings of `rivals`."""
    dataset, backbone, config = run.results["dataset"], run.results["backbone"], _setting_part(run)
    rivals = [r for r in rivals if r.results["dataset"] == dataset]
    configs = [_setting_part(r) for r in rivals if r.results["backbone"] == backbone]
    values = {key: config.get(key) for key in _differing_keys(configs)}
    details = [backbone] * (len(configs) < len(rivals)) + [_said(k, v, config, configs) for k, v in values.items()]
    return Setting(dataset, backbone, one_line(", ".join([dataset, *details])), groups, values)


def _natural(title: str) -> list[str | float]:
    """A sorting key by which 30 comes before 100, and 1e-05 before 0.5."""
    parts = re.split(r"(\d+(?:\.\d+)?(?:e[+-]?\d+)?)", title)  # text and numbers in turn
    return [float(part) if i % 2 else part for i, part in enumerate(parts)]
