"""What the server sends a client: tensors of the algorithm, as the state of a federation of this client alone."""

import json
import math
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, RecordDict

from fedem_lightning.aggregation import Models
from fedem_lightning.algorithms.base import FederatedAlgorithm
from fedem_lightning.algorithms.checkpoints import recipe_of
from fedem_lightning.models.client_store import Owner
from fedem_lightning.uploads import received_models


def request(algorithm: FederatedAlgorithm, client: int, round_: int, training: bool, start: bool) -> RecordDict:
    """What a client needs to train in a round, or to score its model.

    Args:
        algorithm: the server's.
        client: its index in the federation.
        round_: number of the round, from 0.
        training: whether it trains; else it scores.
        start: whether it also receives the state from which a client begins.

    """
    planned = algorithm.statistics.planned_rounds
    about: dict[str, Any] = {"recipe": json.dumps(recipe_of(algorithm)), "client": client}
    about |= {"round": round_, "planned_rounds": planned}
    own, states = state_of_client(algorithm, client), algorithm.states.all()
    names = _of_training(algorithm, client) if training else own.keys() - _kept_parts(algorithm, client)
    sent = {
        name: tensor
        for name, tensor in own.items()
        if name in names
        and ".initial_" not in name  # of a store's rows, which clients keep from their start on
        and (name not in states or states[name].owner is Owner.SERVER)
    }
    records: dict[str, Any] = {"about": ConfigRecord(about), "sent": arrays(sent)}
    return RecordDict(records | ({"start": arrays(own)} if start else {}))


def arrays(tensors: Models) -> ArrayRecord:
    """Tensors as Flower's record."""
    return ArrayRecord({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()})


def state_of_client(algorithm: FederatedAlgorithm, client: int) -> Models:
    """The `state_dict` of the algorithm for a federation of this client alone: where a client starts.

    Of what the server keeps to itself it has the form only.
    """
    states, found = algorithm.states.all(), {}
    for name, tensor in algorithm.state_dict().items():
        state = states.get(name)
        if state is not None and state.client_axis is not None:
            tensor = tensor.narrow(state.client_axis, client, 1)
        if state is not None and state.owner is Owner.SERVER_ONLY:
            tensor = torch.zeros_like(tensor[:0] if name in algorithm.states.sized_by_data else tensor)
        found[name] = tensor
    return found


def _of_training(algorithm: FederatedAlgorithm, client: int) -> set[str]:
    """The models that the method sends in a round, and the server's declared states."""
    one = torch.tensor([client])
    n_models = min(len(algorithm.components), math.ceil(algorithm.transmission(one).down))
    servers = {name for name, state in algorithm.states.all().items() if state.owner is Owner.SERVER}
    declared = servers & algorithm.states.declared.keys()
    components = {f"components.{m}.{name}" for m in range(n_models) for name in received_models(algorithm, one)}
    return declared | (servers - declared or components)


def _kept_parts(algorithm: FederatedAlgorithm, client: int) -> set[str]:
    """The parts of the components that stay with clients."""
    received = received_models(algorithm, torch.tensor([client]))
    components = enumerate(algorithm.components)
    return {f"components.{m}.{name}" for m, part in components for name in part.state_dict() if name not in received}
