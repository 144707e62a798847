"""The schema of results.json; tests/test_configs.py holds every shipped choice against it."""

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jsonschema import Draft202012Validator

from fedem_lightning.run.results import SCHEMA_VERSION
from helpers.runs import leave_undrawn, run_small
from helpers.schema import SCHEMA, problems, problems_of_run

KINDS = {
    "mixture": ["callbacks=bounds", "dataset.unseen_fraction=0.25", "network=figure3"],
    "clustered": ["algorithm=clustered", "algorithm.min_rounds=1", "dataset.n_clients=6"],
    "regression": ["dataset=npz", "dataset.path={files}/rows.npz", "dataset.task=regression"],
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """40 rows with real targets."""
    folder, rng = tmp_path_factory.mktemp("data"), np.random.default_rng(0)
    x = rng.normal(size=(40, 3)).astype(np.float32)
    np.savez(folder / "rows.npz", x=x, y=x @ np.arange(3, dtype=np.float32), client=np.arange(40) % 4)
    return folder


@pytest.fixture(scope="module")
def runs(files: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A finished run of each kind."""
    folder = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        leave_undrawn(patch)
        for kind, overrides in KINDS.items():
            run_small(folder / kind, files, *(word.format(files=files) for word in overrides))
    return {kind: folder / kind for kind in KINDS}


def test_the_schema_is_one_and_has_the_version_that_runs_write() -> None:
    Draft202012Validator.check_schema(SCHEMA)
    assert SCHEMA["properties"]["schema_version"]["const"] == SCHEMA_VERSION
    assert "schema_version" in SCHEMA["required"]


def test_each_kind_of_run_fits(runs: dict[str, Path]) -> None:
    assert {kind: problems_of_run(folder) for kind, folder in runs.items()} == {kind: [] for kind in KINDS}


def test_what_the_bits_depend_on_stands_in_the_results(runs: dict[str, Path]) -> None:
    results = json.loads((runs["mixture"] / "results.json").read_text())
    named = results | {"seed": 0}  # the run's own function adds it
    for key in results["reproducibility"]["depends_on"]:
        group, _, name = key.partition(".")
        assert name in named[group] if name else group in named, key
    assert results["reproducibility"]["same_bits"]


def test_the_kinds_have_what_only_they_have(runs: dict[str, Path]) -> None:
    results = {kind: json.loads((folder / "results.json").read_text()) for kind, folder in runs.items()}
    assert results["mixture"]["bounds"]["models"] > 0
    assert results["mixture"]["unseen"]["test"]
    assert results["mixture"]["communication"]["time"]
    assert len(results["mixture"]["components"]["agreement"]) == 3
    assert results["clustered"]["clustered"]["eps1"] > 0
    assert "mse" in results["regression"]["test"]
    assert results["regression"]["components"].keys() == {"mean_weights", "effective", "dead", "twins"}


def without(results: dict[str, Any], path: str) -> dict[str, Any]:
    """The results without a key."""
    changed = copy.deepcopy(results)
    *branches, leaf = path.split(".")
    place = changed
    for name in branches:
        place = place[name]
    del place[leaf]
    return changed


def test_a_missing_key_is_a_problem_and_so_is_another_spelling(runs: dict[str, Path]) -> None:
    results = json.loads((runs["mixture"] / "results.json").read_text())
    nested = ("test.accuracy.weighted", "seconds.total", "engine.name", "environment.commit", "bounds.terms.local")
    needed = [*SCHEMA["required"], *nested, "communication.up_bytes", "unseen.test", "components.dead"]
    assert set(SCHEMA["required"]) | {"bounds", "start"} == results.keys()
    for path in needed:
        assert problems(without(results, path)), path
    for path in (
        "recovery.mach",
        "components.agreements",
        "reference.bayes",
        "train.accuracies",
        "engine.names",
        "seeds",
    ):
        changed = copy.deepcopy(results)
        *branches, leaf = path.split(".")
        (changed[branches[0]] if branches else changed)[leaf] = 1
        assert problems(changed), path


@pytest.mark.parametrize(
    ("key", "value"),
    [("schema_version", 1), ("seed", "0"), ("rounds", 1.5), ("command", 3), ("federation_digest", "abc")],
)
def test_a_wrong_value_is_a_problem(runs: dict[str, Path], key: str, value: Any) -> None:
    results = json.loads((runs["mixture"] / "results.json").read_text())
    assert any(line.startswith(f"$.{key}:") for line in problems({**results, key: value}))


def test_findings_of_ones_own_methods_may_join(runs: dict[str, Path]) -> None:
    results = json.loads((runs["mixture"] / "results.json").read_text())
    assert problems({**results, "my_method": {"anything": [1, "two"]}}) == []
