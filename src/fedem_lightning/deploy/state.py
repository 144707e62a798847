"""An algorithm's tensors, by whose they are: the server's, which it sends to clients, and each client's own."""

import math

import torch

from fedem_lightning.aggregation import Models
from fedem_lightning.algorithms.base import FederatedAlgorithm


def clients_tensors(algorithm: FederatedAlgorithm) -> set[str]:
    """Names, in the `state_dict`, of the tensors [T, ...] whose rows belong to clients."""
    rows = {
        f"{name}.{part}"
        for name, store in algorithm.client_stores().items()
        if store.holds == "clients"
        for part in ("written", *(f"rows_{i}" for i in range(len(store.names))))
    }
    return rows | set(algorithm._client_states) | {"has_frozen"}


def state_of_client(algorithm: FederatedAlgorithm, client: int) -> Models:
    """The `state_dict` of the algorithm for a federation of this client alone: where a client starts."""
    rows = clients_tensors(algorithm) | set(algorithm._server_columns)
    state = algorithm.state_dict()
    return {name: tensor[client : client + 1] if name in rows else tensor for name, tensor in state.items()}


def sent_for_training(algorithm: FederatedAlgorithm, client: int) -> Models:
    """What a client receives in each round: the models that the method sends, and the server's declared states."""
    one = torch.tensor([client], device=algorithm.device)
    n_models = min(len(algorithm.components), math.ceil(algorithm.transmission(one).down))
    models = {f"components.{m}.{name}" for m in range(n_models) for name in algorithm.received_models(one)}
    return {name: t for name, t in _servers_tensors(algorithm, client).items() if name in models or "." not in name}


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
    own = clients_tensors(algorithm)
    state = state_of_client(algorithm, client)
    return {name: tensor for name, tensor in state.items() if name not in own and ".initial_" not in name}
