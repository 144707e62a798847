"""FedRoD: one body with a generic head, which is averaged, and a personal head, which stays with its client.

Chen, Chao: "On Bridging Generic and Personalized Federated Learning for Image Classification", ICLR 2022, arXiv
2107.00778.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fedem_lightning.aggregation import Sent
from fedem_lightning.algorithms.checks import check_classes
from fedem_lightning.algorithms.facts import Facts
from fedem_lightning.algorithms.partial_averaging import PartialAveraging
from fedem_lightning.data.block import Block
from fedem_lightning.data.federation import Federation
from fedem_lightning.models.components import Backbone, model_state
from fedem_lightning.models.heads import BothLosses, TwoHeads
from fedem_lightning.models.parts import class_counts, wrapped
from fedem_lightning.models.personal_models import OwnModels, PersonalModels, component_outputs
from fedem_lightning.settings.ranges import PositiveInt

LOG_ZERO = -1e9
"""In place of log 0, the logarithm of the number of samples of an absent class: no logit makes up for it."""


class FedRoD(PartialAveraging):
    """The server averages the body and the generic head h_G; client t keeps its personal head h_t.

    h_G and the body are trained with balanced softmax, cross-entropy of the logits h_G(z) + log n_{t,y}, where n_{t,y}
    is the client's number of training samples of class y; h_t on the logits h_G(z) + h_t(z), which do not change z and
    h_G. Clients predict with h_G(z) + h_t(z). Column `test_generic_accuracy`: that of h_G alone, on the test split.

    An unseen client trains h_t from its initial values; body and h_G are fixed.

    Args:
        backbone, n_clients, options: see `FederatedAlgorithm`.
        head: a regular expression found in the names of the head's tensors, which are those of one module or of the
            last ones of a Sequential; None: the last layer.
        personalize_epochs: passes of an unseen client over its samples; None: as in a round.

    """

    facts = Facts(released=(), score_columns=("test_generic_accuracy",))

    def __init__(
        self,
        backbone: Backbone,
        n_clients: int,
        head: str | None = None,
        personalize_epochs: PositiveInt | None = None,
        **options: Any,
    ) -> None:
        network = wrapped(backbone, lambda own: TwoHeads(own, head))
        super().__init__(network, n_clients, n_components=1, **options)
        names = model_state(self.components[0])
        self.keep([name for name in names if name.startswith("personal.")], personalize_epochs)

    def prepare(self, federation: Federation) -> None:
        """Balanced softmax needs classes."""
        check_classes(self, federation)

    def client_update(self, block: Block, round_: int) -> Sent:
        """Local steps of both losses at once; the client keeps h_t and sends the rest."""
        step = self.local.step(block, round_)
        models = self.models_of(block.clients) | {"log_counts": self.log_counts(block)}
        step = replace(step, task=BothLosses(step.task))
        return self.kept_and_sent(block, self.local.solve(models, block, round_, step=step))

    def log_counts(self, block: Block) -> Tensor:
        """log n_{t,y} of each client, [C, 1, Y]; log n_{t,1} - log n_{t,0} where there is one logit, [C, 1, 1]."""
        task: Any = block.federation.task
        logs = class_counts(block, task.n_classes).to(self.parameter_dtype).log().clamp(min=LOG_ZERO)  # [C, Y]
        return (logs if task.n_outputs > 1 else logs[:, 1:] - logs[:, :1]).unsqueeze(1)

    def scored_models(self, block: Block) -> PersonalModels:
        """The personal models, with the column `test_generic_accuracy`."""
        personal = super().scored_models(block)
        assert isinstance(personal, OwnModels)
        return personal._replace(columns={**personal.columns, "test_generic_accuracy": self.generic_accuracy(block)})

    def generic_accuracy(self, block: Block) -> Tensor:
        """The accuracy of h_G alone on each client's test samples, [C]; NaN without any. The component's h_t is 0."""
        task, test = block.federation.task, block.federation.block(block.clients, "test")
        right = torch.zeros(len(block.clients), dtype=torch.float64, device=block.clients.device)
        for piece in test.pieces() if len(test.index) else ():
            outputs = component_outputs(self.components, piece)[0]
            right.index_add_(0, piece.owner, task.scores(task.predict(outputs), piece.y())["accuracy"].double())
        return right / test.counts()
