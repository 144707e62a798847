"""A single client's samples in a file: written for a demonstration, or by the client itself."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedem_lightning.data.datamodule import FederatedDataModule
from fedem_lightning.data.federation import Federation
from fedem_lightning.data.formats.npz import read_npz
from fedem_lightning.data.samples import Arrays
from fedem_lightning.data.schema import Schema
from fedem_lightning.data.splits import SPLITS
from fedem_lightning.errors import require
from fedem_lightning.records.files import write_arrays
from fedem_lightning.tasks import TaskName

OF_ONE_CLIENT = ("name", "form")
"""Arrays that `save_client` writes besides the samples."""


def save_client(federation: Federation, client: int, path: Path) -> None:
    """Writes one client's samples for `load_client`: an .npz file with x, y, split, and the form of all samples."""
    require(federation.augmentation is None, "dataset.augmentation: clients of their own do not augment images")
    t = torch.tensor([client])
    index = [federation.splits[split].positions(t)[0] for split in SPLITS]
    rows, samples = torch.cat(index), federation.samples
    x = samples.x[rows] if isinstance(samples, Arrays) else samples.features(rows, torch.float32)
    arrays = {
        "x": x.numpy(),
        "y": samples.labels(rows).numpy(),
        "split": np.repeat(np.arange(len(SPLITS)), [len(part) for part in index]),
        "name": np.array([str(federation.names[client])]),
        "form": np.array([json.dumps(sample_form(federation))]),
    }
    write_arrays(path, arrays, compressed=False)


def sample_form(federation: Federation) -> dict[str, Any]:
    """The form of a federation's samples as plain values, without facts about its clients."""
    state = Schema.of(federation).state()
    return {name: value for name, value in state.items() if name not in ("seen", "n_train", "names")}


def load_client(
    path: Path, name: str | None = None, task: TaskName = "classification", n_classes: int | None = None
) -> Federation:
    """A federation of one client, whose notes say under "load_client" what this function was given.

    Args:
        path: an .npz file with x, y and, optionally, split (0 train, 1 val, 2 test; without it, 60, 20 and 20 %).
        name: the client's name; None: that in the file, or the file's.
        task, n_classes: see `NpzDataModule`; a file of `save_client` says them itself.

    Raises:
        UserError: the file is missing or broken, or its arrays are wrong.

    """
    arrays = read_npz(path, ("x", "y", "split", *OF_ONE_CLIENT))
    missing = [key for key in ("x", "y") if key not in arrays]
    require(not missing, f"data: {path} lacks {', '.join(missing)}; expected x, y, optional split")
    name = name or (str(arrays["name"][0]) if "name" in arrays else path.stem)
    x, y, alone = arrays["x"], arrays["y"], np.zeros(len(arrays["x"]), dtype=np.int64)
    given = {"path": str(path.resolve()), "name": name, "task": task, "n_classes": n_classes}
    if "form" not in arrays:
        names, split = np.array([name]), arrays.get("split")
        options: dict[str, Any] = {"task": task, "n_classes": n_classes, "names": names, "split": split}
        federation = FederatedDataModule.from_arrays(x, y, alone, **options).federation
        federation.notes["load_client"] = given
        return federation
    split = arrays["split"]
    one = {"seen": torch.tensor([True]), "n_train": torch.tensor([int((split == 0).sum())]), "names": [name]}
    schema = Schema.from_state(json.loads(str(arrays["form"][0])) | one)
    notes: dict[str, Any] = {"classes": schema.classes} if schema.classes is not None else {}
    return Federation.from_samples(
        schema.samples_of(x, y),
        alone,
        split,
        task=schema.task,
        names=(name,),
        notes=notes | {"load_client": given},
        features=schema.features,
    )
