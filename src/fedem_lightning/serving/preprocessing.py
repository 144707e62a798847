"""How a user's sample becomes the input of an exported model: as plain values, and as a sentence."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from fedem_lightning.data.schema import Schema
from fedem_lightning.models.client_model import ClientModels
from fedem_lightning.serving.export_formats import output_name


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
