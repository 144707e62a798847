"""What the data of a comparison are: the words of the command line for a path."""

from pathlib import Path

from hydra.core.override_parser.types import Quote, QuotedString

from fedem_lightning.settings.errors import require

TABLES = (".csv", ".parquet")


def words_of(path: str | Path | None, label: str | None, client: str | None) -> list[str]:
    """The overrides that choose the data in a file or a folder; none if there is no path.

    UserError: there is nothing, or it is of no known kind.
    """
    if path is None:
        return []
    place = Path(path).expanduser()
    require(place.exists(), f"{place}: no such file or folder")
    columns = [f"dataset.{key}={_quoted(name)}" for key, name in (("label", label), ("client", client)) if name]
    kind = _kind(place)
    if kind in ("table", "hub"):
        for key, name in (("label", label), ("client", client)):
            require(name is not None, f"--{key}: expected the name of a column of {place.name}")
    columns = ["dataset.val_fraction=0.2"] if kind == "pfllib" else columns if kind in ("table", "hub") else []
    return [f"dataset={kind}", f"dataset.path={_quoted(str(place.absolute()))}", *columns]


def _kind(place: Path) -> str:
    if place.suffix.lower() in TABLES:
        return "table"
    if place.suffix.lower() == ".npz":
        return "npz"
    require(place.is_dir(), f"{place}: expected {', '.join(TABLES)}, .npz or a folder")
    if any((place / name).exists() for name in ("dataset_info.json", "dataset_dict.json")):
        return "hub"
    npz = next((place / "train").glob("*.npz"), None) if (place / "train").is_dir() else None
    return "folder" if npz is None else "pfllib"


def _quoted(text: str) -> str:
    return str(QuotedString(text, Quote.double).with_quotes())
