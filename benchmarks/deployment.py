"""Wall clock, processes and memory of a demonstration: a server and its clients on this machine.

    python benchmarks/deployment.py --clients 5 --rounds 5

Runs `python -m fedem_lightning.deploy demo` and looks at all of its processes four times a second. Memory is the sum of
their proportional set sizes, in which what several processes share counts once; Linux only.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def session_of(leader: int) -> list[Path]:
    """The folders in /proc of a session's processes."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, session = path.read_text().rpartition(")")[2].split()[:4]
        except OSError:  # it has ended in the meantime
            continue
        if int(session) == leader and state != "Z":
            found.append(path.parent)
    return found


def megabytes(process: Path) -> float:
    """A process's proportional set size."""
    try:
        lines = (process / "smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


def main() -> None:
    """Runs the demonstration and prints a row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--command", nargs="+", default=[], help="options of the demonstration, such as --secure")
    options = parser.parse_args()
    most, largest = 0, 0.0
    with tempfile.TemporaryDirectory() as folder:
        words = ["+experiment=digits", f"dataset.n_clients={options.clients}", f"trainer.max_epochs={options.rounds}"]
        command = [sys.executable, "-m", "fedem_lightning.deploy", "demo", *options.command, *words]
        begun = time.monotonic()
        demo = subprocess.Popen([*command, f"run_dir={folder}/run"], stdout=subprocess.DEVNULL, start_new_session=True)
        while demo.poll() is None:
            processes = session_of(demo.pid)
            most = max(most, len(processes))
            largest = max(largest, sum(map(megabytes, processes)))
            time.sleep(0.25)
        seconds = time.monotonic() - begun
    if demo.returncode:
        sys.exit(f"the demonstration has ended with exit code {demo.returncode}")
    print("| clients | rounds | seconds | processes | megabytes |\n|---|---|---|---|---|")
    print(f"| {options.clients} | {options.rounds} | {seconds:.1f} | {most} | {largest:.0f} |")


if __name__ == "__main__":
    main()
