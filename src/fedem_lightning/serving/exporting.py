"""Exports clients' models: chooses them, writes and checks each file, and puts all in place in one go."""

import argparse
import difflib
import json
import os
import re
import unicodedata
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from statistics import median

import torch
from rich.console import Console
from rich.progress import track
from torch.utils._pytree import tree_map

from fedem_lightning.errors import UserError, require
from fedem_lightning.models.client_model import ClientModels
from fedem_lightning.models.personal_models import SharedModels
from fedem_lightning.records.files import writing
from fedem_lightning.serving.export_formats import BATCHES, FORMATS, RUNS, Measured, Predictor, measured
from fedem_lightning.serving.export_places import (
    Origin,
    Target,
    check_hub,
    origin_of,
    push,
    put_in_place,
    staging_beside,
    target_of,
)
from fedem_lightning.serving.model_card import Export, model_card, preprocessing
from fedem_lightning.serving.model_files import read_clients, write_clients

FEW_CLIENTS = 3
"""Clients up to which no progress bar is shown."""


def export(chosen: argparse.Namespace) -> None:
    """Does what the command's arguments say; prints what was written.

    Raises:
        UserError: an argument is wrong, or an exported model differs from the library's; nothing was written.

    """
    kind = FORMATS[chosen.format]
    target = target_of(chosen, kind)
    kind.check_installed()
    if chosen.push_to_hub:
        require(target.stem is None, "--push-to-hub: uploads a folder; give --out a folder, not a file")
        check_hub(chosen.push_to_hub)
    origin = origin_of(chosen.run, chosen.trust)
    models = origin.models if chosen.all else only(origin.models, chosen.client)
    with writing(target.folder), staging_beside(target.folder) as staging:
        index, found = write_models(models, chosen.format, staging, target.stem)
        files = list(dict.fromkeys(index.values()))
        facts = [(staging / name).stat() for name in files]
        size = sum({fact.st_ino: fact.st_size for fact in facts}.values())  # links share their bytes
        latency, worst = median(one.latency for one in found), max(one.difference for one in found)
        batches = " and ".join(map(str, BATCHES))
        told = [
            f"size        {size:,} bytes",
            f"latency     {latency:.3f} ms a sample on this CPU (median of {RUNS} calls)",
            f"difference  {worst:.1e} from the library at most, on batches of {batches} random samples",
        ]
        written = Export(chosen.format, index, told, target.preprocessing)
        files += _write_words(staging, target, replace(origin, models=models), written)
        put_in_place(staging, target, files, chosen.force)
    place = target.folder if target.stem is None else target.folder / files[0]
    print(f"{place}: {len(models.names)} client{'s' * (len(models.names) > 1)}, {kind.described}")
    print("\n".join(f"  {line}" for line in told))
    if chosen.push_to_hub:
        print(f"  uploaded    {push(target.folder, files, chosen.push_to_hub, chosen.private, chosen.force)}")


def only(models: ClientModels, name: str) -> ClientModels:
    """The models of one client, without the other clients' names and numbers of samples.

    Raises:
        UserError: there is no such client.

    """
    row = models.place(name)
    if row is None:
        known = models.schema.place(name) is not None
        require(not known, f"--client: {name} took no part in training; personalize it first, and export that file")
        close = difflib.get_close_matches(name, models.names, n=3)
        some = f"the closest: {', '.join(close)}" if close else f"e.g. {', '.join(models.names[:3])}"
        raise UserError(f"--client: {name} is none of the {len(models.names)} clients with a model; {some}")
    t = models.schema.place(name)
    n_train = torch.zeros(1, dtype=torch.int64) if t is None else models.schema.n_train[t : t + 1]
    schema = replace(models.schema, names=(name,), seen=torch.tensor([True]), n_train=n_train)
    return ClientModels((name,), models.of(torch.tensor([row])), schema)


def write_models(
    models: ClientModels, name: str, folder: Path, stem: str | None = None
) -> tuple[dict[str, str], list[Measured]]:
    """Writes the models and checks every file.

    Args:
        models: the clients' models.
        name: of the format.
        folder: where the files go.
        stem: name of a single file; None: the files have the names of their clients.

    Returns:
        The file's name of each client, and what was measured of each model.

    """
    kind, found = FORMATS[name], []
    stems = {client: stem for client in models.names} if stem is not None else file_stems(models.names)
    if kind.write is None or kind.read is None:
        alone = stems[models.names[0]] if stem is not None or len(models.names) == 1 else "clients"
        path = folder / f"{alone}{kind.suffix}"
        write_clients(path, models)
        personal = models.personal
        network = personal.components[0] if isinstance(personal, SharedModels) else personal.backbone
        again = read_clients(path, backbone=network)
        found = [measured(_as_trained(again, client), models.model(client)) for client in _tracked(models.names)]
        return dict.fromkeys(models.names, path.name), found
    first: dict[bytes, Path] = {}  # clients with the same weights of shared components have the same model
    for row, client in enumerate(_tracked(models.names)):
        path = folder / f"{stems[client]}{kind.suffix}"
        if isinstance(models.personal, SharedModels):
            same = first.setdefault(models.personal.mixture[row].cpu().numpy().tobytes(), path)
            if same != path:
                os.link(same, path)  # no more disk space, and no second export
                continue
        model = models.model(client)
        kind.write(model, path)
        found.append(measured(kind.read(path), model))
    return {client: f"{stems[client]}{kind.suffix}" for client in models.names}, found


def _as_trained(models: ClientModels, client: str) -> Predictor:
    """The model of a client as read from a file; it takes what the network was trained on."""
    model = models.model(client)
    return lambda x: model(tree_map(lambda t: t.to(model.weights.dtype) if t.is_floating_point() else t, x))


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


def _tracked(names: tuple[str, ...]) -> Iterable[str]:
    """The names, with a progress bar on a terminal if there are more than a few."""
    console = Console()
    shown = console.is_terminal and len(names) > FEW_CLIENTS
    return track(names, "exporting", console=console, disable=not shown, transient=True)


def _write_words(staging: Path, target: Target, origin: Origin, written: Export) -> list[str]:
    """Writes what explains the models: the card, the preprocessing and, in a folder, the index; their names."""
    texts = {
        target.card: model_card(origin, written),
        target.preprocessing: json.dumps(preprocessing(origin.models, written.format), indent=2) + "\n",
    }
    if target.stem is None:
        texts["index.json"] = json.dumps({"format": written.format, "clients": written.index}, indent=2) + "\n"
    for name, text in texts.items():
        (staging / name).write_text(text, encoding="utf-8")
    return list(texts)
