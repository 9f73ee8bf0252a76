"""FedProx (Li et al., MLSys 2020), Algorithm 2."""

from collections.abc import Iterator

from tests.reference.plain import Case, Fields, Model, Problem, Sent, arrived, fedavg_step


def fedprox(p: Problem, *, mu: float, late_policy: str, weighting: str, server_lr: float) -> Iterator[Fields]:
    x, sent = p.x0, list[Sent]()
    for t in range(p.num_rounds):
        for k in p.cohort(t):  # the server selects S_t and sends w^t
            sent.append(Sent(t, k.client, k.due, x, solve(p, k.client, x, t, mu)))
        x = fedavg_step(p, x, arrived(sent, t, late_policy), late_policy, weighting, server_lr)
        yield {"params": x.vector}


def solve(p: Problem, k: int, x: Model, t: int, mu: float) -> Model:
    """An inexact minimiser of h_k(w; w^t) = F_k(w) + mu/2 ||w - w^t||^2 (Eq 2)."""
    w, s = x
    for b in p.batches(k, t):
        g, s = p.gradient(w, s, b, k)
        w = w - p.local.lr * (g + mu * (w - x.w))
    return Model(w, s)


CASES = [
    Case("fedprox", fedprox, {"mu": 0.6}, equations="Algorithm 2, Eq 2"),
    Case("fedprox late", fedprox, {"mu": 0.6, "server_lr": 0.7}, std=1.5, equations="Algorithm 2, Eq 2"),
]
