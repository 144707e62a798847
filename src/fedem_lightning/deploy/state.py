"""What of an algorithm's tensors a client receives, by their owners (`states.py`)."""

import math

import torch

from fedem_lightning.aggregation import Models
from fedem_lightning.algorithms.base import FederatedAlgorithm
from fedem_lightning.models.client_store import Owner
from fedem_lightning.uploads import received_models


def clients_tensors(algorithm: FederatedAlgorithm) -> set[str]:
    """Names, in the `state_dict`, of the tensors [T, ...] that are not the server's to send as a whole."""
    alone = {name for name, state in algorithm.states.all().items() if state.is_clients and state.client_axis == 0}
    return alone | {"has_frozen"}


def state_of_client(algorithm: FederatedAlgorithm, client: int) -> Models:
    """The `state_dict` of the algorithm for a federation of this client alone: where a client starts.

    Of what the server keeps to itself it has the form only.
    """
    states, found = algorithm.states.all(), {}
    for name, tensor in algorithm.state_dict().items():
        state = states.get(name)
        if state is None:
            found[name] = tensor
        elif state.owner is Owner.SERVER_ONLY:
            found[name] = tensor[:0] if state.client_axis is None and name in algorithm.states.declared else tensor[:1]
            found[name] = torch.zeros_like(found[name])
        else:
            found[name] = tensor if state.client_axis is None else tensor.narrow(state.client_axis, client, 1)
    return found


def with_equal_ties(algorithm: FederatedAlgorithm, state: Models) -> Models:
    """The state in which a tensor of several names has one value: that of its first name, which the server sends."""
    tensors = [*algorithm.named_parameters(remove_duplicate=False), *algorithm.named_buffers(remove_duplicate=False)]
    first_names = dict[int, str]()
    names = {name: first_names.setdefault(id(tensor), name) for name, tensor in tensors}
    return {name: state[names.get(name, name)] for name in state}


def sent_for_training(algorithm: FederatedAlgorithm, client: int) -> Models:
    """What a client receives in each round: the models that the method sends, and the server's declared states."""
    one = torch.tensor([client], device=algorithm.device)
    n_models = min(len(algorithm.components), math.ceil(algorithm.transmission(one).down))
    servers = {name for name, state in algorithm.states.all().items() if state.owner is Owner.SERVER}
    declared = servers & algorithm.states.declared.keys()
    models = (servers - declared) or {
        f"components.{m}.{name}" for m in range(n_models) for name in received_models(algorithm, one)
    }
    return {name: t for name, t in _servers_tensors(algorithm, client).items() if name in models | declared}


def sent_with_question(algorithm: FederatedAlgorithm, client: int) -> Models:
    """What a client receives to answer a question: the components."""
    state = _servers_tensors(algorithm, client)
    return {name: tensor for name, tensor in state.items() if name.startswith("components.")}


def sent_for_scoring(algorithm: FederatedAlgorithm, client: int) -> Models:
    """What a client receives to score its models: all that the server has and may send."""
    kept = {
        f"components.{m}.{name}"
        for m, component in enumerate(algorithm.components)
        for name in component.state_dict()
        if name not in received_models(algorithm, torch.tensor([client], device=algorithm.device))
    }
    return {name: t for name, t in _servers_tensors(algorithm, client).items() if name not in kept}


def _servers_tensors(algorithm: FederatedAlgorithm, client: int) -> Models:
    """What the server has and may send; clients keep the initial rows of stores from their start on."""
    states = algorithm.states.all()
    return {
        name: tensor
        for name, tensor in state_of_client(algorithm, client).items()
        if ".initial_" not in name and (name not in states or states[name].owner is Owner.SERVER)
    }
