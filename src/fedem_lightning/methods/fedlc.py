"""FedLC: local training calibrates logits by the client's own numbers of labels.

Zhang, Li, Li, Xu, Wu, Ding, Wu: "Federated Learning with Label Distribution Skew via Logits Calibration", ICML 2022,
arXiv 2209.00189.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedem_lightning.aggregate import Update
from fedem_lightning.data.federation import Block, Federation
from fedem_lightning.data.tasks import OfTask, known
from fedem_lightning.local.solver import LocalStep, Step
from fedem_lightning.models.components import Backbone
from fedem_lightning.models.heads import class_counts
from fedem_lightning.models.margins import WithMargins
from fedem_lightning.models.parts import wrapped
from fedem_lightning.module.algorithm import FederatedAlgorithm
from fedem_lightning.module.checks import check_classes
from fedem_lightning.settings.errors import require
from fedem_lightning.settings.ranges import NotNegative

ABSENT = 1e9
"""In place of 0^(-1/4), for a class of which a client has no sample: it is left out of the sum."""


class FedLC(FederatedAlgorithm):
    """FedAvg on -log(e^{f_y - m_y} / sum over i != y of e^{f_i - m_i}), with m_i = tau n_{t,i}^{-1/4}.

    n_{t,i} is the number of client t's training samples of class i; a class without any is left out. Clients predict
    with the plain logits f. The loss has no lower bound: it goes on to grow the margin of samples that are right.
    Unseen clients have w.

    Args:
        tau: weight of the margins.
        keep_own: whether y stays in the sum, as in public code: cross-entropy of f - m, the softplus of the paper's
            loss. With tau = 0 it is FedAvg.

    UserError: labels are no classes, or a client has one class only, for which the sum is empty.

    """

    def __init__(
        self, backbone: Backbone, n_clients: int, tau: NotNegative = 1.0, keep_own: bool = False, **options: Any
    ) -> None:
        super().__init__(wrapped(backbone, WithMargins), n_clients, n_components=1, **options)
        self.tau, self.keep_own = tau, keep_own
        self.private_ok = keep_own  # else a refusal tells that a client has one class

    def prepare(self, data: Federation) -> None:
        """Margins need classes; the paper's loss has no smoothed labels."""
        check_classes(self, data)
        plain = not getattr(data.task, "label_smoothing", 0.0)
        lacks = "the paper's loss has no label smoothing; use algorithm.keep_own=true"
        require(plain or self.keep_own, f"algorithm: FedLC, {lacks}")

    def initialize(self, data: Federation) -> None:
        """Refuses clients of one class before the first round."""
        super().initialize(data)
        if not self.is_deployed:  # else the clients refuse
            self.margins(data.block(data.clients(), "train"))

    def client_update(self, batch: Block, round_: int) -> Update:
        """theta_t = local_sgd(w) on the calibrated loss, with weight n_t in the average."""
        w = self.received(batch.clients)  # [C, 1, ...]
        step = Step(LocalStep, loss=None if self.keep_own else LossAgainstOthers)
        theta = self.local_sgd(w | {"margins": self.margins(batch)}, batch, round_, step=step)
        return Update({name: theta[name] for name in w}, batch.counts(), start=w)

    def margins(self, batch: Block) -> Tensor:
        """-m of each client, [C, 1, Y]; m_0 - m_1 where there is one logit, [C, 1, 1]."""
        task: Any = batch.federation.task
        counts = class_counts(batch, task.n_classes)  # [C, Y]
        single = ((counts > 0).sum(dim=1) == 1).nonzero().flatten().tolist() if not self.keep_own else []
        names = ", ".join(str(batch.federation.names[int(batch.clients[c])]) for c in single[:3])
        undefined = f"the loss of FedLC is undefined for clients with samples of one class only, such as {names}"
        require(not single, f"algorithm: {undefined}; algorithm.keep_own=true keeps y in its sum")
        m = self.tau * torch.where(counts > 0, counts.to(self.parameter_dtype) ** -0.25, ABSENT)
        return (-m if task.n_outputs > 1 else m[:, :1] - m[:, 1:]).unsqueeze(1)


@dataclass(frozen=True)
class LossAgainstOthers(OfTask):
    """log sum over i != y of e^{f_i - f_y}; cross-entropy is its softplus."""

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Summed over a sample's known labels: outputs [n, ..., n_outputs], y [n, ...] -> [n]."""
        f = outputs if outputs.shape[-1] > 1 else torch.cat([torch.zeros_like(outputs), outputs], dim=-1)
        label = y.long().clamp(min=0).unsqueeze(-1)
        others = f.scatter(-1, label, -torch.inf).logsumexp(dim=-1)  # [n, ...]
        return ((others - f.gather(-1, label).squeeze(-1)) * known(y)).reshape(len(y), -1).sum(dim=1)
