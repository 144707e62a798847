"""`benchmarks/gpu.sh` plans three calls, runs on a CPU, and keeps what it has: its figures are not looked at here."""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from helpers.conformance import ROWS
from helpers.paths import ROOT

BENCHMARKS = ROOT / "benchmarks"
pytestmark = pytest.mark.skipif(not BENCHMARKS.is_dir(), reason="benchmarks/ is only in a checkout")

WITHOUT_HYDRA = 'raise ModuleNotFoundError(f"No module named {__name__!r}", name=__name__)'

STUB = """
import json, sys, time
def tell(event, **facts):
    print(json.dumps({"event": event, **facts}), flush=True)
tell("ready", environment={"device": "a card"})
print("a library's own words")
for what in json.loads(sys.argv[1])["measurements"]:
    tell("begin")
    for seconds in (9.0, 2.0 if what["way"] == "sequential" else 0.5):
        tell("round", seconds=seconds, peak_gb=1.25, clients=what["clients"], samples=40)
    if (what["way"], what["precision"]) == ("loop", "32-true"):
        time.sleep(600)
    if (what["way"], what["precision"]) == ("vmap", "bf16-mixed"):
        raise SystemExit("out of memory")
    if (what["way"], what["precision"]) == ("sequential", "bf16-mixed"):
        tell("failed", reason="ValueError: no")
        continue
    tell("done", engine=what["way"])
"""


