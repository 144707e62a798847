"""The wheel runs from an empty folder; the README's Python runs."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import fedem_lightning
from helpers.paths import ROOT


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    return next(folder.glob("*.whl"))


def test_the_wheel_runs_in_an_empty_folder(wheel: Path, tmp_path: Path) -> None:
    site, empty = tmp_path / "site", tmp_path / "empty"
    empty.mkdir()
    install = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--no-index",
        "--target",
        str(site),
        str(wheel),
    ]
    subprocess.run(install, check=True, capture_output=True, timeout=120)
    environment = {**os.environ, "PYTHONPATH": str(site)}
    where = [sys.executable, "-c", "import fedem_lightning; print(fedem_lightning.__file__)"]
    found = subprocess.run(where, check=True, capture_output=True, text=True, cwd=empty, env=environment).stdout
    assert Path(found.strip()).is_relative_to(site)
    arguments = ["+experiment=digits", "trainer.max_epochs=2", "run_dir=run"]
    command = [sys.executable, "-m", "fedem_lightning", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=empty, env=environment, timeout=120)
    assert done.returncode == 0, done.stderr
    assert (empty / "run" / "results.json").exists()
    assert (site / "fedem_lightning" / "run" / "results.schema.json").is_file()


def test_the_public_api_is_what_all_lists() -> None:
    public = {name for name in dir(fedem_lightning) if not name.startswith("_")}
    modules = {name for name in public if type(getattr(fedem_lightning, name)).__name__ == "module"}
    assert public - modules == set(fedem_lightning.__all__)


def test_the_readmes_python_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S).group(1)
    assert len([line for line in code.splitlines() if line.strip()]) <= 15
    monkeypatch.chdir(tmp_path)
    quick = code.replace("max_epochs=200", "max_epochs=2").replace(
        "SyntheticMixture(", "SyntheticMixture(test_size=50, "
    )
    assert quick != code
    exec(compile(quick, "README.md", "exec"), {})
    out = capsys.readouterr().out
    assert all(word in out for word in ("seen", "unseen", "mean"))


def test_the_version_comes_from_one_place() -> None:
    version = re.search(r'^version = "(.*)"', (ROOT / "pyproject.toml").read_text(), re.M).group(1)
    assert fedem_lightning.__version__ == version
    assert f"## [{version}]" in (ROOT / "CHANGELOG.md").read_text()
    assert f"version: {version}" in (ROOT / "CITATION.cff").read_text()
