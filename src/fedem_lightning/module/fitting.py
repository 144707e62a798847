"""What a fit checks, plans and logs around its rounds."""

import re
from typing import Any

import torch
from pytorch_lightning.callbacks import ModelSummary
from pytorch_lightning.plugins.io import TorchCheckpointIO
from pytorch_lightning.utilities import rank_zero_only
from torch import Tensor

from fedem_lightning.data.arrays import listed
from fedem_lightning.data.federation import Federation
from fedem_lightning.data.schema import Schema
from fedem_lightning.local.server_step import check_optimizers
from fedem_lightning.method import Method
from fedem_lightning.models.components import copied, model_state
from fedem_lightning.models.parts import one_sample, owner, split_body_head, users_network
from fedem_lightning.models.tensors import trained_parameters
from fedem_lightning.module.checkpoints import CheckpointReader
from fedem_lightning.module.checks import check_capabilities, check_data, check_fit, check_logits
from fedem_lightning.module.trainer_options import check_trainer
from fedem_lightning.settings.check import parameters
from fedem_lightning.settings.errors import require


def check_start(algorithm: Method) -> None:
    """Refuses a Trainer, or its data, whose options have no meaning here; its checkpoints are read without pickle."""
    trainer, private = algorithm.trainer, algorithm.aggregation.samples_independently
    check_trainer(trainer, algorithm.local.optimizer.schedule, private)
    vars(rank_zero_only)["rank"] = trainer.global_rank  # Lightning's guess, RANK, may be another launch's
    data = check_data(trainer)
    _drop_summary(algorithm)
    compiled = getattr(algorithm, "_compiler_ctx", None) is not None
    require(not compiled, "torch.compile: a step of the model is a whole round; compile the backbone instead")
    if type(trainer.strategy.checkpoint_io) is TorchCheckpointIO:  # nobody chose another
        trainer.strategy.checkpoint_io = CheckpointReader()
    if isinstance(federation := getattr(data, "federation", None), Federation):
        use_computed_head(algorithm, federation)


def _drop_summary(algorithm: Method) -> None:
    """A line for Lightning's table of layers, which would count the FLOPs of `forward`, 0; a deeper table stays."""
    callbacks, first = algorithm.trainer.callbacks, algorithm.components[0]  # type: ignore[attr-defined]
    for callback in [each for each in callbacks if isinstance(each, ModelSummary) and each._max_depth == 1]:
        callbacks.remove(callback)
        sizes = f"{sum(p.numel() for p in first.parameters()):,} parameters each"
        rank_zero_only(print)(f"model: {len(algorithm.components)} x {type(first).__name__}, {sizes}")


def plan(algorithm: Method) -> None:
    """Plans the rounds of a fit, and says so where nobody has chosen the learning rate."""
    local, statistics = algorithm.local, algorithm.statistics
    check_optimizers(algorithm.trainer, algorithm.components)
    algorithm.train()  # as Lightning expects; an earlier round or evaluation may have left them in eval mode
    engine = local.resolve_engine(algorithm.device)  # copies the networks, before a profiler adds hooks to them
    if local.engine_gave_up:
        engine.give_up()
    statistics.plan(algorithm.trainer.max_epochs or 0)
    chosen = algorithm.made_with.get("client_optimizer") is not None
    if local.takes_steps and not chosen and not statistics.rounds:
        rank_zero_only(print)(
            f"learning rate {local.optimizer.lr:g}, the default, nobody chose it for these data; "
            f"client_optimizer=ClientSGD(lr=...) sets another\nlocal training: {local.in_words()}"
        )
    if line := whose_parts(algorithm):
        rank_zero_only(print)(line)


def whose_parts(algorithm: Method) -> str:
    """A line that says whose values layers have, where some are each client's or component's; "": nothing to say."""
    network, own = algorithm.components[0], algorithm.own_parameters
    who, others = "each client's own", "averaged"
    if not own and (own := getattr(getattr(algorithm, "tied", None), "own", ())):
        who, others = "each component's own", "common to all"
    names = model_state(network)
    if not own or len(own) == len(names):
        return ""
    layers = [dict.fromkeys(owner(name) or name for name in names if (name in own) == mine) for mine in (True, False)]
    return f"{who}: {listed(layers[0], 8)}; {others}: {listed(layers[1], 8)}"


def prepare(algorithm: Method, federation: Federation) -> Federation:
    """Prepares the algorithm for rounds and scores on this federation; returns it in the units that the model learned.

    UserError: the model was made for another federation, or the algorithm is not defined for this one.
    """
    algorithm.is_deployed |= algorithm.remote is not None
    if algorithm.schema is not None and algorithm.federation_digest is not None:
        federation = federation.in_units_of(algorithm.schema.task)
    check_capabilities(algorithm, federation)
    use_computed_head(algorithm, federation, begun=algorithm._trainer is not None)
    algorithm.prepare(federation)
    if algorithm.remote is None:  # else every client checks it
        check_fit(algorithm.components[0], federation)
    if algorithm.adaptation is not None:
        algorithm.adaptation.check(algorithm.components[0], federation)
    if algorithm.schema is None:
        algorithm.schema = Schema.of(federation)
    return federation


