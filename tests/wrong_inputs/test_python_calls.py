"""Misuses from Python: their judgement, those that once ended in another way, a sample, and all of them."""

import functools
import random
from typing import Any

import pytest
from lightning_fabric.utilities.exceptions import MisconfigurationException

from fedem_lightning import UserError
from wrong_inputs.python.call import Call, Hang, Outcome, faults
from wrong_inputs.python.run import all_calls, met

REFUSED = Outcome(0.1, None, UserError("x: expected a number, got 'y'"), [], [])
RETURNED = Outcome(0.1, 3, None, [], [])


@pytest.mark.fast
@pytest.mark.parametrize(
    ("expected", "outcome", "fault"),
    [
        ({"says": "x"}, REFUSED, None),
        ({"says": "x"}, REFUSED._replace(error=MisconfigurationException("x")), None),
        ({"says": "z"}, REFUSED, "another line"),
        ({}, REFUSED, "refused"),
        ({"says": "x"}, REFUSED._replace(error=UserError("x\ny")), "not one line"),
        ({"says": "x"}, REFUSED._replace(error=TypeError("x")), "bare TypeError"),
        ({"says": "x", "python": True}, REFUSED._replace(error=TypeError("x")), None),
        ({"says": "x"}, REFUSED._replace(left=["a"]), "left a"),
        ({"says": "x"}, REFUSED._replace(error=Hang()), "hang"),
        ({"says": "x"}, RETURNED, "accepted"),
        ({"right": lambda returned: returned == 3}, RETURNED, None),
        ({"right": lambda returned: returned == 4}, RETURNED, "wrong result"),
        ({"warns": "slow"}, RETURNED, "silent"),
        ({"warns": "slow"}, RETURNED._replace(warned=["it is slow"]), None),
    ],
)
def test_what_is_held_against_a_call(expected: dict[str, Any], outcome: Outcome, fault: str | None) -> None:
    assert faults(Call("room/x", lambda _: None, **expected), outcome) == ([fault] if fault else [])


MENDED = [
    "constructors/adaptation, the class Finetune",
    "constructors/aggregation, the class Median",
    "constructors/compression, the class TopK",
    "constructors/engine, the class LoopEngine",
    "constructors/e_step, the class EStep",
    "constructors/topology, the class Topology",
    "constructors/FedAvg(faults=object <object object>, 3)",
    "constructors/EightBit(unknown=1)",
    "networks/FedEM vmap/one network in each call",
    "networks/FedAvg loop/lazy",
    "networks/FedAvg loop/script",
    "networks/FedAvg loop/old weight norm",
    "networks/FedAvg loop/meta",
    "networks/FedAvg loop/that gives detached",
    "networks/FedAvg loop/wrapped for several devices",
    "networks/FedAvg loop/a class with arguments",
    "server_optimizer/FedAvg loop/a class",
    "server_optimizer/FedAvg loop/None returned",
    "server_optimizer/FedAvg loop/other parameters",
    "server_optimizer/FedAvg loop/LBFGS with a rate",
    "server_optimizer/FedAvg loop/a negative rate",
    "server_optimizer/configured/None",
    "server_optimizer/configured/two",
    "server_optimizer/configured/a schedule",
    "callbacks/FedAvg/ModelPruning",
    "callbacks/FedAvg/BackboneFinetuning",
    "callbacks/FedAvg/BaseFinetuning",
    "callbacks/FedAvg/QuantizationAwareTraining",
    "data/validate/a list of loaders",
    "data/fit/an empty loader",
    "data/fit/a federation",
    "hooks/resume from a text",
    "hooks/to_onnx",
    "hooks/torch.compile",
    "arrays/odd x/negative strides",
    "arrays/odd x/big-endian",
    "arrays/x/a masked array",
    "arrays/options/class_weights, negative",
    "arrays/options/partition that returns None",
    "arrays/options/partition of other samples",
    "arrays/options/seed, None",
    "arrays/pixels/float32",
    "rows/predict, negative strides",
    "rows/personalize/y, None",
    "rows/personalize/x, None",
    "trained/clients/unknown",
    "trained/personalize/a name, a list",
    "trained/save_run/no data",
    "trained/save_run/other data",
    "trained/tasks/too few weights",
    "load/load/None",
    "load/with a wider backbone",
    "load/FedAvg of FedEM",
    "load/with more clients",
]
"""Calls that ended in a bare exception, in another result without a word, or in a line that named something else."""


@functools.cache
def calls() -> dict[str, Call]:
    return {call.name: call for call in all_calls()}


def judged(call: Call) -> list[str]:
    outcome = met(call)
    return [f"{call.name}: {fault} ({outcome.error})" for fault in faults(call, outcome)]


@pytest.mark.parametrize("name", MENDED)
def test_a_misuse_ends_well(name: str) -> None:
    assert judged(calls()[name]) == []


def test_there_are_more_than_1000_different_calls_and_a_sample_ends_well() -> None:
    assert len(calls()) == len(all_calls()) > 1000
    rooms = sorted({name.split("/")[0] for name in calls()})
    drawn = [
        random.Random(room).sample([c for n, c in calls().items() if n.startswith(f"{room}/")], 3) for room in rooms
    ]
    assert [fault for part in drawn for call in part for fault in judged(call)] == []


@pytest.mark.slow
def test_every_misuse_ends_well() -> None:
    assert [fault for call in calls().values() for fault in judged(call)] == []
