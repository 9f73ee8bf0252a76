"""FedAvg, SCAFFOLD and FedBuff in plain loops, written from the papers; uses NumPy and nothing of this project.

What is drawn at random (who starts when, when updates arrive, which minibatches, the first model) is handed in.
The model is a network of one tanh layer with its gradient written out by hand.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

Array = np.ndarray


class Dispatch(NamedTuple):
    """One client's work: it starts from the server's model of round `start`; its update arrives in round `arrival`."""

    client: int
    start: int
    arrival: int
    examples: int  # that the client has
    batches: Sequence[Array]  # rows of the data for each local step


class Problem(NamedTuple):
    """Data, the sizes of the network, and everybody's work in the order in which it was handed out."""

    inputs: Array  # [n, features]
    targets: Array  # [n]
    hidden: int
    classes: int
    work: Sequence[Dispatch]
    rounds: int
    lr: float  # of the clients


def split(problem: Problem, w: Array) -> tuple[Array, Array, Array, Array]:
    """A vector as W1 [hidden, features], b1, W2 [classes, hidden], b2."""
    features, hidden, classes = problem.inputs.shape[1], problem.hidden, problem.classes
    ends = np.cumsum([hidden * features, hidden, classes * hidden, classes])
    w1, b1, w2, b2 = (w[end - size : end] for end, size in zip(ends, np.diff(ends, prepend=0), strict=True))
    return w1.reshape(hidden, features), b1, w2.reshape(classes, hidden), b2


def gradient(problem: Problem, w: Array, rows: Array) -> Array:
    """Of the mean cross entropy over some examples, one example at a time."""
    w1, b1, w2, b2 = split(problem, w)
    g1, gb1, g2, gb2 = np.zeros_like(w1), np.zeros_like(b1), np.zeros_like(w2), np.zeros_like(b2)
    for row in rows:
        x, y = problem.inputs[row], problem.targets[row]
        h = np.tanh(w1 @ x + b1)
        z = w2 @ h + b2
        p = np.exp(z - z.max())
        p /= p.sum()
        dz = p.copy()
        dz[y] -= 1
        dh = (w2.T @ dz) * (1 - h**2)
        g2 += np.outer(dz, h)
        gb2 += dz
        g1 += np.outer(dh, x)
        gb1 += dh
    return np.concatenate([g1.ravel(), gb1, g2.ravel(), gb2]) / len(rows)


def accuracy(problem: Problem, w: Array) -> float:
    """The share of all examples that a model classifies correctly."""
    w1, b1, w2, b2 = split(problem, w)
    right = 0
    for x, y in zip(problem.inputs, problem.targets, strict=True):
        right += int(np.argmax(w2 @ np.tanh(w1 @ x + b1) + b2) == y)
    return right / len(problem.targets)


def fedavg(problem: Problem, w: Array) -> list[Array]:
    """McMahan et al. 2017, Algorithm 1; a late client's change is added when it arrives (Feddle, Eq 1). The models."""
    models, sent = [], []
    for t in range(problem.rounds):
        for one in problem.work:
            if one.start == t:
                y = w.copy()
                for batch in one.batches:
                    y = y - problem.lr * gradient(problem, y, batch)
                sent.append((one, y - w))
        here = [(one, delta) for one, delta in sent if one.arrival == t]
        total = sum(one.examples for one, _ in here)
        for one, delta in here:
            w = w + one.examples / total * delta
        models.append(w)
    return models


def scaffold(problem: Problem, w: Array, server_lr: float, num_clients: int) -> list[Array]:
    """Karimireddy et al. 2020, Algorithm 1, option II; everybody on time. The models."""
    x, c = w, np.zeros_like(w)
    own = [np.zeros_like(w) for _ in range(num_clients)]
    models = []
    for t in range(problem.rounds):
        sum_y, sum_c, count = np.zeros_like(w), np.zeros_like(w), 0
        for one in problem.work:
            if one.start == t:
                y = x.copy()
                for batch in one.batches:
                    y = y - problem.lr * (gradient(problem, y, batch) - own[one.client] + c)
                plus = own[one.client] - c + (x - y) / (len(one.batches) * problem.lr)
                sum_y, sum_c, count = sum_y + (y - x), sum_c + (plus - own[one.client]), count + 1
                own[one.client] = plus
        x = x + server_lr / count * sum_y
        c = c + sum_c / num_clients
        models.append(x)
    return models


def fedbuff(problem: Problem, w: Array, server_lr: float, buffer_size: int, exponent: float) -> list[Array]:
    """Nguyen et al. 2022, Algorithm 1, with staleness weights 1 / (1 + tau)^exponent. The models."""
    models, sent = [], []
    total, k = np.zeros_like(w), 0
    for t in range(problem.rounds):
        for one in problem.work:
            if one.start == t:
                y = w.copy()
                for batch in one.batches:
                    y = y - problem.lr * gradient(problem, y, batch)
                sent.append((one, y - w))
        for one, delta in sent:
            if one.arrival == t:
                total = total + delta / (1 + t - one.start) ** exponent
                k += 1
                if k == buffer_size:
                    w = w + server_lr * total / buffer_size
                    total, k = np.zeros_like(w), 0
        models.append(w)
    return models
