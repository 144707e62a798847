"""Networks that draw random numbers of their own, from the global generators of torch, NumPy and Python."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedem_lightning import APFL, ClientSGD, Engine, FedAvg, FedEM, LoopEngine, VmapEngine
from fedem_lightning.run.callbacks import RoundCheckpoint
from helpers.federations import make_data, make_trainer, parameters
from helpers.networks import DRAWS, Drawing

STACKED = pytest.mark.filterwarnings("ignore:engine. vmap cannot stack this backbone, loop takes over")


def network(draw: str) -> Drawing:
    torch.manual_seed(0)
    return Drawing((4,), 3, [5], draw)


def trained(model: Any, rounds: int, seed: int, **options: Any) -> torch.Tensor:
    """Parameters, and the scores of rounds and clients, of a run that begins with other global generators."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)
    before = torch.get_rng_state(), random.getstate(), str(np.random.get_state())
    data, start = make_data(), options.pop("ckpt_path", None)
    trainer = make_trainer(rounds, precision="32-true", limit_val_batches=1, **options)
    trainer.fit(model, data, ckpt_path=start, weights_only=True)
    trainer.test(model, data, verbose=False)
    after = torch.get_rng_state(), random.getstate(), str(np.random.get_state())
    # a network that draws in scores does so when it is checked before the first round, too
    assert torch.equal(after[0], before[0]) or model.components[0].draw == "noise in scores too"
    assert after[1:] == before[1:]
    scores = [*model.clients.test_loss, *(v for name, v in sorted(model.curves[rounds].items()) if "loss" in name)]
    return torch.cat([parameters(model), torch.tensor(scores)]).nan_to_num()


@STACKED
@pytest.mark.parametrize("engine", ["loop", pytest.param("vmap", marks=pytest.mark.slow)])
@pytest.mark.parametrize("draw", DRAWS)
def test_a_resumed_run_has_the_same_bits(draw: str, engine: str, tmp_path: Path) -> None:
    def fresh() -> FedEM:
        sgd = ClientSGD(lr=0.3, momentum=0.9)
        return FedEM(network(draw), 4, 2, batch_size=4, participation=2, client_optimizer=sgd, engine=engine)

    saving = {"callbacks": [RoundCheckpoint(2, keep=9, dirpath=tmp_path)], "enable_checkpointing": True}
    straight = trained(fresh(), 4, seed=1, **saving)
    resumed = trained(fresh(), 4, seed=2, ckpt_path=tmp_path / "round-000002.ckpt")
    assert torch.equal(resumed, straight)


@STACKED
@pytest.mark.parametrize(("kind", "draw"), [(FedAvg, "dropout"), (FedAvg, "little noise"), (APFL, "python")])
def test_training_depends_neither_on_blocks_nor_on_the_engine(kind: Any, draw: str) -> None:
    engines: list[Engine] = [LoopEngine(), LoopEngine(block_size=1), VmapEngine(), VmapEngine(block_size=1)]
    models = [kind(network(draw), 4, batch_size=4, client_optimizer=ClientSGD(lr=0.3), engine=e) for e in engines]
    first, *others = (trained(model, 2, seed=i) for i, model in enumerate(models))
    for other in others:
        torch.testing.assert_close(other, first, rtol=0, atol=1e-6)
    assert not torch.equal(trained(kind(network(draw), 4, batch_size=4, seed=1), 2, seed=0), first)
