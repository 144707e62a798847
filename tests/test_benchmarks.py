"""The benchmarks run: their figures are not looked at here."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
pytestmark = pytest.mark.skipif(not BENCHMARKS.is_dir(), reason="benchmarks/ is only in a checkout")


@pytest.mark.slow
def test_all_benchmarks_run(tmp_path: Path) -> None:
    command = [sys.executable, str(BENCHMARKS), "--quick", "--out", str(tmp_path)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=1500, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stderr
    joined = (tmp_path / "README.md").read_text()
    for part in ("rounds", "throughput", "roofs", "growth", "processes", "loading"):
        assert (tmp_path / f"{part}.json").is_file() or list(tmp_path.glob(f"{part}*.json")), joined
