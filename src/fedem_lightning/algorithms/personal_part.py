"""Parameters of which every client keeps its own, beside components that all clients share."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from torch import Tensor, nn

from fedem_lightning.aggregation import Models, all_finite
from fedem_lightning.algorithms.sharing import trained_in
from fedem_lightning.data.federation import Federation
from fedem_lightning.models.client_store import ClientStore
from fedem_lightning.models.components import model_state, within
from fedem_lightning.models.parts import head_layer, share_of_bytes
from fedem_lightning.models.personal_models import broadcast

if TYPE_CHECKING:
    from fedem_lightning.algorithms.fedem import FedEM

PRIVATE = "keeps parameters of each client's own (algorithm.personal=null does not)"
"""Why such a mixture does not run under Flower, see `Facts.needs_one_machine`."""


class PersonalPart:
    """b_t: client t's components are f(x; theta_0, phi_m, b_t), one b_t for all M of them, as FedPer keeps a head.

    A client that has no b_t yet has that of component 0. One that joins later trains it with all else fixed.

    Args:
        algorithm: keeps the rows, as `own`.
        names: of modules, or of parameters; "head" is the last layer, if no module is called so.

    Raises:
        UserError: a name is no module and no parameter that trains.

    """

    def __init__(self, algorithm: "FedEM", names: Sequence[str] | str) -> None:
        network = algorithm.components[0]
        parts = [_named(network, name) for name in ([names] if isinstance(names, str) else names)]
        expected = "personal: expected names of parameters, or of modules with parameters"
        self.names = tuple(trained_in(network, parts, expected))
        state = model_state(network)
        own = {name: state[name].unsqueeze(0) for name in self.names}
        self.rows = ClientStore(algorithm.n_clients, own, alone=True)
        self.share = share_of_bytes(network, self.names)  # of a model's bytes
        algorithm.own = self.rows
        algorithm.facts = replace(algorithm.facts, needs_one_machine=PRIVATE)

    def models(self, algorithm: "FedEM", clients: Tensor) -> Models:
        """The newest components with the clients' own parts, [C, M, ...]."""
        models = broadcast(algorithm.components, len(clients))
        rows = self.rows.read(clients, {name: models[name][:, :1] for name in self.names})  # [C, 1, ...]
        return models | {name: row.expand_as(models[name]) for name, row in rows.items()}

    def keep(self, models: Models, clients: Tensor) -> Models:
        """Keeps b_t of the clients whose models [C, M, ...] are finite; returns the rest."""
        finite, own = all_finite(models), {name: models[name][:, :1] for name in self.names}  # [C], [C, 1, ...]
        if not finite.all():
            clients, own = clients[finite], {name: rows[finite] for name, rows in own.items()}
        self.rows.write(clients, own)
        return {name: rows for name, rows in models.items() if name not in self.names}

    def forget(self, clients: Tensor) -> None:
        """Clients [C] start again without a part of their own."""
        self.rows.written[clients] = False

    def train(self, algorithm: "FedEM", federation: Federation, clients: Tensor) -> None:
        """Clients [C] take the local steps of a round on b_t alone; samples weigh as in that round."""
        round_ = algorithm.statistics.rounds
        for block in algorithm.local.blocks(federation, clients):
            received = self.models(algorithm, block.clients)  # [C, M, ...]
            q = algorithm.tuning_weights(algorithm.pi[block.clients], algorithm.losses(block), block)
            solver = algorithm.local if algorithm.sharing is None else algorithm.sharing
            self.keep(solver.solve(received, block, round_, q, only=self.names), block.clients)


def _named(network: nn.Module, name: str) -> str:
    """A name in the network: that of the last layer in place of "head", if the network has no such module."""
    first, *rest = name.split(".")
    if first != "head" or hasattr(network, "head"):
        return name
    found = ".".join([head_layer(network), *rest])
    return found if any(within(own, [found]) for own in model_state(network)) else name  # a mistake stays as typed
