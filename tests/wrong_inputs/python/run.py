"""Misuses the package from Python and says which calls do not end as promised.

    python tests/wrong_inputs/python/run.py [--only TEXT] [--sample N] [--seed N]

Promised is the right result, or one line of a UserError or of Lightning's MisconfigurationException. All calls are made
in this process. Exit code 0: all calls end well.
"""

import argparse
import collections
import contextlib
import io
import logging
import os
import random
import re
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from wrong_inputs.python.call import Call, Outcome, faults, meet


def all_calls() -> list[Call]:
    """Those of every room."""
    from wrong_inputs.python import arrays, constructors, lightning, networks, trained

    return [call for room in (constructors, networks, lightning, arrays, trained) for call in room.calls()]


def met(call: Call) -> Outcome:
    """Makes a call in an empty folder, without its output."""
    with tempfile.TemporaryDirectory(prefix="python-call-") as folder, contextlib.redirect_stdout(io.StringIO()):
        return meet(call, Path(folder))


def main() -> None:
    """Makes the calls and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="calls in whose names this regular expression is found")
    parser.add_argument("--sample", type=int, help="so many of them, drawn at random")
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    found = [call for call in all_calls() if re.search(chosen.only, call.name)]
    if chosen.sample is not None:
        found = random.Random(chosen.seed).sample(found, min(chosen.sample, len(found)))
    counts: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for call in found:
        outcome = met(call)
        wrong = faults(call, outcome)
        numbers = counts[call.name.split("/")[0]]
        numbers["cases"] += 1
        numbers["passed"] += not wrong
        numbers.update(fault.split(" ")[0] for fault in wrong)
        if wrong:
            said = " ".join(f"{outcome.error or outcome.warned}".split())[:170]
            print(f"{call.name}: {'; '.join(wrong)} | {said}", flush=True)
    for room, numbers in counts.items():
        print(room, dict(numbers))
    bad = sum(numbers["cases"] - numbers["passed"] for numbers in counts.values())
    print(f"{len(found)} calls, {bad} failed")
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
