"""The matching of neurons as one writes it in numpy and scipy."""

import random

import numpy as np
from scipy.optimize import linear_sum_assignment


def match(clients: list[np.ndarray], sweeps: int, penalty: float) -> list[np.ndarray]:
    """Which server neuron each neuron of the clients [l, d] is: each client in turn is taken out and assigned again to
    the means of the others, or to a new neuron at a price.
    """

    def assign(neurons: np.ndarray, total: np.ndarray, holders: np.ndarray) -> np.ndarray:
        known = np.flatnonzero(holders)
        means = total[known] / holders[known, None]
        squares = (neurons**2).sum(1, keepdims=True)
        distances = squares - 2 * neurons @ means.T + (means**2).sum(1)
        prices = np.concatenate([distances / 2, np.repeat(squares / 2 + penalty, len(neurons), 1)], 1)
        chosen = linear_sum_assignment(prices)[1]
        return np.append(known, np.flatnonzero(holders == 0)[: len(neurons)])[chosen]

    kind, room = clients[0].dtype, sum(map(len, clients))  # room for neurons that are nobody else's
    total, holders = np.zeros((room, clients[0].shape[1]), kind), np.zeros(room, kind)
    assignments = [np.array([], int) for _ in clients]

    def put(j: int) -> None:
        at = assignments[j] = assign(clients[j], total, holders) if holders.any() else np.arange(len(clients[j]))
        total[at] += clients[j]
        holders[at] += 1

    for j in range(len(clients)):
        put(j)
    for _ in range(sweeps):
        before = [each.copy() for each in assignments]
        for j in random.sample(range(len(clients)), len(clients)):
            total[assignments[j]] -= clients[j]
            holders[assignments[j]] -= 1
            put(j)
        if all(np.array_equal(a, b) for a, b in zip(before, assignments, strict=True)):
            break
    return assignments
