"""SCAFFOLD (Karimireddy et al., ICML 2020), Algorithm 1."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from tests.reference.plain import Case, Fields, Model, Problem, mean


class Upload(NamedTuple):
    client: int
    due: int
    delta_y: Tensor
    delta_c: Tensor
    statistics: Tensor


def scaffold(p: Problem, *, option: int, server_lr: float) -> Iterator[Fields]:
    x = p.x0  # lines 1 and 2: initial x and c; c_i, all zero
    c = torch.zeros_like(x.w)
    c_i: dict[int, Tensor] = {}
    sent: list[Upload] = []
    for t in range(p.num_rounds):  # line 3: for each round r
        for k in p.cohort(t):  # lines 4 to 6: sample S, communicate (x, c); on client i in S
            own = c_i.get(k.client, torch.zeros_like(c))
            y, s, steps = *x, p.batches(k.client, t)  # line 7: y_i <- x
            for b in steps:  # line 8: for k = 1, ..., K
                g, s = p.gradient(y, s, b, k.client)  # line 9: g_i(y_i)
                y = y - p.local.lr * (g - own + c)  # line 10
            # line 12, option I: c_i+ <- g_i(x), over all examples; option II: c_i+ <- c_i - c + (x - y_i) / (K eta_l)
            travelled = (x.w - y) / (len(steps) * p.local.lr)
            plus = full_gradient(p, x, k.client, t) if option == 1 else own - c + travelled
            sent.append(Upload(k.client, k.due, y - x.w, plus - own, s))  # line 13: communicate these
        here = [u for u in sent if u.due == t]
        if here:
            ones = [1] * len(here)
            # line 16: (Delta x, Delta c) <- 1/|S| sum (Delta y_i, Delta c_i)
            # line 17: x <- x + eta_g Delta x and c <- c + |S| / N Delta c
            x = Model(x.w + server_lr * mean([u.delta_y for u in here], ones), mean([u.statistics for u in here], ones))
            c = c + len(here) / p.num_clients * mean([u.delta_c for u in here], ones)
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
    Case("scaffold late", scaffold, {}, std=1.5, equations="Algorithm 1, option II"),
    Case("scaffold option 1, late", scaffold, {"option": 1}, std=1.5, equations="Algorithm 1, option I"),
]
