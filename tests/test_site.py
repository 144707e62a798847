"""What makes and checks the site: pages of methods and of the API; and what CI runs."""

import importlib
import re
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

import fedem_lightning
import fedem_lightning.data
import fedem_lightning.report
from helpers.paths import ROOT

pytestmark = pytest.mark.skipif(not (ROOT / ".ci").is_dir(), reason="docs/ and .ci/ are only in a checkout")


@pytest.fixture
def site_code(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    monkeypatch.syspath_prepend(ROOT / "docs")
    names = ("method_pages", "api_pages", "check_site")
    return SimpleNamespace(**{name: importlib.import_module(name) for name in names})


def test_every_method_is_in_one_family_and_has_a_page(site_code: SimpleNamespace) -> None:
    listed = [name for names in site_code.method_pages.families().values() for name in names]
    assert sorted(listed) == site_code.method_pages.methods()
    assert "Other methods" not in site_code.method_pages.families()
    assert set(listed) <= {path.stem for path in (ROOT / "docs" / "methods").glob("*.md")}


def test_a_methods_page_has_its_settings_scores_cost_and_class(
    site_code: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in {
        "RESULTS": "method,data,page,here,paper\npfedme,synthetic,reproduction/fedem.md,70.0,69.2\n",
        "SCORES": "experiment,method,accuracy,accuracy_sd\nmine,pFedMe,69.4,1.0\nmine,Local,66.3,1.2\nx,Ditto,1,2\n",
        "FIELD": "federation,method,error\nmy_shops,pfedme,0.25\nmy_shops,fedem_tuned,0.1\n",
    }.items():
        (tmp_path / name).write_text(text)
        monkeypatch.setattr(site_code.method_pages, name, tmp_path / name)
    page = site_code.method_pages.completed("pfedme", "# pFedMe\n")
    assert "| `inner_steps` | `5` | towards the proximal point, for each batch |" in page
    assert "| `penalty` | `1.0` | lambda (the paper: 15); chosen anew for some data sets; in Python 15.0 |" in page
    assert "| [synthetic](../reproduction/fedem.md) | 70.0 | 69.2 |" in page
    assert "| pFedMe | FedAvg | Local |" in page
    assert "| `+experiment=mine` | 69.4 ± 1.0 | - | 66.3 ± 1.2 |" in page
    assert "| my shops ([the field](../reproduction/field.md)) | 75.0 | - | - |" in page
    assert "experiment=x" not in page
    assert "| theta_t | 1 / 1 | one local update |" in page
    assert "::: fedem_lightning.PFedMe" in page
    assert "[`FedAvg`](fedavg.md#in-python)" in site_code.method_pages.completed("fedavg_plus", "")


def test_every_public_name_is_on_one_page(site_code: SimpleNamespace) -> None:
    pages = site_code.method_pages
    classes = {f"fedem_lightning.{pages.class_of(name)}" for name in pages.methods()}
    texts = [*site_code.api_pages.pages(classes).values(), *map("\n".join, map(pages.class_section, pages.methods()))]
    listed = re.findall(r"^::: (\S+)$", "\n".join(texts), re.M)
    public = {f"fedem_lightning.{name}" for name in fedem_lightning.__all__}
    for package in (fedem_lightning.data, fedem_lightning.report):
        names = {n for n in package.__all__ if getattr(package, n) is not getattr(fedem_lightning, n, None)}
        public |= {f"{package.__name__}.{name}" for name in names}
    assert sorted(listed) == sorted(public)


# What CI runs


def test_make_lints_as_ci_does() -> None:
    made = re.findall(r"^\t(.*)", (ROOT / "Makefile").read_text().replace("$(BIN)", ".venv/bin/"), re.M)
    (lint,) = re.findall(r"^lint\(\) \{\n(.*?)^\}", (ROOT / ".ci" / "run").read_text(), re.S | re.M)
    for line in lint.splitlines():
        assert line.partition(" #")[0].strip() in [command.replace("$$", "$") for command in made]


def test_the_hosted_workflow_makes_every_target() -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())["jobs"]["check"]
    steps = [step["run"] for step in workflow["steps"] if "run" in step]
    assert steps[0].startswith("python3 -m venv .venv && .venv/bin/pip install -q -e")
    (targets,) = re.findall(r"^\.PHONY: (.*)", (ROOT / "Makefile").read_text(), re.M)
    assert sorted(steps[1:]) == sorted(f"make {target}" for target in targets.split())
    supported = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["classifiers"]
    versions = workflow["strategy"]["matrix"]["python"]
    assert {f"Programming Language :: Python :: {version}" for version in versions} <= set(supported)
