"""Rows that are compared with no other one: their training had not ended, or nobody chose their learning rate."""

import shlex
from collections import defaultdict
from collections.abc import Iterable, Iterator

from fedem_lightning.errors import one_line
from fedem_lightning.report.groups import Group, Setting, shorten
from fedem_lightning.run.job_folders import resume_command
from fedem_lightning.settings.keys import UNCHOSEN

MARK = "*"
"""Of a learning rate that nobody chose for a row's data."""
UNFINISHED = "†"
"""Of a row with a run whose training had not ended."""


def unchosen(group: Group) -> list[str]:
    """Whose learning rate nobody chose for a row's data: the row's name, or "ADAPTATION of NAME"."""
    found = [
        f"{one_line(rate['of'])} of {shorten(group.name)}" if number else shorten(group.name)
        for run in group.runs
        for number, rate in enumerate(run.results.get("learning_rates") or [])
        if rate["chosen_by"] in UNCHOSEN
    ]
    return list(dict.fromkeys(found))


def finished(group: Group) -> bool | None:
    """Whether the training of all seeds had ended, as results.json says under `convergence`; None: it is not known."""
    said = [run.results["convergence"].get("finished") for run in group.runs]
    return False if False in said else None if None in said else True


def doubt(group: Group) -> str:
    """Why a row is compared with no other one; empty: it is."""
    training = "its training had not ended" if finished(group) is False else ""
    rate = "nobody chose its learning rate" if unchosen(group) else ""
    return " and ".join(filter(None, (training, rate)))


def doubts(groups: Iterable[Group]) -> str:
    """The rows with a doubt, each with its reason; empty: all are compared."""
    return ", ".join(f"{shorten(group.name)} ({said})" for group in groups if (said := doubt(group)))


def doubtful_lines(setting: Setting) -> Iterator[str]:
    """Lines on rows with a doubt: what is the matter, and what mends it."""
    if rates := [name for group in setting.groups for name in unchosen(group)]:
        yield (
            f"{MARK} nobody chose the learning rate of {', '.join(rates)} for these data, and another may be much "
            "better: choose one with +tune=learning_rate (docs/trackers.md), in Python with "
            "client_optimizer=ClientSGD(lr=...)"
        )
    for group in setting.groups:
        if finished(group) is False:
            yield f"{UNFINISHED} the training of {shorten(group.name)} had not ended{_still_falling(group)}"
    if len(setting.groups) > 1 and (found := doubts(setting.groups)):
        yield f"not compared with other rows: {found}"


def _still_falling(group: Group) -> str:
    """The seeds whose loss still fell, by how much it did with the first of them, and what continues that run."""
    runs = [run for run in group.runs if run.results["convergence"].get("finished") is False]
    run, found, (first, last) = runs[0], runs[0].results["convergence"], runs[0].results["convergence"]["rounds"]
    split = {"val": "validation", "train": "training"}.get(found["split"], found["split"])
    fell = f"{split} loss fell by {100 * found['share']:.1f} % from round {first} to {last}"
    seeds = f"seed {run.seed} ({fell})"
    if len(runs) > 1:
        seeds = f"seeds {', '.join(str(run.seed) for run in runs)} ({fell} with seed {run.seed})"
    rounds = f"max_epochs={2 * run.results['rounds']}"
    words = shlex.split(str(run.results.get("command") or ""))[3:]  # without python -m fedem_lightning
    kept = [word for word in words if not word.startswith("trainer.max_epochs=")]
    command = f"{resume_command(run.folder.absolute(), [*kept, f'trainer.{rounds}'])}, or " if words else ""
    return f" with {seeds}; go on with: {command}in Python Trainer({rounds})"


def unknown_line(setting: Setting) -> list[str]:
    """A line on rows of which it is not known whether their training had ended, with the reasons; none without any."""
    why: dict[str, list[str]] = defaultdict(list)
    for group in setting.groups:
        if finished(group) is None:
            said = (run.results["convergence"] for run in group.runs)
            reasons = {
                one_line(c.get("reason") or "made before runs looked") for c in said if c.get("finished") is None
            }
            why[" and ".join(sorted(reasons))].append(shorten(group.name))
    if [len(names) for names in why.values()] == [len(setting.groups)]:
        return [f"whether training had ended is not known of any row ({next(iter(why))})"]
    rows = ", ".join(f"{', '.join(names)} ({reason})" for reason, names in why.items())
    return [f"whether training had ended is not known of {rows}"] if rows else []
