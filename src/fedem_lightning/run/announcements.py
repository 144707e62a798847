"""What a run says of itself beside its results: what is trained, from where it goes on, and why it ended early."""

import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytorch_lightning as pl
from omegaconf import DictConfig, OmegaConf

from fedem_lightning.data import FederatedDataModule
from fedem_lightning.evaluate.convergence import unfinished_line
from fedem_lightning.module.algorithm import FederatedAlgorithm
from fedem_lightning.run.building import pick_accelerator
from fedem_lightning.run.command_line import run_command
from fedem_lightning.settings.configs import data_and_network
from fedem_lightning.settings.errors import require
from fedem_lightning.settings.keys import FINDS_RUN, UNCHOSEN, shipped
from fedem_lightning.settings.measures import HIGHER_IS_BETTER, headline, in_words


def first_lines(
    config: DictConfig, folder: Path, model: FederatedAlgorithm, data: FederatedDataModule, trainer: pl.Trainer
) -> Iterator[str]:
    """What is trained on which data, by which engine, where its files are, and what clients keep."""
    if pick_accelerator(config) != config.trainer.get("accelerator", "auto"):
        yield "trainer.accelerator: cpu, because a Mac's GPU (mps) has no float64, which scores need"
    yield f"data: {data.federation}"
    n_clients, notes = data.federation.n_clients, data.federation.notes
    if left_out := notes.get("left_out_clients", 0):
        yield f"{n_clients:,} of the data's {n_clients + left_out:,} clients: {notes['why']}"
    engine = model.local.resolve_engine(trainer.strategy.root_device)
    several = f", {trainer.world_size} processes" if trainer.world_size > 1 else ""
    yield f"engine: {engine.name} ({engine.reason}){several}"
    quick = trainer.fast_dev_run  # type: ignore[attr-defined]
    yield "fast_dev_run: a round, its evaluation and the test, and no file" if quick else f"folder: {folder}"
    for name, store in model.states.stores().items():
        without = "; local_training.state=restart keeps none" if store is model.local.momentum else ""
        what = "own models" if name == "own" else name.removeprefix("kept_").replace("_", " ")
        yield f"clients keep their {what}: {store}{without}"
    if model.local.takes_steps:
        yield model.local.in_words(data.federation.splits["train"].counts(data.federation.clients()))


def last_lines(results: Mapping[str, Any], folder: Path) -> Iterator[str]:
    """Where the run's files are, the best validation round beside the last, whether training was over."""
    yield f"results and checkpoints: {folder}"
    best, last = results["best_round"], results["last_round"]
    if best and best["test"] is not None and best["round"] != last["round"]:
        at = [f"{in_words(result['test'], best['measure'])} at round {result['round']}" for result in (best, last)]
        yield f"test {best['measure']} by round: {at[0]}, the best on validation; {at[1]}, the last evaluated"
    if line := unfinished_line(results["convergence"]):
        yield line


WITHOUT_VAL = "no validation samples to choose one by: they come from dataset.fractions, or a split of the data's own"


class Rate(NamedTuple):
    """A learning rate of a run, and who chose it: users must see where nobody did.

    It was chosen by "user"; "chosen_for": a file, on validation data of these data and this network; "other_data": such
    a file for others; None: nobody, it is the default.
    """

    of: str  # the algorithm or the adaptation, by name
    rate: float
    chosen_by: str | None


def learning_rates(
    config: DictConfig, choices: Mapping[str, str], overrides: Sequence[str], model: FederatedAlgorithm
) -> list[Rate]:
    """The learning rate of the clients, and that of an adaptation that trains; none of a method without one."""
    result = []
    for part in ("algorithm", "adaptation"):
        name, lr = choices.get(part, "none"), OmegaConf.select(config, f"{part}.client_optimizer.lr")
        if part == "algorithm" and lr is None and model.local.takes_steps:
            result.append(Rate(name, model.local.optimizer.lr, None))  # the class's own
        elif lr is not None and (part == "adaptation" or model.local.takes_steps):
            result.append(Rate(name, float(lr), _chosen_by(config, part, name, overrides)))
    return result


def _chosen_by(config: DictConfig, part: str, name: str, overrides: Sequence[str]) -> str | None:
    key, typed = f"{part}.client_optimizer", {word.lstrip("+").partition("=")[0] for word in overrides}
    raw = str(OmegaConf.to_container(OmegaConf.select(config, key), resolve=False)["lr"])  # type: ignore[index,call-overload]
    rate = next((r for r in re.findall(r"learning_rates\.\w+", raw) if OmegaConf.select(config, r) is not None), None)
    chosen_for, fixed = config.get("rates_chosen_for"), "${" not in raw and name in shipped(part)
    if typed & {key, f"{key}.lr", rate} or fixed or (rate and chosen_for is None):
        return "user"
    if rate is None:  # also in the file of a method of the user's own, which says where the method begins
        return None
    return "chosen_for" if chosen_for == data_and_network(functools.partial(OmegaConf.select, config)) else "other_data"


def rate_line(
    rates: Sequence[Rate],
    choices: Mapping[str, str],
    config: DictConfig,
    data: FederatedDataModule,
    words: tuple[Sequence[str], Sequence[str]],
) -> str:
    """Who chose a run's learning rates; where nobody did for these data, the command that chooses one.

    The clients' rate is tuned too, unless the command line gives it: the overrides and flags in `words`. UserError: the
    run is a search, and has no validation samples.
    """
    these = ", ".join(f"{part}={choices[part]}" for part in ("dataset", "backbone") if part in choices)
    message: dict[Any, str] = {
        "user": "set by you",
        "chosen_for": f"chosen for {these}",
        "other_data": f"chosen for {config.get('rates_chosen_for')}, nobody chose one for {these}",
        None: f"the default, nobody chose it for {these}",
    }
    line = "learning rate " + "; ".join(f"{rate.rate:g} of {rate.of}, {message[rate.chosen_by]}" for rate in rates)
    overrides, flags = words
    typed = {word: word.lstrip("+").partition("=")[0] for word in overrides}
    has_val = len(data.federation.splits["val"]) > 0
    require(has_val or "tune" not in typed.values(), f"+tune: {WITHOUT_VAL}")
    unchosen = [rate.chosen_by in UNCHOSEN for rate in rates]
    if rates[0].of != choices["algorithm"] or not any(unchosen):
        return line
    if not has_val:
        return f"{line}; {WITHOUT_VAL}"
    tuned = ["+tune=learning_rate", *(word for word, key in typed.items() if key not in (*FINDS_RUN, "logger"))]
    if any(unchosen[1:]):
        tuned.append("adaptation.client_optimizer.lr=tag(log,interval(0.001,10))")
    if not HIGHER_IS_BETTER[headline(data.federation.task.measures)[0]]:
        tuned.append("hydra.sweeper.direction=minimize")
    return f"{line}\nchoose one with: {run_command(tuned, ['-m', *flags])}"
