"""The model card beside an export, in the form of the Hugging Face Hub."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from fedem_lightning.algorithms.checkpoints import recipe_of
from fedem_lightning.errors import UserError
from fedem_lightning.models.client_model import ClientModels
from fedem_lightning.models.personal_models import SharedModels
from fedem_lightning.records.configs import flatten, read_yaml, resolved
from fedem_lightning.records.files import regular
from fedem_lightning.records.secrets import HIDDEN, hide_in_tree
from fedem_lightning.serving.client_files import clients_file, read_clients, read_notes
from fedem_lightning.serving.export_formats import FORMATS, output_name
from fedem_lightning.serving.load import load
from fedem_lightning.serving.preprocessing import sentence

_SHOWN = (
    "algorithm",
    "adaptation",
    "dataset",
    "backbone",
    "seed",
    "fidelity",
    "trainer.max_epochs",
    "trainer.precision",
)
"""Keys of a configuration that a card shows; the others are about the machine, and may hold paths."""
_TO_BE_FILLED_IN = "to be filled in"


@dataclass(frozen=True)
class Origin:
    """Where models come from.

    Args:
        name: of the run's folder or the file.
        models: the clients' models.
        algorithm: the class of the algorithm; None: the file does not say.
        rounds: communication rounds of the training.
        settings: of the run, with dotted keys.
        results: content of results.json, if it is that of these models.

    """

    name: str
    models: ClientModels
    algorithm: str | None = None
    rounds: int | None = None
    settings: Mapping[str, Any] | None = None
    results: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Export:
    """What was written: the format, each client's file, the lines about size and speed, the preprocessing's file."""

    format: str
    index: Mapping[str, str]
    told: Sequence[str]
    preprocessing: str


def origin_of(path: Path, trust: Sequence[str]) -> Origin:
    """The models of a run or a file, and what is known of their training.

    Raises:
        UserError: there is no such run, or its clients adapt their models to samples, which no checkpoint keeps.

    """
    path = path.expanduser()
    if (file := clients_file(path)) is not None:
        return _of_file(path.name, file, trust)
    algorithm = load(path, trust)
    algorithm.trained_model.check_models_are_here()
    if algorithm.adaptation is not None:
        raise UserError(
            f"{path}: its clients tune their models on their own samples "
            f"(adaptation={type(algorithm.adaptation).__name__.lower()}), which a run does not keep; first personalize "
            "them, which writes a .safetensors file (python -m fedem_lightning.personalize), then export that file"
        )
    rounds = algorithm.statistics.rounds
    settings, results = (_settings(path), _results(path, rounds)) if path.is_dir() else (None, None)
    if settings is None:
        settings = _shown({"algorithm": recipe_of(algorithm)})
    return Origin(
        path.resolve().name,
        algorithm.trained_model.clients_models(),
        type(algorithm).__name__,
        rounds,
        settings,
        results,
    )


def _of_file(name: str, file: Path, trust: Sequence[str]) -> Origin:
    """The models of a file; that of a client of its own says how they were trained."""
    models, notes = read_clients(file, trust), read_notes(file)
    made_of, reported = notes.get("recipe"), notes.get("reported")
    if not isinstance(made_of, dict) or not isinstance(reported, dict):
        return Origin(name, models)
    kind = str(made_of.get("_target_")).rpartition(".")[2]
    return Origin(file.parent.name, models, kind, reported.get("round"), _shown({"algorithm": made_of}))


def _settings(folder: Path) -> dict[str, Any] | None:
    """The settings in a run's folder; None if they cannot be read."""
    try:
        return _shown(resolved(read_yaml(folder / ".hydra" / "config.yaml")))
    except UserError:
        return None


