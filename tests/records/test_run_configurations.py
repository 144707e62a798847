"""Configurations of foreign runs: nothing of this machine gets into a value, an error line or a model card."""

import itertools
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from omegaconf.errors import GrammarParseError

from fedem_lightning import UserError
from fedem_lightning.records.configs import flatten, read_tree, read_yaml, resolved, with_data_dir
from fedem_lightning.report.collect import read_config
from fedem_lightning.run.resuming import differences, tree_of
from fedem_lightning.serving.export_places import _settings
from fedem_lightning.serving.retest import _config as config_of
from helpers.commands import CONFIG_DIR

SECRET = "hf-12345"
ASKED = "${oc.env:S}"
FORMS = (
    *(ASKED, f"a {ASKED} b", f"\\{ASKED}", f"\\\\{ASKED}", f"\\\\\\{ASKED}", "$${oc.env:S}", "${oc.env:S"),
    *("${ oc.env:S }", "${oc.env: S}", "${oc.env:'S'}", '${oc.env:"S"}', "${oc.env:S,x}", "${oc.env:${zz.name}}"),
    *(f"${{oc.env:NOPE,{ASKED}}}", f"${{oc.decode:{ASKED}}}", f"${{oc.create:{ASKED}}}", "${oc.env:S}${oc.env:S}"),
    *(f"${{oc.deprecated:seed,{ASKED}}}", f"${{oc.select:no,{ASKED}}}", f"${{first:null,{ASKED}}}", "${made.up:S}"),
    *(f"${{tenth:{ASKED}}}", f"${{by_fidelity:{ASKED},{ASKED}}}", f"${{chosen:no,{ASKED}}}", "${${zz.oc}:S}"),
    *(f"${{folder_name:{ASKED}}}", f"${{{ASKED}}}", f"${{zz.{ASKED}}}", "${zz.direct}", "${zz.twice}", "x ${zz.twice}"),
    *("${.${zz.name}}", "${oc.dict.values:zz}", "${hydra:runtime.cwd}", "${now:%Y}", "${zz}"),
    *(f"a\n{ASKED}", f"${{first:{{a: {ASKED}}}}}", f"${{first:[{ASKED}]}}"),
)
HIDDEN_KEYS = {"name": "S", "oc": "oc.env", "direct": ASKED, "twice": "${zz.direct}"}


@pytest.fixture(scope="module")
def composed() -> dict[str, Any]:
    """The default configuration, as it is written."""
    with initialize_config_dir(str(CONFIG_DIR), version_base="1.3"):
        return tree_of(compose("config", []))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run's folder without a configuration, on a machine with a secret in its environment."""
    monkeypatch.setenv("S", SECRET)
    (tmp_path / ".hydra").mkdir()
    return tmp_path


def keys_of(tree: dict[str, Any]) -> list[str]:
    return [key for key in flatten(tree) if not key.startswith(("chosen_for", "learning_rates", "method_settings"))]


def changed(tree: dict[str, Any], key: str, value: Any) -> dict[str, Any]:
    """The tree with another value of a dotted key."""
    first, _, rest = key.partition(".")
    return tree | {first: changed(tree[first], rest, value) if rest else value}


def all_that_is_said(tree: dict[str, Any], before: dict[str, Any], folder: Path) -> str:
    """What every reader of the configuration makes of it, and every line that one refuses with."""
    path = folder / ".hydra" / "config.yaml"
    path.write_text(yaml.dump(tree, Dumper=getattr(yaml, "CSafeDumper", yaml.SafeDumper)))
    said: list[Any] = [read_config(path), read_tree(path), _settings(folder), differences(read_yaml(path), before)]
    with suppress(GrammarParseError):  # which no command gets as far as
        said.append(flatten(resolved(tree)))
    try:
        said.append(config_of(folder))
    except UserError as error:
        said.append(error)
    return str(said)


def check(cases: list[tuple[str, str]], composed: dict[str, Any], folder: Path) -> None:
    for key, form in cases:
        start = time.perf_counter()
        said = all_that_is_said(changed(composed, key, form) | {"zz": HIDDEN_KEYS}, composed, folder)
        assert SECRET not in said, (key, form)
        assert time.perf_counter() - start < 5


@pytest.mark.parametrize("key", ["dataset.noise", "seed"])
def test_no_form_asks_the_environment(key: str, composed: dict[str, Any], folder: Path) -> None:
    check([(key, form) for form in FORMS], composed, folder)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(4))
