"""Meets the commands with wrong input and says which of them do not end as promised.

    python tests/wrong_inputs/run.py [--only TEXT] [--sample N] [--seed N] [--jobs N] [--logs FOLDER]

Promised is one line, exit code 2, within 20 seconds, with no file changed and no folder left. Each command runs in a
fork of this process. Exit code 0: all cases pass.
"""

import argparse
import collections
import multiprocessing
import os
import random
import shutil
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from wrong_inputs.case import Case, Outcome, faults, meet


def all_cases() -> list[Case]:
    """Those of every room."""
    from wrong_inputs import circumstances, commands, data, folders, kept, reports, settings

    rooms = (settings, data, kept, folders, reports, commands, circumstances)
    return [case for room in rooms for case in room.cases()]


def preload() -> None:
    """Imports what the commands import, before processes are forked."""
    import torch

    torch.set_num_threads(1)
    import fedem_lightning.data.__main__
    import fedem_lightning.report.command
    import fedem_lightning.run.cli
    import fedem_lightning.run.command_line
    import fedem_lightning.run.execute
    import fedem_lightning.run.not_composed
    import fedem_lightning.serving.evaluating
    import fedem_lightning.serving.exporting
    import fedem_lightning.serving.personalizing  # noqa: F401


def main() -> None:
    """Runs the cases and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="cases whose names contain this")
    parser.add_argument("--sample", type=int, help="so many of them, drawn at random")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--logs", type=Path, help="what failing commands printed")
    chosen = parser.parse_args()
    preload()
    found = [case for case in all_cases() if chosen.only in case.name]
    if chosen.sample is not None:
        found = random.Random(chosen.seed).sample(found, min(chosen.sample, len(found)))
    _cases.extend(found)
    with multiprocessing.get_context("fork").Pool(chosen.jobs) as pool:  # of processes with one thread, which may fork
        met = []
        for case, outcome in zip(found, pool.imap(_met, range(len(found))), strict=True):
            _print_faults(case, outcome, chosen.logs)
            met.append((case, outcome))
    _print_table(met)


_cases: list[Case] = []  # workers know them by number: functions in cases cannot be pickled


def _met(number: int) -> Outcome:
    folder = Path(tempfile.mkdtemp(prefix="wrong-input-"))
    try:
        return meet(_cases[number], folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _print_faults(case: Case, outcome: Outcome, logs: Path | None) -> None:
    """A line for a case that fails, at once; what the command printed goes to a file."""
    wrong = faults(case, outcome)
    if not wrong:
        return
    line = (outcome.err.strip().splitlines() or ["-"])[-1][:150]
    print(f"{case.name}: {'; '.join(wrong)} | {line}", flush=True)
    if logs is not None:
        logs.mkdir(parents=True, exist_ok=True)
        path = logs / (case.name.replace("/", "_")[:150] + ".txt")
        path.write_text(f"{case}\n{wrong}\n{outcome.code}\n{outcome.out}\n{outcome.err}")


def _print_table(met: list[tuple[Case, Outcome]]) -> None:
    """Cases and faults by room."""
    counts: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for case, outcome in met:
        numbers, wrong = counts[case.name.split("/")[0]], faults(case, outcome)
        numbers["cases"] += 1
        numbers["passed"] += not wrong
        numbers.update({fault.split(" ")[0] for fault in wrong})
    for room, numbers in counts.items():
        print(room, dict(numbers))
    bad = sum(numbers["cases"] - numbers["passed"] for numbers in counts.values())
    print(f"{len(met)} cases, {bad} failed, the slowest {max(o.seconds for _, o in met):.1f} s")
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
