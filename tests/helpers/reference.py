"""The equations once more, in plain NumPy and plain loops, written from the paper and not from the package."""

from typing import Any

import numpy as np


def softmax(z: np.ndarray) -> np.ndarray:
    e = np.exp(z - z.max())
    return e / e.sum()


def probabilities(weight: np.ndarray, bias: np.ndarray, x: np.ndarray) -> np.ndarray:
    """A linear classifier's probabilities for one sample x [d]: weight [Y, d], bias [Y]."""
    return softmax(weight @ x + bias)


def e_step(pi: np.ndarray, losses: np.ndarray) -> np.ndarray:
    """Eq. 8 for one client: pi [M], losses [n, M] -> q [n, M]."""
    q = np.zeros_like(losses)
    for i in range(len(losses)):
        for m in range(len(pi)):
            q[i, m] = pi[m] * np.exp(-losses[i, m])
        q[i] /= q[i].sum()
    return q


def pi_update(q: np.ndarray) -> np.ndarray:
    """Eq. 9 for one client: q [n, M] -> [M]."""
    return np.array([sum(q[i, m] for i in range(len(q))) / len(q) for m in range(q.shape[1])])


def gradient(weight: np.ndarray, bias: np.ndarray, x: np.ndarray, y: np.ndarray, q: np.ndarray) -> tuple[Any, ...]:
    """Gradient of (1/|I|) sum_i q_i l(theta; x_i, y_i), cross-entropy, by hand: dl/dz = p - onehot(y)."""
    d_weight, d_bias = np.zeros_like(weight), np.zeros_like(bias)
    for i in range(len(y)):
        error = probabilities(weight, bias, x[i])
        error[y[i]] -= 1.0
        d_weight += q[i] * np.outer(error, x[i]) / len(y)
        d_bias += q[i] * error / len(y)
    return d_weight, d_bias


def fedem_round(
    thetas: list[Any], pi: np.ndarray, clients: list[Any], lr: float, class_weights: np.ndarray | None = None
) -> tuple[Any, ...]:
    """One round of Alg. 1 with one full batch per client and plain SGD.

    thetas: M x (weight, bias); pi [T, M]; clients: T x (x, y); class_weights [Y] are in the M-step's loss alone.
    """
    n = sum(len(y) for _, y in clients)
    new_thetas = [(np.zeros_like(w), np.zeros_like(b)) for w, b in thetas]
    new_pi = np.zeros_like(pi)
    for t, (x, y) in enumerate(clients):
        losses = np.array([[-np.log(probabilities(w, b, x[i])[y[i]]) for w, b in thetas] for i in range(len(y))])
        q = e_step(pi[t], losses)
        new_pi[t] = pi_update(q)
        for m, (w, b) in enumerate(thetas):
            of_class = 1.0 if class_weights is None else class_weights[y]
            d_w, d_b = gradient(w, b, x, y, q[:, m] * of_class)
            new_thetas[m][0][...] += len(y) / n * (w - lr * d_w)
            new_thetas[m][1][...] += len(y) / n * (b - lr * d_b)
    return new_thetas, new_pi