def run_gpu(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """`benchmarks/gpu.sh` on a CPU, in an environment without hydra, omegaconf, wandb and pytest."""
    lacking = folder / "lacking"
    lacking.mkdir(exist_ok=True)
    for name in ("hydra", "omegaconf", "wandb", "pytest"):
        (lacking / f"{name}.py").write_text(WITHOUT_HYDRA)
    paths = os.pathsep.join([str(lacking), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [str(BENCHMARKS / "gpu.sh"), "--out", str(folder / "out"), "--device", "cpu", "--tiny", *arguments]
    variables = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": paths, "PYTHON": sys.executable, **environment}
    return subprocess.run(command, capture_output=True, text=True, timeout=600, env=variables)


def rows(folder: Path) -> dict[str, dict[str, Any]]:
    lines = (folder / "out" / "gpu.jsonl").read_text().splitlines()
    return {row["name"]: row for row in map(json.loads, lines)}


@pytest.mark.slow
def test_the_gpu_script_runs_on_a_cpu_without_hydra(tmp_path: Path) -> None:
    done = run_gpu(tmp_path, "--only", "synthetic", "agreement")
    assert done.returncode == 0, (done.stdout, done.stderr, (tmp_path / "out" / "gpu.log").read_text())
    found = rows(tmp_path)
    assert len(found) == 12
    assert {row["status"] for row in found.values()} == {"done"}
    timed = [row for row in found.values() if row["kind"] == "rounds"]
    assert {(row["way"], row["precision"], len(row["seconds"])) for row in timed} == {
        (way, precision, 2) for way in ("vmap", "loop", "sequential") for precision in ("32-true", "bf16-mixed")
    }
    for row in found.values():
        if row["kind"] == "agreement":
            limit = 1e-12 if row["precision"] == "64-true" else 1e-5
            assert all(apart["weights"] < limit for apart in row["apart"].values())
            assert row["largest_weight"] > 0.01
    table = (tmp_path / "out" / "gpu.md").read_text()
    assert "| sequential PyTorch | 32-true |" in table
    assert "| the synthetic mixture | 64-true | vmap |" in table


def test_the_gpu_script_keeps_what_it_has(tmp_path: Path) -> None:
    """A measurement that takes too long or fails costs no other one; a later call adds its own."""
    benchmarks = tmp_path / "benchmarks"
    benchmarks.mkdir()
    for name in ("gpu.py", "gpu_plan.py", "gpu_tables.py"):
        (benchmarks / name).write_text((BENCHMARKS / name).read_text())
    (benchmarks / "gpu_worker.py").write_text(STUB)
    command = [sys.executable, str(benchmarks / "gpu.py"), "--out", str(tmp_path / "out"), "--tiny", "--limit", "2"]

    def measure(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=60)

    assert measure("--only", "femnist").returncode == 1  # one has failed
    assert [row["status"] for row in rows(tmp_path).values()] == ["done", "cut off", "done", "failed", "done", "failed"]
    table = (tmp_path / "out" / "gpu.md").read_text()
    assert "| engine=vmap | 32-true | 0.5 (0.5 - 0.5) | 4.00 | 1.25 |" in table
    assert "- femnist, loop, 32-true: cut off (after 2 s at the latest)" in table
    assert "- femnist, vmap, bf16-mixed: failed (out of memory)" in table
    assert "- femnist, sequential, bf16-mixed: failed (ValueError: no)" in table
    measure("--only", "synthetic", "--minutes", "0.001")
    names = list(rows(tmp_path))
    assert len(names) == 12
    assert "- synthetic, sequential, 32-true: not begun (no time was left)" in (tmp_path / "out" / "gpu.md").read_text()


# --- the three calls ------------------------------------------------------------------------------------------------


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Imports a module of `benchmarks/`."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module


def test_the_plan_of_the_first_call(benchmark: Any) -> None:
    plan = benchmark("gpu_plan")
    made = plan.plan(plan.CALLS[1], tiny=False)
    names = [what["name"] for what in made]
    assert len(set(names)) == len(names)
    assert [what["row"] for what in made if what["part"] == "methods"] == list(range(len(ROWS)))
    assert names[:2] == ["method, FedEM, initialization=random", "method, FedEM, shared=body, initialization=random"]
    assert names[len(ROWS) :][:3] == ["profile, femnist", "profile, synthetic", "agreement, femnist, 64-true"]


def test_the_plans_of_the_other_calls(benchmark: Any) -> None:
    plan = benchmark("gpu_plan")
    assert [what["name"] for what in plan.plan(plan.CALLS[2], tiny=False)] == [
        *("FLUTE's FEMNIST job, ours", "FLUTE's FEMNIST job, pfl", "FLUTE's FEMNIST job, plain"),
        *("pfl's CIFAR-10 job, ours", "pfl's CIFAR-10 job, pfl", "pfl's CIFAR-10 job, plain"),
    ]
    third = [what["name"] for what in plan.plan(plan.CALLS[3], tiny=False)]
    assert third[:6] == [
        "federation, FedEM, ReferenceCNN",
        "federation, user-centric, ReferenceCNN",
        "federation, HypCluster, ReferenceCNN",
        "federation, FedEM, MobileNetV2",
        "federation, FedEM with LoRA, ReferenceCNN",
        "femnist, vmap, 32-true",
    ]
    assert third[-1] == "femnist, vmap, 32-true, memory_gb=32"


def test_a_call_sets_parts_and_minutes(benchmark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = benchmark("gpu")
    for arguments, only, minutes in (
        (["--call", "2"], ("jobs",), 9.5),
        (["--call", "1", "--minutes", "3"], ("methods", "profile", "agreement"), 3.0),
        (["--only", "memory"], ["memory"], 20.0),
    ):
        monkeypatch.setattr(sys, "argv", ["gpu.py", *arguments])
        options = gpu.read_options()
        assert (options.only, options.minutes) == (only, minutes)


def test_a_call_with_parts_is_refused(tmp_path: Path) -> None:
    command = [sys.executable, str(BENCHMARKS / "gpu.py"), "--out", str(tmp_path / "out"), "--call", "1"]
    done = subprocess.run([*command, "--only", "jobs"], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: --call and --only: give one of them\n"


def test_an_error_of_python_ends_its_measurement_alone(
    benchmark: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """After an error of the card the process ends, so that it is started anew."""
    worker: ModuleType = benchmark("gpu_worker")
    cpu = torch.device("cpu")

    def events(error: Exception) -> list[dict[str, Any]]:
        def fail(*_: Any) -> None:
            raise error

        monkeypatch.setattr(worker, "find", lambda kind: fail)
        worker.measure({"kind": "method"}, None, cpu)
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    assert events(ValueError("one\ntwo")) == [{"event": "failed", "reason": "ValueError: one"}]
    missing = worker.MissingPackageError("pfl is not installed")
    assert events(missing) == [{"event": "missing", "reason": "pfl is not installed"}]
    monkeypatch.setattr(worker, "still_works", lambda device: False)
    with pytest.raises(RuntimeError, match="illegal"):
        events(RuntimeError("an illegal memory access"))


def test_the_second_call_runs_on_a_cpu(tmp_path: Path) -> None:
    done = run_gpu(tmp_path, "--call", "2")
    assert done.returncode == 0, (done.stdout, done.stderr, (tmp_path / "out" / "gpu.log").read_text())
    found = rows(tmp_path)
    for name, row in found.items():
        assert row["status"] in (("done", "missing") if row["way"] == "pfl" else ("done",)), name
        assert len(row["seconds"]) == (3 if row["status"] == "done" else 0)
    table = (tmp_path / "out" / "gpu.md").read_text()
    assert ", extrapolated from 2 rounds |" in table
    assert "| published: FLUTE |  | 502, with an evaluation every 50 rounds, on its authors' GPUs |" in table


@pytest.mark.slow
def test_the_first_and_third_call_run_on_a_cpu(tmp_path: Path) -> None:
    for call in ("1", "3"):
        done = run_gpu(tmp_path, "--call", call)
        assert done.returncode == 0, (done.stdout, done.stderr, (tmp_path / "out" / "gpu.log").read_text())
    found = rows(tmp_path).values()
    assert {row["status"] for row in found} <= {"done", "missing"}
    methods = [row for row in found if row["kind"] == "method"]
    assert len(methods) == len(ROWS)
    assert all(row["passed"] and row["same_bits"] and row["difference"] == 0 for row in methods)
    federations = {row["name"]: row for row in found if row["kind"] == "federation" and row["status"] == "done"}
    assert len(federations["federation, FedEM, ReferenceCNN"]["evaluations"]) == 2
    assert all(len(row["seconds"]) == 2 for row in federations.values())
    assert f"{len(ROWS)} of {len(ROWS)} pass" in (tmp_path / "out" / "gpu.md").read_text()
