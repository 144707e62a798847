"""Packages for a machine without network: fetched beforehand, installed there beside what it has.

    python benchmarks/gpu_wheels.py fetch DIR [--python 3.12] [--only NAME ...]
    python benchmarks/gpu_wheels.py install DIR SITE

`fetch` downloads wheels for Linux on x86-64 and that version of Python: of the packages named and what they need, or of
all packages of pyproject.toml but torch, torchvision, pytorch-lightning and torchmetrics, which the machine has. A
package that is there as sources only (antlr4, for hydra-core) becomes a wheel. `install` puts the wheels of packages
that the machine lacks into the folder SITE, for PYTHONPATH (and a newer typing-extensions, which pydantic needs), and
the name and version of this checkout, which a package that was never installed would not know.
"""

import argparse
import re
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BROUGHT_ALONG = ("torch", "torchvision", "pytorch-lightning", "torchmetrics")
SOURCES_ONLY = ("antlr4-python3-runtime==4.9.3",)
"""What hydra-core 1.3 needs and its authors publish without a wheel."""
LINUX = ("manylinux1", "manylinux2014", *(f"manylinux_2_{minor}" for minor in (5, 12, 17, 24, 26, 27, 28)))


NEWER = ("typing-extensions",)
"""Installed in place of an older one, too: pydantic needs a new one, and it keeps what older ones had."""


def pip(*arguments: str) -> int:
    """Runs pip; its exit status."""
    return subprocess.run([sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]).returncode


def is_installed(name: str, at_least: str = "0") -> bool:
    """Whether this interpreter has the distribution, and not an older version."""
    try:
        found = version(name)
    except PackageNotFoundError:
        return False
    return numbers(found) >= numbers(at_least)


def numbers(release: str) -> list[int]:
    """Of a version, to compare it."""
    return [int(number) for number in re.findall(r"\d+", release)]


def project() -> dict[str, str | list[str]]:
    """Name, version and dependencies of this checkout."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def fetch(folder: Path, names: list[str], python: str) -> None:
    """Fills the folder; exits with one line if something cannot be had."""
    folder.mkdir(parents=True, exist_ok=True)
    every = [name for name in project()["dependencies"] if re.split(r"[<>=]", name)[0] not in BROUGHT_ALONG]
    for name in SOURCES_ONLY:
        if pip("wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), name):
            raise SystemExit(f"error: no wheel of {name}")
    target = ["--only-binary=:all:", "--implementation", "cp", "--python-version", python]
    target += [word for system in LINUX for word in ("--platform", f"{system}_x86_64")]
    if pip("download", "--quiet", "--dest", str(folder), "--find-links", str(folder), *target, *(names or every)):
        raise SystemExit("error: pip could not download everything")
    wheels = sorted(folder.glob("*.whl"))
    size = sum(wheel.stat().st_size for wheel in wheels) / 1e6
    print(f"{folder}: {len(wheels)} wheels, {size:.0f} MB")


def install(folder: Path | None, site: Path) -> None:
    """Fills the site folder; a wheel that cannot be installed is named."""
    for wheel in sorted(folder.glob("*.whl")) if folder else ():
        name, release = wheel.name.split("-")[:2]
        name = name.replace("_", "-")
        if is_installed(name, release if name in NEWER else "0"):
            continue
        options = ("--quiet", "--no-index", "--no-deps", "--no-compile", "--target", str(site))
        print(f"{name}: {'not installed' if pip('install', *options, str(wheel)) else 'installed'} from {wheel.name}")
    name, number = project()["name"], project()["version"]
    if not is_installed(str(name)):
        facts = site / f"{str(name).replace('-', '_')}-{number}.dist-info"
        facts.mkdir(parents=True, exist_ok=True)
        (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {number}\n")


def main() -> None:
    """Fetches or installs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_subparsers(dest="what", required=True)
    fetching = what.add_parser("fetch")
    fetching.add_argument("folder", type=Path)
    fetching.add_argument("--only", nargs="+", default=[], metavar="NAME")
    fetching.add_argument("--python", default=f"{sys.version_info.major}.{sys.version_info.minor}")
    installing = what.add_parser("install")
    installing.add_argument("folder", type=Path, nargs="?")
    installing.add_argument("site", type=Path)
    options = parser.parse_args()
    if options.what == "fetch":
        fetch(options.folder, options.only, options.python)
        return
    if options.folder and not options.folder.is_dir():
        raise SystemExit(f"error: --wheels: no folder {options.folder}")
    install(options.folder, options.site)


if __name__ == "__main__":
    main()
