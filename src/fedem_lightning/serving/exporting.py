"""The command `export`: clients' models as files for other programs, each compared with the library's model."""

import argparse
import difflib
import json
import re
import tempfile
import unicodedata
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
from fedem_lightning.serving.commands import same
from fedem_lightning.serving.export_formats import BATCHES, FORMATS, in_precision, input_names, measured, output_name
from fedem_lightning.serving.model_files import load_clients, read_clients, write_clients


def run(chosen: argparse.Namespace) -> None:
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
        texts: dict[str, Any] = {f"{stem}.preprocessing.json" if stem else "preprocessing.json": preprocessing(models)}
        if stem is None:
            texts["index.json"] = {"format": chosen.format, "clients": index}
        for name, content in texts.items():
            (place / name).write_text(json.dumps(content, indent=2, default=Tensor.tolist) + "\n", encoding="utf-8")
        folder.mkdir(parents=True, exist_ok=True)
        for file in place.iterdir():
            file.replace(folder / file.name)
    out = folder if stem is None else folder / f"{stem}{kind.suffix}"
    print(f"{out}: {len(models.names)} client{'s' * (len(models.names) > 1)}, {kind.described}, {size:,} bytes")
    batches = " and ".join(map(str, BATCHES))
    print(f"difference from the library: {worst:.1e} at most, on batches of {batches} random samples")


def target_of(chosen: argparse.Namespace) -> tuple[Path, str | None]:
    """The folder of the files, and a single file's name without the ending; UserError if they cannot be written."""
    path, read, kind = chosen.out.expanduser(), chosen.run, FORMATS[chosen.format]
    beside = read / "checkpoints" if read.is_dir() else read.resolve().parent
    apart = not same(path, read) and not same(path, beside)
    require(apart, f"--out: {path} is what the command reads, or the folder that holds it; choose another")
    if path.suffix not in {known.suffix for known in FORMATS.values()}:
        require(not path.is_file(), f"--out: {path} is a file, expected a folder")
        taken = path.is_dir() and any(path.iterdir())
        require(not taken or chosen.force, f"--out: {path} exists; choose another folder, or add --force")
        return path, None
    require(path.suffix == kind.suffix, f"--out: {path.name}, but --format {chosen.format} writes {kind.suffix} files")
    alone = kind.write is None or not chosen.all
    require(alone, f"--out: with --all there is a {kind.suffix} file for each client; give a folder, not {path.name}")
    require(not path.is_dir(), f"--out: {path} is a folder, expected a file")
    for there in (path, path.with_name(f"{path.stem}.preprocessing.json")):
        require(not there.exists() or chosen.force, f"--out: {there} exists; choose another, or add --force")
    return path.parent, path.stem


def only(models: ClientModels, name: str) -> ClientModels:
    """One client's model, without the other clients' names and numbers of samples; UserError if there is none."""
    row, t = models.place(name), models.schema.place(name)
    if row is None:
        require(t is None, f"--client: {name} took no part in training; personalize it first, and export that file")
        close = difflib.get_close_matches(name, models.names, n=3)
        some = f"the closest: {', '.join(close)}" if close else f"e.g. {', '.join(models.names[:3])}"
        raise UserError(f"--client: {name} is none of the {len(models.names)} clients with a model; {some}")
    n_train = torch.zeros(1, dtype=torch.int64) if t is None else models.schema.n_train[t : t + 1]
    schema = replace(models.schema, names=(name,), seen=torch.tensor([True]), n_train=n_train)
    return ClientModels((name,), models.of(torch.tensor([row])), schema)


def write_models(
    models: ClientModels, name: str, folder: Path, stem: str | None = None
) -> tuple[dict[str, str], float]:
    """Writes and checks each client's file, named by the client without a `stem`; names, and the largest difference."""
    kind, worst = FORMATS[name], 0.0
    stems = {client: stem for client in models.names} if stem else file_stems(models.names)
    if kind.write is None or kind.read is None:
        alone = stem or (stems[models.names[0]] if len(models.names) == 1 else "clients")
        path = folder / f"{alone}{kind.suffix}"
        write_clients(path, models)
        personal = models.personal
        network = personal.components[0] if isinstance(personal, SharedModels) else personal.backbone
        again = read_clients(path, backbone=network)
        worst = max(measured(in_precision(again.model(client)), models.model(client)) for client in models.names)
        return dict.fromkeys(models.names, path.name), worst
    index: dict[str, str] = {}
    first: dict[bytes, str] = {}  # clients with the same weights of shared components have the same model
    for row, client in enumerate(models.names):
        file = f"{stems[client]}{kind.suffix}"
        if isinstance(models.personal, SharedModels):
            file = first.setdefault(models.personal.mixture[row].cpu().numpy().tobytes(), file)
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
    taken: set[str] = set()
    for name in names:
        plain = re.sub(r"[^\w.-]", "_", name)[:50].lstrip(".") or "client"  # 50 characters are at most 200 bytes
        stem, number = plain, 2
        while unicodedata.normalize("NFKC", stem.casefold()) in taken:
            stem, number = f"{plain}-{number}", number + 1
        taken.add(unicodedata.normalize("NFKC", stem.casefold()))
        stems[name] = stem
    return stems


def preprocessing(models: ClientModels) -> dict[str, Any]:
    """What a user's sample looks like, how it becomes the model's input, and what the output means; plain values."""
    schema = models.schema
    state = {name: value for name, value in schema.state().items() if name not in ("names", "seen", "n_train")}
    return {"inputs": input_names(schema), "output": output_name(schema), **state}
