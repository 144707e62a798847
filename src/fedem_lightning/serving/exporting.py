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

from fedem_lightning.errors import UserError, imported, require
from fedem_lightning.models.client_model import ClientModels
from fedem_lightning.models.personal_models import SharedModels
from fedem_lightning.records.files import writing
from fedem_lightning.serving.export_formats import BATCHES, FORMATS, measured, names_of
from fedem_lightning.serving.model_files import load_clients, write_clients


def export(chosen: argparse.Namespace) -> None:
    """Runs the command with the options of its parser; UserError: nothing has been written."""
    kind = FORMATS[chosen.format]
    folder, stem = target_of(chosen)
    for package in kind.packages:
        imported(package, "export", "--format")
    models = load_clients(chosen.run, chosen.trust)
    models = models if chosen.all else only(models, chosen.client)
    above = next(parent for parent in folder.absolute().parents if parent.is_dir())
    with writing(folder), tempfile.TemporaryDirectory(dir=above, prefix=".export-") as staging:
        place = Path(staging)
        index, worst = write_models(models, chosen.format, place, stem)
        size = sum(file.stat().st_size for file in place.iterdir())
        texts = {f"{stem}.preprocessing.json" if stem else "preprocessing.json": preprocessing(models)}
        texts |= {} if stem else {"index.json": {"format": chosen.format, "clients": index}}
        for name, content in texts.items():
            (place / name).write_text(json.dumps(content, indent=2, default=Tensor.tolist) + "\n", encoding="utf-8")
        folder.mkdir(parents=True, exist_ok=True)
        for file in place.iterdir():
            file.replace(folder / file.name)
    n = len(models.names)
    print(f"{chosen.out}: {n} client{'s' * (n > 1)}, {kind.described}, {size:,} bytes")
    if kind.write is not None:
        batches = " and ".join(map(str, BATCHES))
        print(f"difference from the library: {worst:.1e} at most, on batches of {batches} random samples")


def target_of(chosen: argparse.Namespace) -> tuple[Path, str | None]:
    """The folder of the files, and a single file's name without the ending; UserError if they cannot be written."""
    path, kind = chosen.out.expanduser(), FORMATS[chosen.format]
    if path.suffix not in {known.suffix for known in FORMATS.values()}:
        require(not path.is_file(), f"--out: {path} is a file, expected a folder")
        taken = path.is_dir() and any(path.iterdir())
        require(not taken or chosen.force, f"--out: {path} exists; choose another folder, or add --force")
        return path, None
    require(path.suffix == kind.suffix, f"--out: {path.name}, but --format {chosen.format} writes {kind.suffix} files")
    alone = kind.write is None or not chosen.all
    require(alone, f"--out: with --all there is a {kind.suffix} file for each client; give a folder, not {path.name}")
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


def write_models(
    models: ClientModels, name: str, folder: Path, stem: str | None = None
) -> tuple[dict[str, str], float]:
    """Writes and checks each client's file, named by the client without a `stem`; names, and the largest difference.

    A format that does not write one model has one file, of their tensors.
    """
    kind, worst, personal = FORMATS[name], 0.0, models.personal
    stems = {client: stem for client in models.names} if stem else file_stems(models.names)
    if kind.write is None or kind.read is None:
        alone = stems[models.names[0]] if len(models.names) == 1 else "clients"
        path = folder / f"{stem or alone}{kind.suffix}"
        write_clients(path, models)
        return dict.fromkeys(models.names, path.name), worst
    index: dict[str, str] = {}
    first: dict[bytes, str] = {}  # clients with the same weights of shared components have the same model
    for row, client in enumerate(models.names):
        file = f"{stems[client]}{kind.suffix}"
        if isinstance(personal, SharedModels):
            file = first.setdefault(personal.mixture[row].cpu().numpy().tobytes(), file)
        if file not in index.values():
            model = models.model(client)
            kind.write(model, folder / file)
            worst = max(worst, measured(kind.read(folder / file), model))
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