def _shown(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings by dotted keys, without secrets, and without paths and variables, which are of a machine."""
    flat = flatten(hide_in_tree(settings))
    chosen = {k: v for k, v in flat.items() if any(k == s or k.startswith(f"{s}.") for s in _SHOWN)}
    told = {k: v for k, v in chosen.items() if v not in (None, []) and not k.endswith("._partial_")}
    return {k: v for k, v in told.items() if not ({"/", "\\"} & set(str(v)) or "${" in str(v) or HIDDEN in str(v))}


def _results(folder: Path, rounds: int) -> dict[str, Any] | None:
    """The results of a run, if they belong to a model of as many rounds."""
    try:
        results: dict[str, Any] = json.loads(regular(folder / "results.json").read_text())
        return results if results["rounds"] == rounds else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def model_card(origin: Origin, written: Export) -> str:
    """The card: a head for the Hub, then what a reader must know; what only the user knows is left open."""
    schema, names = origin.models.schema, origin.models.names
    measures = [m for m in schema.task.measures if m != "loss"]
    head = {
        "license": "other",
        "license_name": _TO_BE_FILLED_IN.replace(" ", "-"),
        "library_name": {"onnx": "onnx", "torch": "pytorch"}.get(written.format, "safetensors"),
        "tags": ["federated-learning", "personalization", "fedem-lightning", (origin.algorithm or "").lower()],
        "metrics": measures,
    }
    head["tags"] = [tag for tag in head["tags"] if tag]
    whose = f"client {names[0]}" if len(names) == 1 else f"{len(names)} clients"
    parts = [
        f"---\n{OmegaConf.to_yaml(OmegaConf.create(head))}---",
        f"# The model of {whose}" if len(names) == 1 else f"# The models of {whose}",
        _what(origin, written),
        f"## Intended use\n\n{_TO_BE_FILLED_IN}",
        _data(origin),
        _training(origin),
        _scores(origin),
        f"## Input\n\n{sentence(schema)} The same is in `{written.preprocessing}` for programs.",
        f"## Loading\n\n{_loading(origin, written)}",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _what(origin: Origin, written: Export) -> str:
    schema, n_models = origin.models.schema, origin.models.personal.mixture.shape[1]
    answer = "the mean of the target" if output_name(schema) == "mean" else "the probabilities of the classes"
    if schema.classes is not None:
        answer += f" ({', '.join(schema.classes)}, in this order)"
    mixed = f" It is a mixture of {n_models} models by the client's weights." if n_models > 1 else ""
    figures = "\n".join(f"    {line}" for line in written.told)
    return (
        f"A personalised model of federated learning, as {FORMATS[written.format].described}. It gives {answer}."
        f"{mixed} Exported with fedem-lightning.\n\n{figures}"
    )


def _data(origin: Origin) -> str:
    schema, names = origin.models.schema, origin.models.names
    places = [place for place in map(schema.place, names) if place is not None]
    n = int(schema.n_train[places].sum())
    named = (origin.results or {}).get("dataset")
    data = f"Data set `{named}`." if named else f"The data set: {_TO_BE_FILLED_IN}."
    trained = f", trained on {n:,} samples of {'this client' if len(names) == 1 else 'these clients'}" if n else ""
    others = n and len(names) == 1 and isinstance(origin.models.personal, SharedModels)
    shared = " and, with the others, on those of all clients" if others else ""
    return f"## Data\n\n{data} {len(names)} client{'s' * (len(names) > 1)}{trained}{shared}."


def _training(origin: Origin) -> str:
    if origin.algorithm is None:
        return (
            f"## Training\n\n{_TO_BE_FILLED_IN}: the file `{origin.name}` holds models, and not how they were trained."
        )
    lines = [f"Algorithm {origin.algorithm}, {origin.rounds} communication rounds; run `{origin.name}`."]
    if origin.settings:
        lines += ["", "| setting | value |", "|---|---|"]
        lines += [f"| `{key}` | {value} |" for key, value in sorted(origin.settings.items())]
    return "## Training\n\n" + "\n".join(lines)


def _scores(origin: Origin) -> str:
    """The scores of the run; they are those of all its clients."""
    splits = {"clients that trained": origin.results and origin.results.get("test")}
    splits["clients that did not train"] = ((origin.results or {}).get("unseen") or {}).get("test")
    rows = [
        f"| {whose} | {measure} | {_number(sums.get('weighted'))} | {_number(sums.get('bottom_decile'))} |"
        for whose, scores in splits.items()
        for measure, sums in (scores or {}).items()
    ]
    if not rows:
        return f"## Results\n\n{_TO_BE_FILLED_IN}: the scores of a finished run lie in its `results.json`."
    head = "| test samples of | score | weighted mean | worst tenth of the clients |\n|---|---|---|---|"
    return "## Results\n\nOf all clients of the run:\n\n" + "\n".join([head, *rows])


def _number(value: Any) -> str:
    return "-" if value is None else f"{value:.4f}"


def _loading(origin: Origin, written: Export) -> str:
    schema, client = origin.models.schema, origin.models.names[0]
    file, answer = written.index[client], output_name(schema)
    shape = ", ".join(map(str, (1, *schema.in_shape)))
    whole = schema.vocabulary is not None
    if written.format == "safetensors":
        lines = ["from fedem_lightning import load_clients", "", f"model = load_clients({file!r}).model({client!r})"]
        lines += [f"{answer} = model.predict(x)  # x as in training, without the steps above"]
    elif written.format == "onnx":
        lines = ["import numpy as np", "import onnxruntime", ""]
        lines += [f'session = onnxruntime.InferenceSession({file!r}, providers=["CPUExecutionProvider"])']
        lines += [f"x = np.zeros(({shape}), dtype=np.{'int64' if whole else 'float32'})"]
        lines += [f'{answer} = session.run(None, {{"x": x}})[0]']
    else:
        lines = ["import torch", "", f"model = torch.export.load({file!r}).module()"]
        lines += [f"{answer} = model(torch.zeros({shape}{', dtype=torch.int64' if whole else ''}))"]
    several = " `index.json` has the file of each client." if len(written.index) > 1 else ""
    code = "\n".join(lines)
    return f"```python\n{code}\n```\n\nThe first axis of `x` is the batch, of any length.{several}"
