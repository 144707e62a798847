"""The command `export`: clients' models as files for other programs, each compared with the library's model."""

import argparse
import difflib
import json
import re
import tempfile
import unicodedata
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedem_lightning.models.client_model import ClientModels
from fedem_lightning.models.personal_models import SharedModels
from fedem_lightning.serving.model_files import load_clients, write_clients
from fedem_lightning.serving.onnx_files import BATCHES, OPSET, measured, names_of, write_onnx
from fedem_lightning.settings.errors import UserError, imported, require
from fedem_lightning.settings.files import writing


def export(chosen: argparse.Namespace) -> None:
    """Runs the command with the options of its parser; UserError: nothing has been written."""
    folder, stem = target_of(chosen)
    graphs = chosen.format == "onnx"
    for package in ("onnx", "onnxscript", "onnxruntime") if graphs else ():
        imported(package, "export", "--format")
    models = load_clients(chosen.run, chosen.trust)
    models = models if chosen.all else only(models, chosen.client)
    above = next(parent for parent in folder.absolute().parents if parent.is_dir())
    with writing(folder), tempfile.TemporaryDirectory(dir=above, prefix=".export-") as staging:
        place = Path(staging)
        index, worst = write_graphs(models, place, stem) if graphs else (write_tensors(models, place, stem), 0.0)
        size = sum(file.stat().st_size for file in place.iterdir())
        texts = {f"{stem}.preprocessing.json" if stem else "preprocessing.json": preprocessing(models)}
        texts |= {} if stem else {"index.json": {"format": chosen.format, "clients": index}}
        for name, content in texts.items():
            (place / name).write_text(json.dumps(content, indent=2, default=Tensor.tolist) + "\n", encoding="utf-8")
        folder.mkdir(parents=True, exist_ok=True)
        for file in place.iterdir():
            file.replace(folder / file.name)
    n = len(models.names)
    described = f"ONNX, opset {OPSET}" if graphs else chosen.format
    print(f"{chosen.out}: {n} client{'s' * (n > 1)}, {described}, {size:,} bytes")
    if graphs:
        batches = " and ".join(map(str, BATCHES))
        print(f"difference from the library: {worst:.1e} at most, on batches of {batches} random samples")


def target_of(chosen: argparse.Namespace) -> tuple[Path, str | None]:
    """The folder of the files, and a single file's name without the ending; UserError if they cannot be written."""
    path, suffix = chosen.out.expanduser(), f".{chosen.format}"
    if path.suffix not in (".safetensors", ".onnx"):
        require(not path.is_file(), f"--out: {path} is a file, expected a folder")
        taken = path.is_dir() and any(path.iterdir())
        require(not taken or chosen.force, f"--out: {path} exists; choose another folder, or add --force")
        return path, None
    require(path.suffix == suffix, f"--out: {path.name}, but --format {chosen.format} writes {suffix} files")
    alone = chosen.format == "safetensors" or not chosen.all
    require(alone, f"--out: with --all there is a {suffix} file for each client; give a folder, not {path.name}")
    there = [name for name in (path, path.with_name(f"{path.stem}.preprocessing.json")) if name.exists()]
    require(chosen.force or not there, f"--out: {', '.join(map(str, there))} exists; choose another, or add --force")
    return path.parent, path.stem


def only(models: ClientModels, name: str) -> ClientModels:
    """One client's model, without the other clients' names and numbers of samples; UserError if there is none."""
    row, t = models.place(name), models.schema.place(name)
    if row is None:
        close = difflib.get_close_matches(name, models.names, n=3) or models.names[:3]
        said = f"--client: {name} is none of the {len(models.names)} clients with a model, e.g. {', '.join(close)}"
        raise UserError(f"{said}; personalize gives others a file of models")
    n_train = torch.zeros(1, dtype=torch.int64) if t is None else models.schema.n_train[t : t + 1]
    schema = replace(models.schema, names=(name,), seen=torch.tensor([True]), n_train=n_train)
    return ClientModels((name,), models.of(torch.tensor([row])), schema)


def write_tensors(models: ClientModels, folder: Path, stem: str | None) -> dict[str, str]:
    """Writes one file of all clients' tensors; without a `stem` its name is that of the only client."""
    alone = next(iter(file_stems(models.names).values())) if len(models.names) == 1 else "clients"
    path = folder / f"{stem or alone}.safetensors"
    write_clients(path, models)
    return dict.fromkeys(models.names, path.name)


def write_graphs(models: ClientModels, folder: Path, stem: str | None = None) -> tuple[dict[str, str], float]:
    """Writes and checks each client's file, named by the client without a `stem`; names, and the largest difference."""
    worst, personal = 0.0, models.personal
    stems = {client: stem for client in models.names} if stem else file_stems(models.names)
    index: dict[str, str] = {}
    first: dict[bytes, str] = {}  # clients with the same weights of shared components have the same model
    for row, client in enumerate(models.names):
        file = f"{stems[client]}.onnx"
        if isinstance(personal, SharedModels):
            file = first.setdefault(personal.mixture[row].cpu().numpy().tobytes(), file)
        if file not in index.values():
            model = models.model(client)
            write_onnx(model, folder / file)
            worst = max(worst, measured(folder / file, model))
        index[client] = file
    return index, worst


def file_stems(names: Iterable[str]) -> dict[str, str]:
    """A file's name for each client, without its ending.

    Letters, digits, ".", "_" and "-" stay, all others become "_". Where two would be equal (to a file system that
    ignores case or Unicode's forms), a number follows.
    """
    stems: dict[str, str] = {}
    taken: Counter[str] = Counter()
    for name in names:
        plain = re.sub(r"[^\w.-]", "_", name)[:50].lstrip(".") or "client"  # 50 characters are at most 200 bytes
        key = unicodedata.normalize("NFKC", plain.casefold())
        taken[key] += 1
        stems[name] = plain if taken[key] == 1 else f"{plain}~{taken[key]}"  # no other name has a ~
    return stems


def preprocessing(models: ClientModels) -> dict[str, Any]:
    """What a user's sample looks like, how it becomes the model's input, and what the output means; plain values."""
    schema = models.schema
    state = {name: value for name, value in schema.state().items() if name not in ("names", "seen", "n_train")}
    inputs, output = names_of(schema)
    return {"inputs": inputs, "output": output, **state}
