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
