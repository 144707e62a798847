"""Another start for components that hardly any client uses."""

from dataclasses import replace
from typing import TYPE_CHECKING, Literal

import torch
from pytorch_lightning.utilities import rank_zero_only
from torch import Tensor

from fedem_lightning.aggregation import Sent, WeightedMean
from fedem_lightning.algorithms.initialization import train_on_each
from fedem_lightning.data.federation import Federation
from fedem_lightning.em import mixture_losses
from fedem_lightning.evaluation.component_health import dead_components
from fedem_lightning.history import Round
from fedem_lightning.models.client_store import Owner
from fedem_lightning.models.components import model_state
from fedem_lightning.models.personal_models import client_means
from fedem_lightning.randomness import Purpose, generator
from fedem_lightning.uploads import count_special_round

if TYPE_CHECKING:
    from fedem_lightning.algorithms.fedem import FedEM

Revive = Literal["worst", "split"] | None

REST, EPOCHS, SHARE = 10, 5, 0.1
"""Rounds until a component may start once more; passes of "worst", and the share of the clients that take them."""


class Revival:
    """After a round, the first dead component (`dead_components`) starts again; at most one in a round.

    Args:
        algorithm: the mixture.
        revive: "worst": the tenth of the clients with the highest loss under the mixture train the strongest component,
            and the mean of their models is the new component, as k-means moves an empty cluster to the farthest points.
            Every client gives it a weight of 1 / M. "split": it is a copy of the strongest component, and each client
            divides its weight for that one between both at random (the split of SMEM: Ueda, Nakano, Ghahramani, Hinton,
            Neural Computation 12, 2000). None: nothing.

    """

    def __init__(self, algorithm: "FedEM", revive: Revive) -> None:
        self.algorithm, self.revive = algorithm, revive
        if revive is not None:
            m = len(algorithm.components)
            algorithm.states.declare("revived", torch.full((m,), -REST), Owner.SERVER_ONLY)  # in which round
            reads = "reads clients' mixture weights (algorithm.revive=null does not)"
            released = (*(algorithm.facts.released or ()), "mixture weights of all clients")
            algorithm.facts = replace(algorithm.facts, needs_one_machine=reads, released=released)

    def after(self, round_: Round) -> None:
        """Starts a dead component again, if there is one that has had time since it last did."""
        if self.revive is None:
            return
        algorithm, clients = self.algorithm, round_.federation.clients()
        pi, revived = algorithm.pi[clients], algorithm.get_buffer("revived")
        for m in dead_components(pi.cpu().numpy()):
            if round_.number >= int(revived[m]) + REST:
                strongest = int(pi.mean(dim=0).argmax())
                start = self._at_worst if self.revive == "worst" else self._split
                where = start(m, strongest, round_.federation, round_.number)
                revived[m] = round_.number
                algorithm.diagnostics.setdefault("revived", []).append({"round": round_.number + 1, "component": m})
                rank_zero_only(print)(
                    f"round {round_.number + 1}: hardly any client used component {m}; it starts again {where}"
                )
                return

    def _at_worst(self, m: int, strongest: int, federation: Federation, number: int) -> str:
        """Component m <- what the clients that are served worst make of the strongest one."""
        algorithm, clients = self.algorithm, federation.clients()
        block = federation.block(clients, "train")
        losses = mixture_losses(algorithm.pi[clients], algorithm.losses(block), block.owner)  # [n]
        mean = client_means(losses.unsqueeze(1), block).squeeze(1).nan_to_num(torch.inf)  # [T]
        worst = clients[mean.topk(max(1, round(SHARE * len(clients)))).indices].sort().values
        counts = federation.splits["train"].counts(worst)
        count_special_round(algorithm, worst, EPOCHS * counts, down=1, up=1)
        average = WeightedMean()
        average.add(Sent(train_on_each(algorithm, federation, worst, EPOCHS, strongest), counts))
        found = average.compute()
        if found is not None:
            self._load(m, {name: rows[0] for name, rows in found.models.items()})
        even = torch.zeros_like(algorithm.pi[0])
        even[m] = 1.0
        algorithm.pi[clients] = torch.lerp(algorithm.pi[clients], even, 1 / len(even))
        return f"at the {len(worst)} clients with the highest loss"

    def _split(self, m: int, strongest: int, federation: Federation, number: int) -> str:
        """Component m <- the strongest one, whose weights each client divides between both at random."""
        algorithm, clients = self.algorithm, federation.clients()
        self._load(m, model_state(algorithm.components[strongest]))
        drawn = generator(algorithm.seed, Purpose.REVIVAL, number).random(len(clients))
        share, pi = torch.from_numpy(drawn).to(algorithm.pi), algorithm.pi[clients]
        pi[:, m] += share * pi[:, strongest]
        pi[:, strongest] *= 1 - share
        algorithm.pi[clients] = pi
        return f"as a part of component {strongest}"

    def _load(self, m: int, model: dict[str, Tensor]) -> None:
        """Component m takes a model, without what all components share."""
        sharing = self.algorithm.sharing
        own = {name: tensor for name, tensor in model.items() if sharing is None or name in sharing.own}
        self.algorithm.components[m].load_state_dict(own, strict=False)