def use_computed_head(algorithm: Method, federation: Federation, begun: bool = False) -> None:
    """Makes an algorithm anew, in place, if its constructor took another layer for the head than computes the outputs.

    From here on the head is named among its arguments, so that a checkpoint knows it. Where the user has named it,
    nothing happens. UserError: `computed_last` finds no head; or it is too late, as the training has `begun`.
    """
    made_with, head = algorithm.made_with, parameters(type(algorithm)).known.get("head")  # type: ignore[arg-type]
    if made_with.get("shared") == "body" and len(algorithm.components) > 1:
        key = "shared"
    elif head is not None and made_with.get("head") is None:
        key = "head"
    else:
        return
    network = users_network(algorithm.components[0])
    if algorithm.remote is None:
        check_fit(network, federation)  # it says best what does not fit
    made_last = split_body_head(network, key=key)
    result = split_body_head(network, key=key, x=one_sample(federation, network))
    if result == made_last:
        return
    named: Any = rf"^{re.escape(owner(result.head[0]))}\."
    if key == "shared":
        named = [name for name in trained_parameters(network) if name in result.body]
    layers = f"the outputs come from {', '.join(result.head)}, but the model has taken {', '.join(made_last.head)}"
    in_time = not begun and not algorithm.statistics.rounds
    require(in_time, f"{key}: {layers}; make it anew, with {key}={named!r}, and train it")
    networks = iter([copied(users_network(component)) for component in algorithm.components])
    like = next(algorithm.components.parameters())
    arguments: dict[str, Any] = {**made_with, key: named, "backbone": lambda: next(networks)}
    kept = {
        name: getattr(algorithm, name) for name in ("_trainer", "networks", "remote", "is_deployed", "cohort_secret")
    }
    type(algorithm).__init__(algorithm, **arguments)
    vars(algorithm).update(kept, made_with={**made_with, key: named})
    algorithm.to(like.device, like.dtype)


def begin_fit(algorithm: Method, federation: Federation) -> None:
    """Prepares for the federation before its first round here; UserError if the model was trained on another one."""
    algorithm._trained = None  # it has the state of an earlier round
    if federation is algorithm._prepared:
        return
    in_units = prepare(algorithm, federation)
    require(
        algorithm.federation_digest is None or federation.digest() == algorithm.federation_digest,
        "model: it was trained on another federation (other x or labels, partition, split or seed)",
    )
    was = str(getattr(in_units.task, "scale", None) is not None).lower()
    require(in_units is federation, f"dataset.standardize_targets: the model was trained with {was}, expected the same")
    if algorithm.remote is None and not algorithm.statistics.rounds:  # a model that has been trained may go on
        check_logits(check_fit(algorithm.components[0], federation), federation.task)
    algorithm.federation_digest, algorithm._prepared = federation.digest(), federation
    algorithm.schema = Schema.of(federation)


def known_pi(algorithm: Method) -> Tensor | None:
    """The mixture weights [T, M] of a method that mixes; None also where they are with clients elsewhere."""
    return None if algorithm.is_deployed else getattr(algorithm, "pi", None)


def mixture_metrics(algorithm: Method, federation: Federation) -> dict[str, float]:
    """For methods with `pi`: its means over the clients that train, pi/mean_0, ..., and pi/entropy in nats."""
    pi = known_pi(algorithm)
    if pi is None:
        return {}
    weights = pi[federation.clients()].double()  # [C, M]
    means = {f"pi/mean_{m}": float(mean) for m, mean in enumerate(weights.mean(dim=0))}
    return means | {"pi/entropy": float(torch.special.entr(weights).sum(dim=1).mean())}


def log(algorithm: Method, metrics: dict[str, float]) -> None:
    """Logs metrics by the number of rounds."""
    trainer = algorithm.trainer
    if trainer.state.fn == "fit":  # loggers use the metric called "step" as x-axis: rounds
        if not trainer.sanity_checking:
            algorithm.curves.setdefault(algorithm.statistics.rounds, {}).update(metrics)
        metrics = metrics | {"step": float(algorithm.statistics.rounds)}
    options: dict[str, Any] = {"on_step": False, "on_epoch": True, "batch_size": 1}
    options["sync_dist"] = trainer.world_size > 1
    algorithm.log_dict(metrics, **options)
    if trainer.state.fn == "fit":  # names that callbacks may monitor and put into file names
        scores = {name.replace("/", "_"): value for name, value in metrics.items() if "/" in name}
        algorithm.log_dict(scores, logger=False, **options)
