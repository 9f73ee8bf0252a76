"""FedNova (Wang et al., NeurIPS 2020): the local solvers of section 4.1 and the server's rule of section 5."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from tests.reference.plain import Case, Fields, Model, Problem, mean


class Upload(NamedTuple):
    client: int
    due: int
    d: Tensor  # the normalised gradient d_i
    statistics: Tensor
    tau: float  # what tau_eff is the mean of


def fednova(p: Problem, *, mu: float, weighting: str) -> Iterator[Fields]:
    x, sent = p.x0, list[Upload]()
    for t in range(p.num_rounds):
        for k in p.cohort(t):
            sent.append(client_update(p, k.client, k.due, x, t, mu))
        here = [u for u in sent if u.due == t]
        if here:
            n = [p.n(u.client) if weighting == "size" else 1 for u in here]  # p_i = n_i / n
            tau_eff = float(mean([torch.tensor(u.tau, dtype=torch.float64) for u in here], n))
            step = -tau_eff * mean([u.d for u in here], n)  # section 5: x <- x - tau_eff sum_i p_i eta d_i
            x = Model(x.w + step, mean([u.statistics for u in here], n))
        yield {"params": x.vector}


def client_update(p: Problem, i: int, due: int, x: Model, t: int, mu: float) -> Upload:
    """Momentum SGD on F_i(w) + mu/2 ||w - x||^2; a_i = [a_i1, ..., a_i tau] are the weights of its gradients."""
    rho, eta, steps = p.local.momentum, p.local.lr, p.batches(i, t)
    (w, s), velocity = x, torch.zeros_like(x.w)
    for b in steps:
        g, s = p.gradient(w, s, b, i)
        velocity = rho * velocity + g + mu * (w - x.w)
        w = w - eta * velocity
    tau = len(steps)
    if mu and not rho:  # section 4.1: a_ik = (1 - eta mu)^(tau - k)
        a = [(1 - eta * mu) ** (tau - k) for k in range(1, tau + 1)]
    elif not mu:  # a_ik = (1 - rho^(tau - k + 1)) / (1 - rho); ones for plain SGD
        a = [(1 - rho ** (tau - k + 1)) / (1 - rho) for k in range(1, tau + 1)]
    else:
        raise NotImplementedError("the paper has no closed form for momentum with a proximal term")
    norm = sum(a)  # ||a_i||_1
    d = (x.w - w) / norm  # section 4.1: eta d_i = sum_k a_ik eta g_i(x_ik) / ||a_i||_1
    return Upload(i, due, d, s, tau if mu else norm)  # tau_eff = sum_i p_i of these, as in the authors' code


WHERE = "sections 4.1 and 5"
CASES = [
    Case("fednova", fednova, equations=WHERE),
    Case(
        "fednova uniform, momentum",
        fednova,
        {"weighting": "uniform"},
        {"momentum": 0.6},
        equations=WHERE,
    ),
    Case("fednova proximal", fednova, {"mu": 0.6}, equations=WHERE),
    Case("fednova momentum, late", fednova, {}, {"momentum": 0.6}, std=1.5, equations=WHERE),
]
