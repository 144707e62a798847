"""What makes and checks the site: pages of methods and of the API; and what CI runs."""

import importlib
import re
import shutil
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

import fedem_lightning
import fedem_lightning.data
import fedem_lightning.report
from helpers.commands import CONFIG_DIR
from helpers.paths import ROOT

pytestmark = pytest.mark.skipif(not (ROOT / ".ci").is_dir(), reason="docs/ and .ci/ are only in a checkout")


@pytest.fixture
def site_code(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The modules that make and check the site."""
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
    }.items():
        (tmp_path / name).write_text(text)
        monkeypatch.setattr(site_code.method_pages, name, tmp_path / name)
    page = site_code.method_pages.completed("pfedme", "# pFedMe\n")
    assert "| `inner_steps` | `5` | towards the proximal point, for each batch |" in page
    assert "| `penalty` | `1.0` | lambda (the paper: 15); chosen anew for some data sets; in Python 15.0 |" in page
    assert "| [synthetic](../reproduction/fedem.md) | 70.0 | 69.2 |" in page
    assert "| pFedMe | FedAvg | Local |" in page
    assert "| `mine` | 69.4 ± 1.0 | - | 66.3 ± 1.2 |" in page
    assert "`x`" not in page
    assert "| theta_t | 1 / 1 | one local update |" in page
    assert "::: fedem_lightning.PFedMe" in page
    assert "[`FedAvg`](fedavg.md#in-python)" in site_code.method_pages.completed("fedavg_plus", "")


def test_a_new_method_needs_no_page(
    site_code: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages, configs = site_code.method_pages, tmp_path / "configs"
    shutil.copytree(CONFIG_DIR, configs)
    text = "defaults:\n  - /algorithm_base@_here_\n  - _self_\n\ntitle: Mine\n_target_: fedem_lightning.Ditto\n"
    text = "# Mine (Authors, arXiv 1234.56789): what it does.\n" + text + "penalty: 2.0 # lambda\n"
    (configs / "algorithm" / "mine.yaml").write_text(text)
    known = {path.stem: yaml.safe_load(path.read_text()) for path in (configs / "algorithm").glob("*.yaml")}
    monkeypatch.setattr(pages, "CONFIG_DIR", configs)
    monkeypatch.setattr(pages, "shipped", lambda group: known)
    assert pages.families()["Other methods"] == ["mine"]
    assert "[Mine](mine.md): Mine (Authors, [arXiv 1234.56789]" in pages.with_others("# Methods\n")
    page = pages.completed("mine", pages.new_page("mine"))
    assert page.startswith("# Mine\n")
    assert "| `penalty` | `2.0` | lambda; in Python 0.1 |" in page


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


def test_faults_of_a_built_site_are_found(site_code: SimpleNamespace, tmp_path: Path) -> None:
    (tmp_path / "picture.png").touch()
    fine = '<h1 id="top-of-it">A</h1><img src="picture.png"><a href="b.html#there">b</a><a href="https://x.org/y">x</a>'
    (tmp_path / "a.html").write_text(f"{fine}<pre><code>{'x' * 88}\n</code></pre>")
    (tmp_path / "b.html").write_text('<a id="there"></a><a href="a.html">a</a>')
    assert list(site_code.check_site.faults(tmp_path)) == []
    faulty = '<img src="none.png"><a href="c.html">c</a><a href="a.html#nowhere">a</a><a href="#nor-here">b</a>'
    (tmp_path / "b.html").write_text(f'<a id="there"></a>{faulty}<pre><code>{"x" * 89}\n</code></pre>')
    found = [fault.partition(": ")[2] for fault in site_code.check_site.faults(tmp_path)]
    assert found[:2] == ["none.png: no such file", "c.html: no such file"]
    assert found[2:4] == ["a.html#nowhere: no such anchor", "#nor-here: no such anchor"]
    assert found[4].startswith("89 columns of code: xxx")


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
