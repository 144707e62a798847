"""Methods of `FederatedAlgorithm`: the clients' local solver, and the server's step."""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fedem_lightning.aggregation import Means, Models, all_finite
from fedem_lightning.data.federation import Block
from fedem_lightning.frozen import trained_parameters
from fedem_lightning.local_solver import Learner, LocalStep, shuffled_batches

if TYPE_CHECKING:
    from fedem_lightning.algorithms.base import FederatedAlgorithm


def local_solver(
    algorithm: "FederatedAlgorithm",
    models: Models,
    block: Block,
    round_: int,
    weights: Tensor | None = None,
    **options: Any,
) -> Models:
    """Weighted SGD over each client's training samples (Alg. 2, LocalSolver): `solve`, params and buffers only."""
    trained = algorithm.solve(models, block, round_, weights, **options)
    return trained["params"] | trained["buffers"]


def solve(
    algorithm: "FederatedAlgorithm",
    models: Models,
    block: Block,
    round_: int,
    weights: Tensor | None = None,
    *,
    step: LocalStep | None = None,
    extra: Learner | None = None,
    epochs: int | None = None,
    steps: int | None = None,
    keep_momentum: bool = True,
    quiet: bool = False,
) -> Learner:
    """The local solver: `epochs` passes, or `steps` steps, over each client's training samples.

    Args:
        models: where each client starts, [C, M, ...].
        block: the clients and their samples.
        round_: number of the round, from 0; it sets shuffling and learning rate.
        weights: of the samples in each model's loss, [n, M]; None: 1.
        step: default: that of `local_step`.
        extra: what the step needs beyond "params", "buffers" and "momentum", each tensor [C, M, ...].
        epochs, steps: default: the algorithm's.
        keep_momentum: whether kept momentum (`client_optimizer.state`) is used and moved on.
        quiet: whether this training is left out of the round's progress.

    Returns:
        The learners after the local steps, each tensor [C, M, ...].

    """
    step = step or algorithm.local_step(block, round_)
    params = list(trained_parameters(algorithm.components[0]))
    kept = algorithm.kept_momentum if keep_momentum and hasattr(algorithm, "kept_momentum") else None
    restart = {name: torch.zeros_like(models[name]) for name in params if step.optimizer.momentum}
    learners = {
        "params": {name: models[name] for name in params},
        "buffers": {name: tensor for name, tensor in models.items() if name not in params},
        "momentum": restart if kept is None else _first(kept.read(block.clients), models),
        **(extra or {}),
    }
    steps = algorithm.local_steps if epochs is None and steps is None else steps
    epochs = algorithm.local_epochs if epochs is None else epochs
    batches = shuffled_batches(block, algorithm.batch_size, epochs, algorithm.seed, round_, steps)
    algorithm.components[0].train()
    progress = (lambda clients: None) if quiet else algorithm.observer.advance
    trained = algorithm.engine.run(step, learners, block, batches, weights, progress)
    if kept is not None:
        finite = all_finite(trained["momentum"])  # a client that diverged once starts again from what it had
        n_kept = algorithm.trained_models or len(algorithm.components)
        rows = {name: t[finite].expand(-1, n_kept, *t.shape[2:]) for name, t in trained["momentum"].items()}
        kept.write(block.clients[finite], rows)
    return trained


def _first(kept: Models, models: Models) -> Models:
    """Of what is kept, [C, M, ...], as much as there are models: one may be trained that stands for M equal ones."""
    n_models = next(iter(models.values())).shape[1]
    return {name: rows[:, :n_models] for name, rows in kept.items()}


def local_step(
    algorithm: "FederatedAlgorithm", block: Block, round_: int, kind: type[LocalStep] = LocalStep, **options: Any
) -> LocalStep:
    """A local step of the given kind, at the round's learning rate."""
    backbone, task = algorithm.components[0], block.federation.task
    return kind(backbone, task, algorithm.client_optimizer, algorithm.lr_at(round_), **options)


def take_means(algorithm: "FederatedAlgorithm", means: Means) -> None:
    """Theta <- server optimiser(theta, theta - mean); with plain SGD of rate 1 the mean itself, without rounding."""
    optimizer = algorithm.optimizers()
    assert not isinstance(optimizer, list)  # configure_optimizers gives one
    if not takes_plain_averages(optimizer.optimizer):
        return algorithm.server_step(algorithm.pseudo_gradient(means))
    for m, component in enumerate(algorithm.components):
        if means.heard[m]:
            component.load_state_dict({name: rows[m] for name, rows in means.models.items()}, strict=False)
    return algorithm.server_step(None)


def takes_plain_averages(optimizer: torch.optim.Optimizer) -> bool:
    """Whether a step on theta - mean ends at the mean: SGD of rate 1 without momentum."""

    def replaces(group: dict[str, Any]) -> bool:
        return group["lr"] == 1 and group["momentum"] == 0 and group["weight_decay"] == 0 and not group["maximize"]

    return type(optimizer) is torch.optim.SGD and all(map(replaces, optimizer.param_groups))


def pseudo_gradient(algorithm: "FederatedAlgorithm", means: Means) -> list[Models | None]:
    """Theta - mean of each component, None where nobody sent one; its buffers become their mean."""
    gradients: list[Models | None] = []
    for m, component in enumerate(algorithm.components):
        if not means.heard[m]:
            gradients.append(None)
            continue
        trained = trained_parameters(component)
        gradients.append({name: p.detach() - means.models[name][m] for name, p in trained.items()})
        for name, buffer in component.named_buffers():
            if name in means.models:
                buffer.copy_(means.models[name][m])
    return gradients


def server_step(algorithm: "FederatedAlgorithm", gradients: list[Models | None] | None) -> None:
    """One step of the server optimiser; None leaves a component (or all) as it is. It counts the round."""
    for m, component in enumerate(algorithm.components):
        gradient = None if gradients is None else gradients[m]
        for name, parameter in trained_parameters(component).items():
            parameter.grad = None if gradient is None else gradient[name]
    optimizer = algorithm.optimizers()
    assert not isinstance(optimizer, list)  # configure_optimizers gives one
    optimizer.step()
