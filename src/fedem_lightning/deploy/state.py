"""An algorithm's tensors, by whose they are: the server's, which it sends to clients, and each client's own."""

import math

import torch

from fedem_lightning.aggregation import Models
from fedem_lightning.algorithms.base import FederatedAlgorithm

CLIENTS, SERVED = "clients", "served"


def clients_tensors(algorithm: FederatedAlgorithm) -> set[str]:
    """Names, in the `state_dict`, of the tensors [T, ...] whose rows belong to clients."""
    return _rows(algorithm, CLIENTS) | set(algorithm._client_states) | {"has_frozen"}


def _rows(algorithm: FederatedAlgorithm, *owners: str) -> set[str]:
    """Names of the rows [T, ...] in the stores of these owners."""
    return {
        f"{name}.{part}"
        for name, store in algorithm.client_stores().items()
        if store.holds in owners
        for part in ("written", *(f"rows_{i}" for i in range(len(store.names))))
    }


def state_of_client(algorithm: FederatedAlgorithm, client: int) -> Models:
    """The `state_dict` of the algorithm for a federation of this client alone: where a client starts.

    Of what the server keeps to itself it has the form only.
    """
    axes = dict.fromkeys(clients_tensors(algorithm) | _rows(algorithm, SERVED), 0) | algorithm.client_axes
    stores = {name for name, store in algorithm.client_stores().items() if store.holds not in (CLIENTS, SERVED)}
    found = {}
    for name, tensor in algorithm.state_dict().items():
        if name in algorithm.unsent:
            tensor = tensor[:0]
        elif name in axes:
            tensor = tensor.narrow(axes[name], client, 1)
        elif name.rpartition(".")[0] in stores and ".initial_" not in name:
            tensor = torch.zeros_like(tensor[:1])
        found[name] = tensor
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
    models = _rows(algorithm, SERVED)
    models = models or {f"components.{m}.{name}" for m in range(n_models) for name in algorithm.received_models(one)}
    return {name: t for name, t in _servers_tensors(algorithm, client).items() if name in models or "." not in name}


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
        if name not in algorithm.received_models(torch.tensor([client], device=algorithm.device))
    }
    return {name: t for name, t in _servers_tensors(algorithm, client).items() if name not in kept}


def _servers_tensors(algorithm: FederatedAlgorithm, client: int) -> Models:
    own = clients_tensors(algorithm) | algorithm.unsent
    others = {name for name, store in algorithm.client_stores().items() if store.holds not in (CLIENTS, SERVED)}
    return {
        name: tensor
        for name, tensor in state_of_client(algorithm, client).items()
        if name not in own and ".initial_" not in name and name.rpartition(".")[0] not in others
    }
