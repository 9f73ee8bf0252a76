"""Ditto (Li et al., ICML 2021), Algorithm 1, with FedAvg as the solver of the global model."""

from collections.abc import Iterator

from tests.reference.fedavg import client_update
from tests.reference.plain import Case, Fields, Model, Problem, Sent, arrived, fedavg_step


def ditto(p: Problem, *, lam: float, late_policy: str, weighting: str, server_lr: float) -> Iterator[Fields]:
    x = p.x0
    v: dict[int, Model] = {}  # v_k^0 = w^0
    sent, trained = list[Sent](), dict[tuple[int, int], Model]()
    for t in range(p.num_rounds):
        for k in p.cohort(t):  # the server selects S_t and sends w^t
            # w_k^t <- UPDATE_GLOBAL(w^t, F_k)
            sent.append(Sent(t, k.client, k.due, x, client_update(p, k.client, x, t)))
            # for s local iterations: v_k <- v_k - eta (grad F_k(v_k) + lambda (v_k - w^t))
            trained[t, k.client] = personal_update(p, k.client, v.get(k.client, p.x0), x, t, lam)
        for u in arrived(sent, t):  # a late client is at work until its update arrives
            v[u.client] = trained[u.round, u.client]
        x = fedavg_step(p, x, arrived(sent, t, late_policy), late_policy, weighting, server_lr)  # AGGREGATE
        yield {"params": x.vector, "first": p.x0.vector, "personal": {k: own.vector for k, own in v.items()}}


def personal_update(p: Problem, k: int, v: Model, x: Model, t: int, lam: float) -> Model:
    w, s = v
    for b in p.batches(k, t):
        g, s = p.gradient(w, s, b, k)
        w = w - p.local.lr * (g + lam * (w - x.w))
    return Model(w, s)


CASES = [
    Case("ditto", ditto, {"lam": 0.6, "server_lr": 0.7}, equations="Algorithm 1"),
    Case("ditto late", ditto, {}, std=1.5, equations="Algorithm 1"),
    Case("ditto discard, late", ditto, {"late_policy": "discard"}, std=1.5, equations="Algorithm 1"),
]
