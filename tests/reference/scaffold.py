"""SCAFFOLD (Karimireddy et al., ICML 2020), Algorithm 1."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from tests.reference.plain import Case, Fields, Model, Problem, mean
from tests.reference.server_step import Server, without_optimizer


class Upload(NamedTuple):
    client: int
    due: int
    delta_y: Tensor
    delta_c: Tensor
    statistics: Tensor
    examples: int


def scaffold(
    p: Problem,
    *,
    option: int,
    weighting: str,
    server_lr: float,
    optimizer: Callable[[Problem], Server] = without_optimizer,
) -> Iterator[Fields]:
    x, server = p.x0, optimizer(p)  # lines 1 and 2: initial x and c; c_i, all zero
    c = torch.zeros_like(x.w)
    c_i: dict[int, Tensor] = {}
    sent: list[Upload] = []
    for t in range(p.num_rounds):  # line 3: for each round r
        for k in p.cohort(t):  # lines 4 to 6: sample S, communicate (x, c); on client i in S
            own = c_i.get(k.client, torch.zeros_like(c))
            y, s, steps = *x, p.batches(k.client, t)  # line 7: y_i <- x
            velocity, gradients = torch.zeros_like(y), []
            for b in steps:  # line 8: for k = 1, ..., K
                g, s = p.gradient(y, s, b, k.client)  # line 9: g_i(y_i)
                velocity = p.local.momentum * velocity + (g - own + c)
                y = y - p.local.lr * velocity  # line 10, with the momentum of the local optimiser
                gradients.append(g)
            # line 12, option I: c_i+ <- g_i(x), over all examples; option II: c_i+ <- c_i - c + (x - y_i) / (K eta_l),
            # the mean of the gradients; with momentum rho their weights are (1 - rho^(K - k + 1)) / (1 - rho)
            rho, last = p.local.momentum, len(steps)
            weights = [(1 - rho ** (last - k)) / (1 - rho) for k in range(last)]
            option_2 = mean(gradients, weights) if rho else own - c + (x.w - y) / (last * p.local.lr)
            plus = full_gradient(p, x, k.client, t) if option == 1 else option_2
            sent.append(
                Upload(k.client, k.due, y - x.w, plus - own, s, len(p.members[k.client]))
            )  # line 13: communicate these
        here = [u for u in sent if u.due == t]
        if here:
            # line 16: (Delta x, Delta c) <- 1/|S| sum (Delta y_i, Delta c_i); by size: with n_i / n_S in place of 1/|S|
            n = [u.examples if weighting == "size" else 1 for u in here]
            n_all = sum(map(len, p.members)) if weighting == "size" else p.num_clients
            # line 17: x <- x + eta_g Delta x and c <- c + |S| / N Delta c; by size: n_S / n
            y = Model(x.w + server_lr * mean([u.delta_y for u in here], n), mean([u.statistics for u in here], n))
            x = server(x, y)
            c = c + sum(n) / n_all * mean([u.delta_c for u in here], n)
            for u in here:  # line 14: c_i <- c_i+, once the server has it too
                c_i[u.client] = c_i.get(u.client, torch.zeros_like(c)) + u.delta_c
        yield {"params": x.vector, "c": c, "c_i": dict(c_i)}


def full_gradient(p: Problem, x: Model, client: int, t: int) -> Tensor:
    """g_i(x): the mean gradient over a pass over the client's minibatches, which normalise by themselves."""
    w, s = x
    epoch = p.batches(client, t)[: len(p.batches(client, t)) // p.local.epochs]
    seen = sum(len(b) for b in epoch)
    total = torch.zeros_like(w)
    for b in epoch:
        g, s = p.gradient(w, s, b, client)
        total = total + len(b) / seen * g
    return total


CASES = [
    Case("scaffold option 2", scaffold, {"server_lr": 0.8}, equations="Algorithm 1, option II"),
    Case("scaffold option 1", scaffold, {"option": 1, "server_lr": 0.8}, equations="Algorithm 1, option I"),
    Case("scaffold momentum", scaffold, {}, {"momentum": 0.6}, equations="Algorithm 1, option II"),
    Case("scaffold by size", scaffold, {"weighting": "size", "server_lr": 0.8}, equations="Algorithm 1, option II"),
    Case("scaffold late", scaffold, {}, std=1.5, equations="Algorithm 1, option II"),
    Case("scaffold option 1, late", scaffold, {"option": 1}, std=1.5, equations="Algorithm 1, option I"),
    Case("scaffold by size, late", scaffold, {"weighting": "size"}, std=1.5, equations="Algorithm 1, option II"),
]
