"""The words beside an export: the model card of the Hugging Face Hub, and how a sample becomes the model's input."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from omegaconf import OmegaConf
from torch import Tensor

from fedem_lightning.data.schema import Schema
from fedem_lightning.models.client_model import ClientModels
from fedem_lightning.models.personal_models import SharedModels
from fedem_lightning.serving.export_formats import FORMATS, output_name
from fedem_lightning.serving.export_places import Origin

_TO_BE_FILLED_IN = "to be filled in"


@dataclass(frozen=True)
class Export:
    """What was written: the format, each client's file, the lines about size and speed, the preprocessing's file."""

    format: str
    index: Mapping[str, str]
    told: Sequence[str]
    preprocessing: str


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


def preprocessing(models: ClientModels, format: str) -> dict[str, Any]:
    """How a user's sample becomes the model's input, and what the output means, as plain values."""
    schema = models.schema
    floats = str(models.personal.mixture.dtype).removeprefix("torch.") if format == "safetensors" else "float32"
    outputs = [*schema.in_shape] if schema.vocabulary is not None else []
    n = getattr(schema.task, "n_classes", schema.task.n_outputs)
    found = {
        "task": type(schema.task).__name__,
        "input": {
            "name": "x",
            "shape": ["batch", *schema.in_shape],
            "dtype": "int64" if schema.vocabulary is not None else floats,
        },
        "output": {"name": output_name(schema), "shape": ["batch", *outputs, n]},
        "sentence": sentence(schema),
        "raw_shape": list(schema.raw_shape),
        "pixels": schema.pixels,
        "features": None if schema.features is None else _plain(schema.features.state()),
        "columns": schema.columns,
        "classes": None if schema.classes is None else list(schema.classes),
        "vocabulary": schema.vocabulary,
    }
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    return value.tolist() if isinstance(value, Tensor) else value


def sentence(schema: Schema) -> str:
    """What must be done to a sample before the exported model sees it."""
    shape = f"[n, {', '.join(map(str, schema.in_shape))}]"
    if schema.pixels is not None:
        steps = ["exchange black and white (255 - x)"] * bool(schema.pixels["invert"]) + ["divide by 255"]
        steps += [
            "move the channels before height and width" if len(schema.raw_shape) == 3 else "add an axis of 1 channel"
        ]
        if schema.pixels["mean"] is not None:
            steps += [f"subtract {schema.pixels['mean']} and divide by {schema.pixels['std']} (by channel)"]
        raw = f"[n, {', '.join(map(str, schema.raw_shape))}]"
        return f"Take images of bytes {raw}: {', '.join(steps)}; this gives floats {shape}."
    if schema.vocabulary is not None:
        return (
            f"Replace each character by its position in `vocabulary`, {schema.in_shape[0]} characters to a window: "
            f"whole numbers {shape}."
        )
    if schema.features is not None:
        names = ", ".join(map(str, schema.features.names))
        return f"Make the features ({names}) of a table's columns as `features` says: floats {shape}."
    return f"Give the features as in training, with nothing done to them: floats {shape}."
