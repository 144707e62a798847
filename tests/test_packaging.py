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


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    site = tmp_path_factory.mktemp("site")
    quiet = ["--quiet", "--no-deps", "--no-index", "--target", str(site)]
    install = [sys.executable, "-m", "pip", "install", *quiet, str(wheel)]
    subprocess.run(install, check=True, capture_output=True, timeout=120)
    return site


def from_the_wheel(site: Path, folder: Path, *arguments: str) -> str:
    """What `python ARGUMENTS` prints in a folder, with the installed wheel."""
    environment = {**os.environ, "PYTHONPATH": str(site)}
    command = [sys.executable, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_wheel_holds_the_whole_package_and_starts_in_an_empty_folder(installed: Path, tmp_path: Path) -> None:
    """Every file, with the same content: what runs from here runs from the wheel."""
    package = installed / "fedem_lightning"
    for source, copy in ((ROOT / "src" / "fedem_lightning", package), (ROOT / "configs", package / "configs")):
        files = [path for path in source.rglob("*") if path.is_file() and path.suffix != ".pyc"]
        assert len(files) > 50
        for path in files:
            assert (copy / path.relative_to(source)).read_bytes() == path.read_bytes(), path
    where = from_the_wheel(installed, tmp_path, "-c", "import fedem_lightning; print(fedem_lightning.__file__)")
    assert Path(where.strip()).is_relative_to(installed)
    composed = from_the_wheel(installed, tmp_path, "-m", "fedem_lightning", "+experiment=digits", "--cfg", "job")
    assert "_target_: fedem_lightning.Digits" in composed


def test_the_public_api_is_what_all_lists() -> None:
    public = {name for name in dir(fedem_lightning) if not name.startswith("_")}
    modules = {name for name in public if type(getattr(fedem_lightning, name)).__name__ == "module"}
    assert public - modules == set(fedem_lightning.__all__)


def test_the_version_comes_from_one_place() -> None:
    version = re.search(r'^version = "(.*)"', (ROOT / "pyproject.toml").read_text(), re.M).group(1)
    assert fedem_lightning.__version__ == version
    assert f"## [{version}]" in (ROOT / "CHANGELOG.md").read_text()
    assert f"version: {version}" in (ROOT / "CITATION.cff").read_text()
