"""How near FedEM comes to EM without a federation, for linear models: accuracies by start of the components.

    python benchmarks/reference_em.py dataset=npz dataset.path=un.npz algorithm.local_epochs=5 algorithm.batch_size=32
        algorithm.client_optimizer.lr=3 trainer.max_epochs=300 --starts auto random shared --seeds 0 1 2

The reference holds all samples in one place. It begins at the pooled model with random mixture weights of every client,
and its M-steps are nearly exact: L-BFGS on the weighted losses, with a ridge penalty. Penalty and number of EM steps
are those of the highest validation accuracy. FedEM runs as the words say, once for each start and seed. All accuracies
are means over clients, in %.
"""

import argparse
import warnings
from typing import Any, NamedTuple

import numpy as np
import pytorch_lightning as pl
import torch
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate
from torch import Tensor
from torch.nn import functional

from common import bare_parser, finish, make_trainer, print_header, print_row
from fedem_lightning.data.federation import Federation
from fedem_lightning.models.em import mixture_weights, responsibilities
from fedem_lightning.run import cli  # noqa: F401  (it registers the resolvers)
from fedem_lightning.run.building import build_model
from fedem_lightning.settings.keys import CONFIG_DIR

PENALTIES = (1e-3, 1e-4, 1e-5, 1e-6)
EM_STEPS, M_STEP_ITERATIONS = 40, 15


class Samples(NamedTuple):
    """Of a split of the clients that train."""

    x: Tensor  # [n, d]
    y: Tensor  # int64 [n]
    owner: Tensor  # int64 [n], rows of the clients

    @classmethod
    def of(cls, federation: Federation, split: str) -> "Samples":
        """All samples of the split."""
        block = federation.block(federation.clients(), split)
        return cls(block.x(torch.float32).flatten(1), block.y().long(), block.owner)


def outputs(theta: Tensor, x: Tensor) -> Tensor:
    """Log-probabilities [n, M, Y] of M linear models [M, d + 1, Y]; one output is the logit of the second class."""
    found = torch.einsum("id,mdk->imk", x, theta[:, :-1]) + theta[:, -1]
    if found.shape[2] == 1:
        found = torch.cat([torch.zeros_like(found), found], dim=2)
    return found.log_softmax(dim=2)


def losses(theta: Tensor, samples: Samples) -> Tensor:
    """In nats, [n, M]."""
    found = outputs(theta, samples.x)
    return -found.gather(2, samples.y.view(-1, 1, 1).expand(-1, found.shape[1], 1)).squeeze(2)


def m_step(theta: Tensor, samples: Samples, q: Tensor, penalty: float, iterations: int) -> Tensor:
    """Minimises sum_im q_im l_im / n + penalty |theta|^2."""
    theta = theta.clone().requires_grad_(True)
    optimizer = torch.optim.LBFGS([theta], max_iter=iterations, line_search_fn="strong_wolfe")

    def closure() -> Any:
        optimizer.zero_grad()
        loss = (q * losses(theta, samples)).sum() / len(q) + penalty * theta[:, :-1].square().sum()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    optimizer.step(closure)
    return theta.detach()


def accuracy(theta: Tensor, pi: Tensor, samples: Samples) -> float:
    """Mean over the clients that have samples, in %."""
    mixed = (outputs(theta, samples.x).exp() * pi[samples.owner].unsqueeze(2)).sum(dim=1)  # Eq. 5  [n, Y]
    hits = functional.one_hot(samples.owner, len(pi)).T.float() @ (mixed.argmax(dim=1) == samples.y).float()
    counts = samples.owner.bincount(minlength=len(pi))
    return 100 * float((hits / counts)[counts > 0].mean())


def reference(federation: Federation, n_outputs: int, n_components: int, seed: int) -> dict[str, tuple[float, float]]:
    """Validation and test accuracy of the pooled model and of EM, each with the penalty that is best on validation."""
    train, val, test = (Samples.of(federation, split) for split in ("train", "val", "test"))
    drawn = np.random.default_rng(seed).dirichlet(np.ones(n_components), size=len(federation.clients()))
    best = {"pooled": (0.0, 0.0), "central EM": (0.0, 0.0)}

    def note(name: str, theta: Tensor, pi: Tensor) -> None:
        if (found := accuracy(theta, pi, val)) > best[name][0]:
            best[name] = found, accuracy(theta, pi, test)

    for penalty in PENALTIES:
        zeros = torch.zeros(1, train.x.shape[1] + 1, n_outputs)
        pooled = m_step(zeros, train, torch.ones(len(train.y), 1), penalty, 200)
        note("pooled", pooled, torch.ones(len(drawn), 1))
        theta, pi = pooled.repeat(n_components, 1, 1), torch.from_numpy(drawn).float()
        for _ in range(EM_STEPS):
            q = responsibilities(pi, losses(theta, train), train.owner)  # Eq. 8
            pi = mixture_weights(q, train.owner, pi)  # Eq. 9
            theta = m_step(theta, train, q, penalty, M_STEP_ITERATIONS)  # Eq. 10
            note("central EM", theta, pi)
    return best


def federated(words: list[str]) -> tuple[float, float]:
    """Validation and test accuracy after the last round."""
    with initialize_config_dir(str(CONFIG_DIR), version_base="1.3"):
        config = compose("config", words)
    data = instantiate(config.dataset)
    pl.seed_everything(config.seed, verbose=False)
    model = build_model(config, data)
    trainer = make_trainer(config.trainer.max_epochs, torch.device("cpu"))
    trainer.fit(model, data)
    trainer.test(model, data, verbose=False)
    return tuple(100 * float(model.clients[f"{split}_accuracy"].mean()) for split in ("val", "test"))  # type: ignore


def main() -> None:
    """Entry point."""
    parser = bare_parser(__doc__)
    parser.add_argument("words", nargs="+", metavar="OVERRIDE", help="of the run, as on the command line")
    parser.add_argument("--starts", nargs="*", default=["auto", "random"], help="values of initialization")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    options: argparse.Namespace = parser.parse_intermixed_args()
    warnings.filterwarnings("ignore")
    found: dict[str, list[tuple[float, float]]] = {}
    for seed in options.seeds:
        words = [*options.words, f"seed={seed}"]
        with initialize_config_dir(str(CONFIG_DIR), version_base="1.3"):
            config = compose("config", words)
        data = instantiate(config.dataset)
        torch.manual_seed(seed)
        for name, scores in reference(data.federation, data.n_outputs, config.n_components or 3, seed).items():
            found.setdefault(name, []).append(scores)
        for start in options.starts:
            name = f"FedEM, {start}"
            found.setdefault(name, []).append(federated([*words, "algorithm=fedem", f"initialization={start}"]))
    print_header(" ".join(options.words), "model", "validation", "test", "test, by seed")
    for name, scores in found.items():
        val, test = np.array(scores).T
        print_row(name, f"{val.mean():.1f}", f"{test.mean():.1f}", ", ".join(f"{value:.1f}" for value in test))
    finish(options, torch.device("cpu"), accuracies=found)


if __name__ == "__main__":
    main()
