"""The folder of a run from Python: the same files as the command line's."""

from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from fedem_lightning.data import FederatedDataModule
from fedem_lightning.evaluate.convergence import whole_run
from fedem_lightning.module.algorithm import FederatedAlgorithm
from fedem_lightning.module.checkpoints import recipe_of
from fedem_lightning.module.checks import check_capabilities
from fedem_lightning.run.callbacks import MappedCheckpoints
from fedem_lightning.run.results import write_run
from fedem_lightning.run.trackers import write_rows
from fedem_lightning.settings.check import check_arguments
from fedem_lightning.settings.errors import require
from fedem_lightning.settings.files import write_atomically
from fedem_lightning.settings.keys import dataset_name, shipped


def save_run(
    model: FederatedAlgorithm, data: FederatedDataModule, folder: str | Path, dataset: str | None = None
) -> None:
    """Writes the folder of a run, after `trainer.fit` and `trainer.test`: see docs/results.md.

    metrics.csv has the rounds that this process has trained. `command` and `fidelity` are null in results.json. With
    several processes all of them call it, and the first one writes.

    Args:
        model: trained and tested.
        data: what it was tested on.
        folder: new or empty.
        dataset: what the data are called in reports; None: by their file, as the command line does, or their class.

    Raises:
        UserError: the folder has files, or the model was not tested.

    """
    check_arguments("", save_run, locals())
    place = Path(folder).expanduser()
    new = not place.exists() or (place.is_dir() and not any(place.iterdir()))
    require(new, f"folder: {place} is not empty; choose another")
    require(len(model.clients) > 0, "model: it has no scores yet; call trainer.test(model, data) first")
    check_capabilities(model, data.federation)
    checkpoint = model.trainer._checkpoint_connector.dump_checkpoint(weights_only=False)
    if not model.trainer.is_global_zero:
        return
    algorithm, of_data = recipe_of(model), dict(data.hparams.get("data", {}))
    config = {name: algorithm.pop(name, None) for name in ("backbone", "adaptation", "engine", "seed")}
    if of_data.get("seed") == model.seed:
        of_data["seed"] = "${seed}"
    trainer = {"max_epochs": whole_run(model)[0].rounds}
    config |= {"seed": model.seed, "algorithm": algorithm, "dataset": of_data, "trainer": trainer}
    write_atomically(place / ".hydra" / "config.yaml", OmegaConf.to_yaml(OmegaConf.create(config)).encode())
    write_rows(place / "metrics.csv", whole_run(model)[1])
    name = f"round-{model.statistics.rounds:06d}.ckpt"
    MappedCheckpoints().save_checkpoint(checkpoint, place / "checkpoints" / name)
    parts = {"algorithm": model, "adaptation": model.adaptation, "dataset": data, "backbone": model.components[0]}
    names: dict[str, Any] = {group: _shipped(group, part) for group, part in parts.items()}
    names["dataset"] = dataset or dataset_name(names["dataset"], data.federation.notes.get("source"))
    chosen = model.made_with.get("client_optimizer") is not None
    rate = {"of": names["algorithm"], "rate": model.local.optimizer.lr, "chosen_by": "user" if chosen else None}
    names |= {"experiment": None, "seed": model.seed, "fidelity": None, "command": None}
    names["learning_rates"] = [rate] if model.local.takes_steps else []
    write_run(place, names, model, data.federation)


def _shipped(group: str, part: Any) -> str:
    """The name of a part on the command line, else that of its class; of several names for a class the shortest."""
    if part is None:
        return "none"
    kind = type(part).__name__
    found = [name for name, tree in shipped(group).items() if tree.get("_target_") == f"fedem_lightning.{kind}"]
    several = group in ("dataset", "backbone") and len(found) > 1  # ImageDataModule reads many data sets
    return kind if several or not found else min(found, key=lambda name: (len(name), name))
