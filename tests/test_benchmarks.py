"""The benchmarks run: their figures are not looked at here."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.paths import ROOT

BENCHMARKS = ROOT / "benchmarks"
pytestmark = pytest.mark.skipif(not BENCHMARKS.is_dir(), reason="benchmarks/ is only in a checkout")

COMMANDS = {
    "rounds.py --clients 4 --rounds 1 --all-engines": "| engine=loop |",
    "rounds.py --work femnist --mixtures --clients 2 --rounds 1": "| FedEM, shared body |",
    "throughput.py --clients 2 --samples 8 --rounds 1 --only Linear CharLSTM": "| text of 40 | CharLSTM |",
    "growth.py --clients 2 --rounds 1": "| components x 3 |",
    "peers --model linear --clients 4 --rounds 2 --runners plain ours": "| ours | ",
    "parity --methods fedavg fedfomo --rounds 1": "| 1 | ours | ",
    "reference_em.py dataset.n_clients=6 trainer.max_epochs=1 --starts random": "| FedEM, random |",
}


def run(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, *shlex.split(f"{BENCHMARKS}/{command}")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(words, capture_output=True, text=True, timeout=600, env=environment, cwd=folder)


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_a_benchmark_runs(command: str, tmp_path: Path) -> None:
    done = run(f"{command} --json figures.json", tmp_path)
    assert done.returncode == 0, done.stderr
    assert COMMANDS[command] in done.stdout
    assert '"environment"' in (tmp_path / "figures.json").read_text()


@pytest.mark.slow
def test_the_table_of_attacks(tmp_path: Path) -> None:
    """A second call runs nothing again; one with other sizes is refused."""
    command = "attacks.py --json a.json --clients 8 --test-size 50 --rules mean median --attacks sign_flip "
    command += "--methods fedavg user_centric --shares 0.2 --rounds"
    for n_runs in (8, 0):
        done = run(f"{command} 2", tmp_path)
        assert done.returncode == 0, done.stderr
        assert done.stderr.count("/8 ") == n_runs
        assert "| fedavg | 20% sign flip | " in done.stdout
    done = run(f"{command} 3", tmp_path)
    assert done.returncode == 2
    assert "has other sizes" in done.stderr
