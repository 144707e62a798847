"""results.json against its published schema."""

import json
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

from fedem_lightning.run import results

SCHEMA = json.loads(Path(results.__file__).with_name("results.schema.json").read_text())
_VALIDATOR = Draft202012Validator(SCHEMA)


def problems(content: Any) -> list[str]:
    """What is wrong with the content of a results.json, as "path: message"."""
    return [f"{error.json_path}: {error.message}" for error in _VALIDATOR.iter_errors(content)]


def problems_of_run(folder: Path) -> list[str]:
    """What is wrong with the results.json of a run."""
    return problems(json.loads((folder / "results.json").read_text()))
