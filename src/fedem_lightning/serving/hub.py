"""Uploads an export to the Hugging Face Hub."""

import re
from collections.abc import Sequence
from pathlib import Path

from fedem_lightning.errors import UserError, require

_LONGEST = 96
"""Characters of a repository's name on the Hub."""


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
        hub.upload_folder(repo_id=repository, folder_path=folder, allow_patterns=[_literally(name) for name in files])
    except (OSError, ValueError) as error:  # those of the network are OSErrors, wrong names ValueErrors
        reason = " ".join(str(error).split())
        raise UserError(f"--push-to-hub: {reason}; the export itself is in {folder}") from error
    return str(address)


def _literally(name: str) -> str:
    """A pattern that only this name fits."""
    return re.sub(r"([*?\[])", r"[\1]", name)
