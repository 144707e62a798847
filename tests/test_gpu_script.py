"""`benchmarks/gpu.py` runs on a CPU, goes on where it ended, and keeps what it has: its figures are not looked at."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from helpers.conformance import ROWS
from helpers.paths import ROOT

BENCHMARKS = ROOT / "benchmarks"
pytestmark = pytest.mark.skipif(not BENCHMARKS.is_dir(), reason="benchmarks/ is only in a checkout")

WITHOUT = 'raise ModuleNotFoundError(f"No module named {__name__!r}", name=__name__)'
STUB = """
import faulthandler, time
from pathlib import Path
from gpu import append, plan, read, read_options
options = read_options()
file = options.out / "gpu.jsonl"
if options.femnist:
    raise SystemExit("no card here")
for what in plan(options, ["FedEM"]):
    if read(file).get(what["name"], {}).get("status") in ("done", "failed", "cut off"):
        continue
    faulthandler.dump_traceback_later(options.limit, exit=True)
    append(file, **what, machine="a card", begun=time.time())
    for seconds in (9.0, 0.5):
        append(file, name=what["name"], round=[seconds], peak_gb=1.25)
    if what["name"] == "femnist, loop, 32-true":
        time.sleep(60)
    if what["name"] == "femnist, sequential, 32-true":
        raise SystemExit("out of memory")
    append(file, name=what["name"], status="done", engine="vmap")
"""


def call(script: Path, folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(script), "--out", str(folder / "out"), "--device", "cpu", "--tiny", *arguments]
    variables = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    return subprocess.run(command, capture_output=True, text=True, timeout=600, env=variables)


def rows(folder: Path) -> dict[str, dict[str, Any]]:
    """The last line of every measurement."""
    lines = (folder / "out" / "gpu.jsonl").read_text().splitlines()
    return {row["name"]: row for row in map(json.loads, lines)}


def measure(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The script itself, without hydra, omegaconf, wandb and pytest."""
    for name in ("hydra", "omegaconf", "wandb", "pytest"):
        (folder / f"{name}.py").write_text(WITHOUT)
    return call(BENCHMARKS / "gpu.py", folder, *arguments, PYTHONPATH=str(folder))


def test_two_jobs_run_on_a_cpu(tmp_path: Path) -> None:
    done = measure(tmp_path, "--only", "jobs")
    assert (done.returncode, done.stdout.endswith("all is done\n")) == (0, True), done
    found = rows(tmp_path)
    assert all(
        found[f"{job}'s job, {way}"]["status"] == "done" for job in ("FLUTE", "pfl") for way in ("ours", "plain")
    )
    table = (tmp_path / "out" / "gpu.md").read_text()
    assert "| FLUTE's job, ours | 3, 2 a round | loop | " in table
    assert "from 1 | 502, with an evaluation every 50 rounds" in table


@pytest.mark.slow
def test_everything_else_runs_on_a_cpu(tmp_path: Path) -> None:
    done = measure(tmp_path, "--only", "methods", "federations", "rounds")
    assert done.returncode == 0, done
    found = list(rows(tmp_path).values())
    assert {row["status"] for row in found} <= {"done", "missing"}
    methods = found[: len(ROWS)]
    assert all(row["passed"] and row["same_bits"] and row["difference"] == 0 for row in methods)
    assert (tmp_path / "out" / "gpu.md").read_text().count(" | PASS | 0 | yes |") == len(ROWS)


def test_a_call_goes_on_where_the_last_one_ended(tmp_path: Path) -> None:
    """A measurement that takes too long or ends the worker costs no other one."""
    folder = tmp_path / "benchmarks"
    folder.mkdir()
    for file in (BENCHMARKS / "gpu.py", ROOT / "pyproject.toml"):
        (folder / file.name).write_text(file.read_text())
    (folder / "gpu_worker.py").write_text(STUB)
    (folder / "pyproject.toml").rename(tmp_path / "pyproject.toml")
    refused = call(folder / "gpu.py", tmp_path, "--femnist", str(folder / "gpu.py"))
    assert (refused.returncode, refused.stderr) == (1, "error: no card here\n")
    part = ("--only", "rounds", "--limit", "2")
    unfinished = call(folder / "gpu.py", tmp_path, *part, "--minutes", "0.001")
    assert unfinished.stdout.endswith("something is left: call again\n")
    begun = [name for name, row in rows(tmp_path).items() if row.get("status") == "done"]
    done = call(folder / "gpu.py", tmp_path, *part)
    assert (done.returncode, done.stdout.endswith("all is done\n")) == (1, True)  # not all has been measured
    found = rows(tmp_path)
    assert {name for name, row in found.items() if row["status"] != "done"} == {
        "femnist, loop, 32-true",
        "femnist, sequential, 32-true",
    }
    assert (len(found), set(begun) <= set(found)) == (10, True)
    table = (tmp_path / "out" / "gpu.md").read_text()
    assert "| femnist, vmap, 32-true | 3 | vmap | 0.5 (0.5 - 0.5) | 1.25 |" in table
    assert "- femnist, loop, 32-true: cut off by --limit [9.0, 0.5]" in table
    assert "- femnist, sequential, 32-true: failed out of memory [9.0, 0.5]" in table
    lines = (tmp_path / "out" / "gpu.jsonl").read_text()
    call(folder / "gpu.py", tmp_path, *part)
    assert (tmp_path / "out" / "gpu.jsonl").read_text() == lines  # nothing is measured again
