"""The command `export`: clients' models as files for other programs, each compared with the library's model."""

import argparse
import difflib
import json
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import torch
from torch import Tensor

from fedem_lightning.models.personal_models import ClientModels, SharedModels
from fedem_lightning.run.commands import check_folder
from fedem_lightning.serving.model_files import load_clients, write_clients
from fedem_lightning.serving.onnx_files import BATCHES, OPSET, measured, names_of, write_onnx
from fedem_lightning.settings.errors import UserError, imported
from fedem_lightning.settings.files import writing


def export(chosen: argparse.Namespace) -> None:
    """Runs the command with the options of its parser; UserError: nothing has been written."""
    folder, graphs = chosen.out.expanduser(), chosen.format == "onnx"
    check_folder(folder, ["index.json", "preprocessing.json"], chosen.force)
    for package in ("onnx", "onnxscript", "onnxruntime") if graphs else ():
        imported(package, "export", "--format")
    models = load_clients(chosen.run, chosen.trust)
    models = models if chosen.all else only(models, chosen.client)
    above = next(parent for parent in folder.absolute().parents if parent.is_dir())
    with writing(folder), tempfile.TemporaryDirectory(dir=above, prefix=".export-") as staging:
        place = Path(staging)
        index, worst = write_graphs(models, place) if graphs else write_tensors(models, place)
        size = sum(file.stat().st_size for file in place.iterdir())
        texts = {"preprocessing": preprocessing(models), "index": {"format": chosen.format, "clients": index}}
        for name, content in texts.items():
            text = json.dumps(content, indent=2, default=Tensor.tolist) + "\n"
            (place / f"{name}.json").write_text(text, encoding="utf-8")
        folder.mkdir(parents=True, exist_ok=True)
        for file in place.iterdir():
            file.replace(folder / file.name)
    n = len(models.names)
    described = f"ONNX, opset {OPSET}" if graphs else chosen.format
    print(f"{chosen.out}: {n} client{'s' * (n > 1)}, {described}, {size:,} bytes")
    if graphs:
        batches = " and ".join(map(str, BATCHES))
        print(f"difference from the library: {worst:.1e} at most, on batches of {batches} random samples")


def only(models: ClientModels, name: str) -> ClientModels:
    """One client's model, without the other clients' names and numbers of samples; UserError if there is none."""
    row, t = models.place(name), models.schema.place(name)
    if row is None:
        close = difflib.get_close_matches(name, models.names, n=3) or models.names[:3]
        message = f"--client: {name} is none of the {len(models.names)} clients with a model, e.g. {', '.join(close)}"
        raise UserError(f"{message}; personalize gives others a file of models")
    n_train = torch.zeros(1, dtype=torch.int64) if t is None else models.schema.n_train[t : t + 1]
    schema = replace(models.schema, names=(name,), seen=torch.tensor([True]), n_train=n_train)
    return ClientModels((name,), models.of(torch.tensor([row])), schema)


def file_stem(name: str) -> str:
    """The name of a client's file without its ending: unusual characters in percent form, as in web addresses."""
    return quote(name, safe=" ")


def write_tensors(models: ClientModels, folder: Path) -> tuple[dict[str, str], float]:
    """Writes one file of all clients' tensors; the file of each client, and 0.0, which it differs from the library."""
    file = f"{file_stem(models.names[0]) if len(models.names) == 1 else 'clients'}.safetensors"
    write_clients(folder / file, models)
    return dict.fromkeys(models.names, file), 0.0


def write_graphs(models: ClientModels, folder: Path) -> tuple[dict[str, str], float]:
    """Writes and checks each client's file; the file of each client, and the largest difference from the library."""
    worst, personal = 0.0, models.personal
    index: dict[str, str] = {}
    first: dict[bytes, str] = {}  # clients with the same weights of shared components have the same model
    for row, client in enumerate(models.names):
        file = f"{file_stem(client)}.onnx"
        if isinstance(personal, SharedModels):
            file = first.setdefault(personal.mixture[row].cpu().numpy().tobytes(), file)
        if file not in index.values():
            model = models.model(client)
            write_onnx(model, folder / file)
            worst = max(worst, measured(folder / file, model))
        index[client] = file
    return index, worst


def preprocessing(models: ClientModels) -> dict[str, Any]:
    """What a user's sample looks like, how it becomes the model's input, and what the output means; plain values."""
    schema = models.schema
    state = {name: value for name, value in schema.state().items() if name not in ("names", "seen", "n_train")}
    inputs, output = names_of(schema)
    return {"inputs": inputs, "output": output, **state}