def test_no_key_asks_the_environment(number: int, composed: dict[str, Any], folder: Path) -> None:
    cases = list(itertools.product(keys_of(composed), FORMS))
    assert len(cases) > 3000
    check(cases[number::4], composed, folder)


@pytest.mark.parametrize("overrides", [[], ["+experiment=digits"], ["algorithm=clustered", "fidelity=reference"]])
def test_values_are_those_of_omegaconf(overrides: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDEM_LIGHTNING_DATA", "/somewhere")
    with initialize_config_dir(str(CONFIG_DIR), version_base="1.3"):
        config = compose("config", overrides)
    assert resolved(with_data_dir(tree_of(config))) == OmegaConf.to_container(config, resolve=True)


def test_a_folder_of_data_is_asked_for_in_one_form_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDEM_LIGHTNING_DATA", SECRET)
    shipped = "${oc.env:FEDEM_LIGHTNING_DATA,x}"
    assert with_data_dir({"data_dir": shipped}) == {"data_dir": SECRET}
    others = ("${oc.env:FEDEM_LIGHTNING_DATA}", f"x{shipped}", f"{shipped}x", shipped.replace("x", "${oc.env:S}"))
    trees: list[dict[str, Any]] = [{"data_dir": form} for form in others]
    for tree in (*trees, {"path": shipped}, {"data_dir": [shipped]}):
        assert resolved(with_data_dir(tree)) == tree


NEST = "".join(f"b{i}: &b{i}\\n- *b{i - 1}\\n- *b{i - 1}\\n- *b{i - 1}\\n" for i in range(1, 25))
BOMBS = {
    "block-aliases-in-an-argument": f'a: "x ${{first:b0: &b0\\n- x\\n{NEST}}}"',
    "aliases-in-an-argument": f'a: "${{first:b0: &b0\\n- x\\n{NEST}}}"',
    "commas": f"a: '${{first:{',' * 900}}}'\n" + "".join(f"b{i}: ${{a}}\n" for i in range(40_000)),
    "nulls": f"a: '${{first:{'null,' * 190}}}'\n" + "".join(f"b{i}: ${{a}}\n" for i in range(40_000)),
    "braces": "a: '" + "${first:{" * 100 + "'\n" + "".join(f"b{i}: x${{a}}\n" for i in range(40_000)),
    "chosen": f"a: '${{chosen:{'a.b,' * 200}}}'\n" + "".join(f"b{i}: ${{a}}\n" for i in range(20_000)),
    "long-texts": f"a: '{'x' * 9000}'\n" + "".join(f"b{i}: x${{a}}\n" for i in range(40_000)),
    "whole-texts": f"a: '{'x' * 9000}'\n" + "".join(f"b{i}: ${{a}}\n" for i in range(40_000)),
    "keys-in-texts": f"a: {{b: {'x' * 9000}}}\n" + "".join(f"b{i}: x${{a}}${{a}}\n" for i in range(40_000)),
    "open": "a: '" + "${" * 400_000 + "'",
    "one-long-text": "a: '" + "${b}" * 200_000 + "'\nb: 1\n",
    "itself": "a: {b: '${a}'}",
    "each-other": "a: ['${b}', '${b}']\nb: ['${a}', '${a}']\n",
    "three-each": "a: ${b}${c}\nb: ${c}${a}\nc: ${a}${b}\n",
    "tenth-of-tenths": "a: '" + "${tenth:" * 100 + "8" + "}" * 100 + "'",
    "anchors": "a: &a [x, x]\nb: [*a, *a]\n",
    "tag": "a: !!python/object/apply:os.system ['touch touched']\n",
    "null": "\0",
}


FEW = ("block-aliases-in-an-argument", "aliases-in-an-argument", "itself", "each-other", "three-each", "tag")


@pytest.mark.parametrize(
    "name", [name if name in FEW else pytest.param(name, marks=pytest.mark.slow) for name in BOMBS]
)
def test_no_configuration_takes_long(name: str, folder: Path) -> None:
    path = folder / ".hydra" / "config.yaml"
    path.write_text(BOMBS[name])
    start = time.perf_counter()
    assert len(read_or_refuse(path)) < 20_000_000
    _settings(folder)
    assert time.perf_counter() - start < 10
    assert not Path("touched").exists()


def read_or_refuse(path: Path) -> str:
    try:
        return str(read_tree(path))
    except UserError as error:
        return str(error)
