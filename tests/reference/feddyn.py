"""FedDyn (Acar et al., ICLR 2021), Algorithm 1."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from tests.reference.plain import Case, Fields, Model, Problem, mean


class Upload(NamedTuple):
    client: int
    due: int
    theta: Model  # theta_k^t
    received: Tensor  # theta^{t-1}


def feddyn(p: Problem, *, alpha: float) -> Iterator[Fields]:
    theta = p.x0
    h = torch.zeros_like(theta.w)
    grads: dict[int, Tensor] = {}  # nabla L_k(theta_k^{t-1}), zero at first
    sent: list[Upload] = []
    for t in range(p.num_rounds):  # for t = 1, 2, ..., T
        for k in p.cohort(t):  # sample P_t, transmit theta^{t-1}; for each device k in P_t
            # theta_k^t = argmin L_k(theta) - <nabla L_k(theta_k^{t-1}), theta> + alpha / 2 ||theta - theta^{t-1}||^2
            own = grads.get(k.client, torch.zeros_like(h))
            w, s = theta
            for b in p.batches(k.client, t):
                g, s = p.gradient(w, s, b, k.client)
                w = w - p.local.lr * (g - own + alpha * (w - theta.w))
            sent.append(Upload(k.client, k.due, Model(w, s), theta.w))  # transmit theta_k^t
        here = [u for u in sent if u.due == t]
        if here:
            ones, total = [1] * len(here), torch.zeros_like(h)
            for u in here:
                change = u.theta.w - u.received
                # nabla L_k(theta_k^t) = nabla L_k(theta_k^{t-1}) - alpha (theta_k^t - theta^{t-1})
                grads[u.client] = grads.get(u.client, torch.zeros_like(h)) - alpha * change
                total = total + change
            h = h - alpha / p.num_clients * total  # h^t = h^{t-1} - alpha 1/m sum (theta_k^t - theta^{t-1})
            # theta^t = 1/|P_t| sum theta_k^t - 1/alpha h^t; late changes are added to today's model
            average = theta.w + mean([u.theta.w - u.received for u in here], ones)
            theta = Model(average - h / alpha, mean([u.theta.s for u in here], ones))
        yield {"params": theta.vector, "h": h, "g_k": dict(grads)}


CASES = [
    Case("feddyn", feddyn, {"alpha": 0.1}, equations="Algorithm 1"),
    Case("feddyn late", feddyn, {"alpha": 0.1}, std=1.5, equations="Algorithm 1"),
]
