"""Where exported models come from, a run or a file, and where they go: a folder, a file, the Hugging Face Hub."""

import argparse
import glob
import json
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedem_lightning.algorithms.checkpoints import recipe_of
from fedem_lightning.errors import UserError, require
from fedem_lightning.models.client_model import ClientModels
from fedem_lightning.records.configs import flatten, read_yaml, resolved
from fedem_lightning.records.files import regular
from fedem_lightning.serving.export_formats import FORMATS, Format
from fedem_lightning.serving.model_files import load, read_clients, read_notes
from fedem_lightning.serving.options import clients_file, same

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
_LONGEST = 96
"""Characters of a repository's name on the Hub."""


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
    models = algorithm.trained_model.clients_models()
    return Origin(path.resolve().name, models, type(algorithm).__name__, rounds, settings, results)


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
    """Settings by dotted keys, without paths and variables, which are of a machine."""
    flat = flatten(settings)
    chosen = {k: v for k, v in flat.items() if any(k == s or k.startswith(f"{s}.") for s in _SHOWN)}
    told = {k: v for k, v in chosen.items() if v not in (None, []) and not k.endswith("._partial_")}
    return {k: v for k, v in told.items() if not ({"/", "\\"} & set(str(v)) or "${" in str(v))}


def _results(folder: Path, rounds: int) -> dict[str, Any] | None:
    """The results of a run, if they belong to a model of as many rounds."""
    try:
        results: dict[str, Any] = json.loads(regular(folder / "results.json").read_text())
        return results if results["rounds"] == rounds else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


@dataclass(frozen=True)
class Target:
    """Where the files go.

    Args:
        folder: the folder.
        stem: of a single file's name, without its ending; None: the folder belongs to the export.

    """

    folder: Path
    stem: str | None = None

    @property
    def card(self) -> str:
        """Name of the model card."""
        return "README.md" if self.stem is None else f"{self.stem}.md"

    @property
    def preprocessing(self) -> str:
        """Name of the file that says how inputs are made."""
        return "preprocessing.json" if self.stem is None else f"{self.stem}.preprocessing.json"


def target_of(chosen: argparse.Namespace, kind: Format) -> Target:
    """Where the files go.

    Raises:
        UserError: something is there already, it is what the command reads, or the path does not fit the format.

    """
    path, read = chosen.out.expanduser(), chosen.run.expanduser()
    read = clients_file(read) or read
    beside = read / "checkpoints" if read.is_dir() else read.resolve().parent
    apart = not same(path, read) and not same(path, beside)
    require(apart, f"--out: {path} is what the command reads, or the folder that holds it; choose another")
    endings = {known.suffix: name for name, known in FORMATS.items()}
    if path.suffix not in endings:
        taken = path.is_file() or (path.is_dir() and any(path.iterdir()))
        require(not path.is_file(), f"--out: {path} is a file, expected a folder")
        require(not taken or chosen.force, f"--out: {path} exists; choose another folder, or add --force")
        return Target(path)
    require(path.suffix == kind.suffix, f"--out: {path.name}, but --format {chosen.format} writes {kind.suffix} files")
    alone = kind.write is None or not chosen.all
    require(alone, f"--out: with --all there is a {kind.suffix} file for each client; give a folder, not {path.name}")
    require(not path.is_dir(), f"--out: {path} is a folder, expected a file")
    target = Target(path.parent, path.stem)
    for beside in (path.name, target.card, target.preprocessing):
        there = (path.parent / beside).exists()
        require(not there or chosen.force, f"--out: {path.parent / beside} exists; choose another, or add --force")
    return target


@contextmanager
def staging_beside(folder: Path) -> Iterator[Path]:
    """An empty folder beside the target, which goes away: a failed export leaves nothing."""
    above = next(parent for parent in folder.absolute().parents if parent.is_dir())
    with tempfile.TemporaryDirectory(dir=above, prefix=".export-") as staging:
        yield Path(staging)


def put_in_place(staging: Path, target: Target, files: list[str], force: bool) -> None:
    """Moves the files to where they belong; those of an earlier export that are no longer written go."""
    target.folder.mkdir(parents=True, exist_ok=True)
    if force and target.stem is None:
        for name in _earlier(target.folder) - set(files):
            (target.folder / name).unlink(missing_ok=True)
    for name in files:
        shutil.move(staging / name, target.folder / name)


def _earlier(folder: Path) -> set[str]:
    """The models that an earlier export of this command left in a folder."""
    try:
        listed = json.loads(regular(folder / "index.json").read_text(encoding="utf-8"))["clients"].values()
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return set()
    endings = tuple(kind.suffix for kind in FORMATS.values())
    return {name for name in map(str, listed) if Path(name).name == name and name.endswith(endings)}


def check_hub(repository: str) -> None:
    """Refuses a wrong name, or a missing package, before anything is written."""
    part = r"(?![-.])[\w.-]+(?<![-.])"
    fits = re.fullmatch(f"{part}/{part}", repository, re.ASCII) and not re.search(r"--|\.\.", repository)
    require(bool(fits) and len(repository) <= _LONGEST, f"--push-to-hub: expected NAME/REPO, got {repository}")
    try:
        import huggingface_hub  # noqa: F401
    except ImportError as error:
        raise UserError(
            '--push-to-hub: huggingface_hub is not installed; pip install "fedem-lightning[hub]"'
        ) from error


def push(folder: Path, files: Sequence[str], repository: str, private: bool, force: bool) -> str:
    """Makes the repository and uploads the files of a folder.

    Args:
        folder: the export.
        files: names of its files; others in the folder stay here.
        repository: NAME/REPO.
        private: whether only its owner sees it.
        force: whether it may exist already.

    Returns:
        The repository's address.

    Raises:
        UserError: the Hub refuses, or cannot be reached.

    """
    from huggingface_hub import HfApi

    hub = HfApi()
    try:
        address = hub.create_repo(repository, private=private, exist_ok=force)
        hub.upload_folder(repo_id=repository, folder_path=folder, allow_patterns=[glob.escape(name) for name in files])
    except (OSError, ValueError) as error:  # those of the network are OSErrors, wrong names ValueErrors
        reason = " ".join(str(error).split())
        raise UserError(f"--push-to-hub: {reason}; the export itself is in {folder}") from error
    return str(address)
