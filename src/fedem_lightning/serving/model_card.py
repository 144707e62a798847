"""The words beside an export: the model card of the Hugging Face Hub, and how a sample becomes the model's input."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment
from omegaconf import OmegaConf
from torch import Tensor

from fedem_lightning.data.schema import Schema
from fedem_lightning.models.client_model import ClientModels
from fedem_lightning.models.personal_models import SharedModels
from fedem_lightning.serving.export_formats import FORMATS, output_name
from fedem_lightning.serving.export_places import Origin
from fedem_lightning.tasks import LanguageModel, MultiLabel, Segmentation


@dataclass(frozen=True)
class Export:
    """What was written: the format, each client's file, the lines about size and speed, the preprocessing's file."""

    format: str
    index: Mapping[str, str]
    told: Sequence[str]
    preprocessing: str


def model_card(origin: Origin, written: Export) -> str:
    """The card: a head for the Hub, then what a reader must know; what only the user knows is left open."""
    models, results = origin.models, origin.results or {}
    schema, names = models.schema, models.names
    head = {
        "license": "other",
        "license_name": "to-be-filled-in",
        "library_name": {"onnx": "onnx", "torch": "pytorch"}.get(written.format, "safetensors"),
        "tags": ["federated-learning", "personalization", "fedem-lightning", *filter(None, [origin.algorithm])],
        "metrics": [measure for measure in schema.task.measures if measure != "loss"],
    }
    head["tags"] = [tag.lower() for tag in head["tags"]]
    answer = "the mean of the target" if output_name(schema) == "mean" else "the probabilities of the classes"
    answer = "the probability of each label" if isinstance(schema.task, MultiLabel) else answer
    if schema.classes is not None:
        answer += f" ({', '.join(schema.classes)}, in this order)"
    splits = {
        "clients that trained": results.get("test"),
        "clients that did not train": (results.get("unseen") or {}).get("test"),
    }
    places = [place for place in map(schema.place, names) if place is not None]
    count = f"{len(names)} client{'s' * (len(names) > 1)}"
    environment = Environment(trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True)
    environment.filters["score"] = lambda value: f"{value:.4f}" if isinstance(value, float | int) else "-"
    return environment.from_string(Path(__file__).with_suffix(".md.jinja").read_text(encoding="utf-8")).render(
        origin=origin,
        written=written,
        results=results,
        head=OmegaConf.to_yaml(OmegaConf.create(head)),
        alone=len(names) == 1,
        whose=f"client {names[0]}" if len(names) == 1 else count,
        count=count,
        n_train=int(schema.n_train[places].sum()),
        shared=isinstance(models.personal, SharedModels),
        n_models=models.personal.mixture.shape[1],
        described=FORMATS[written.format].described,
        answer=answer,
        scores=[(whose, m, sums) for whose, found in splits.items() for m, sums in (found or {}).items()],
        sentence=sentence(schema),
        output=output_name(schema),
        client=repr(names[0]),
        file=repr(written.index[names[0]]),
        zeros=_zeros(schema, "torch" if written.format == "torch" else "np"),
        several=isinstance(schema.in_shape, Mapping),
    )


def preprocessing(models: ClientModels, format: str) -> dict[str, Any]:
    """How a user's sample becomes the model's input, and what the output means, as plain values."""
    schema = models.schema
    floats = str(models.personal.mixture.dtype).removeprefix("torch.") if format == "safetensors" else "float32"
    dense = isinstance(schema.task, Segmentation)
    sequence = schema.vocabulary is not None or isinstance(schema.task, LanguageModel)
    outputs = [*(_inputs(schema)[0][1][-2:] if dense else _inputs(schema)[0][1] if sequence else ())]
    inputs = [
        {"name": name, "shape": ["batch", *shape], "dtype": "int64" if whole else floats}
        for name, shape, whole in _inputs(schema)
    ]
    n = getattr(schema.task, "n_classes", schema.task.n_outputs)
    found = {
        "task": type(schema.task).__name__,
        "input": inputs if isinstance(schema.in_shape, Mapping) else inputs[0],
        "output": {"name": output_name(schema), "shape": ["batch", *outputs, n]},
        "sentence": sentence(schema),
        "raw_shape": _plain(schema.raw_shape),
        "pixels": schema.pixels,
        "features": None if schema.features is None else _plain(schema.features.state()),
        "columns": schema.columns,
        "classes": None if schema.classes is None else list(schema.classes),
        "vocabulary": schema.vocabulary,
    }
    return found


def _inputs(schema: Schema) -> list[tuple[str, tuple[int, ...], bool]]:
    """Of each input: its name, the shape of a sample, and whether it has whole numbers."""
    shapes = schema.in_shape if isinstance(schema.in_shape, Mapping) else {"x": schema.in_shape}
    codes = schema.vocabulary is not None
    return [(name, tuple(shape), codes or name in schema.whole) for name, shape in shapes.items()]


def _zeros(schema: Schema, package: str) -> str:
    """Code that makes a sample of zeros."""
    made = {}
    for name, shape, whole in _inputs(schema):
        sizes = ", ".join(map(str, (1, *shape)))
        dtype = ", dtype=torch.int64" * whole if package == "torch" else f", dtype=np.{'int64' if whole else 'float32'}"
        made[name] = f"torch.zeros({sizes}{dtype})" if package == "torch" else f"np.zeros(({sizes}){dtype})"
    if not isinstance(schema.in_shape, Mapping):
        return made["x"]
    return "{" + ", ".join(f'"{name}": {code}' for name, code in made.items()) + "}"


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    return value.tolist() if isinstance(value, Tensor) else value


def sentence(schema: Schema) -> str:
    """What must be done to a sample before the exported model sees it."""
    if isinstance(schema.in_shape, Mapping):
        kinds = {True: "whole numbers", False: "floats"}
        arrays = (f"`{name}`, {kinds[w]} [n, {', '.join(map(str, s))}]" for name, s, w in _inputs(schema))
        return f"Give the arrays as in training, with nothing done to them: {'; '.join(arrays)}."
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
