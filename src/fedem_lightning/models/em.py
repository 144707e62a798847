"""The EM equations of FedEM (Marfoq et al., "Federated Multi-Task Learning under a Mixture of Distributions",
NeurIPS 2021, arXiv 2108.10252), on flat samples: n samples of a block of C clients, M components.

`owner` int64 [n] says which of the block's clients a sample belongs to (0..C-1).
"""

import torch
from torch import Tensor


def responsibilities(pi: Tensor, losses: Tensor, owner: Tensor) -> Tensor:
    """E-step, Eq. 8: q[i, m] proportional to pi[owner[i], m] exp(-losses[i, m]), normalised over m.

    Args:
        pi: mixture weights [C, M]; rows sum to 1, zeros allowed (they stay zero).
        losses: l(h_m(x_i), y_i) in nats [n, M].
        owner: int64 [n].

    Returns:
        q [n, M]; rows sum to 1.

    Example:
        One client with even weights. Component 0 gives its first sample the likelihood 0.9, component 1 gives it 0.3.

        >>> pi, owner = torch.tensor([[0.5, 0.5]]), torch.tensor([0, 0])
        >>> losses = -torch.tensor([[0.9, 0.3], [0.2, 0.2]]).log()
        >>> responsibilities(pi, losses, owner)
        tensor([[0.7500, 0.2500],
                [0.5000, 0.5000]])

    """
    log_joint = pi.log().T.index_select(1, owner) - losses.T  # [M, n]: a softmax over the short, last axis is slow
    return torch.softmax(log_joint, dim=0).T


def mixture_weights(q: Tensor, owner: Tensor, previous: Tensor) -> Tensor:
    """Eq. 9: pi[t, m] = the mean of q[i, m] over the samples i of client t.

    Args:
        q: responsibilities [n, M].
        owner: int64 [n].
        previous: [C, M]; a client keeps it if it has no samples, or a loss that is not finite.

    Returns:
        pi [C, M].

    Example:
        The first client has two samples; the second client has none and keeps its weights.

        >>> q, owner = torch.tensor([[0.75, 0.25], [0.5, 0.5]]), torch.tensor([0, 0])
        >>> mixture_weights(q, owner, previous=torch.tensor([[0.5, 0.5], [0.1, 0.9]]))
        tensor([[0.6250, 0.3750],
                [0.1000, 0.9000]])

    """
    sums = add_by_owner(torch.zeros_like(previous), owner, q.to(previous.dtype))  # [C, M]
    counts = torch.bincount(owner, minlength=len(previous)).unsqueeze(1)  # [C, 1]
    known = (counts > 0) & sums.isfinite().all(dim=1, keepdim=True)  # a loss may have overflowed
    return torch.where(known, sums / counts.clamp(min=1), previous)


def mixture_losses(pi: Tensor, losses: Tensor, owner: Tensor) -> Tensor:
    """-log p(s_i | Theta, pi_t) = -logsumexp_m(log pi[owner[i], m] - losses[i, m]), up to a constant; [n].

    Its mean over all samples is the objective f of Eq. 6.

    Example:
        Likelihoods 0.9 and 0.3 under two components with equal weights give the likelihood 0.6.

        >>> losses = -torch.tensor([[0.9, 0.3]]).log()
        >>> mixture_losses(torch.tensor([[0.5, 0.5]]), losses, torch.tensor([0])).neg().exp()
        tensor([0.6000])

    """
    return -torch.logsumexp(pi.log().T.index_select(1, owner) - losses.T, dim=0)


def add_by_owner(sums: Tensor, owner: Tensor, values: Tensor) -> Tensor:
    """Adds values [n, ...] to their clients' rows of `sums` [C, ...], in place, with the same bits on every call."""
    if sums.is_cuda:  # there `index_add_` adds in another order on every call
        return sums.index_put_((owner,), values, accumulate=True)
    return sums.index_add_(0, owner, values)
