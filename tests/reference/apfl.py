"""APFL (Deng, Kamani and Mahdavi, 2020), Algorithm 1, and its adaptive alpha."""

from collections.abc import Iterator

import torch
from torch import Tensor

from tests.reference.plain import Case, Fields, Model, Problem, Sent, arrived, fedavg_step

Own = tuple[Model, float]  # v with the statistics of the mixture, and alpha


def apfl(
    p: Problem, *, alpha: float, adaptive: bool, late_policy: str, weighting: str, server_lr: float
) -> Iterator[Fields]:
    x, first = p.x0, (p.x0, alpha)
    kept: dict[int, Own] = {}
    sent, trained = list[Sent](), dict[tuple[int, int], Own]()
    for t in range(p.num_rounds):
        for k in p.cohort(t):  # for each client i in U_c
            y, trained[t, k.client] = client_update(p, k.client, x, kept.get(k.client, first), t, adaptive)
            sent.append(Sent(t, k.client, k.due, x, y))
        for u in arrived(sent, t):
            kept[u.client] = trained[u.round, u.client]
        x = fedavg_step(p, x, arrived(sent, t, late_policy), late_policy, weighting, server_lr)
        rows = {k: row(*own) for k, own in kept.items()}
        yield {"params": x.vector, "first": row(*first), "personal": rows}


def row(v: Model, alpha: float) -> Tensor:
    return torch.cat([v.vector, torch.tensor([alpha], dtype=v.w.dtype)])


def client_update(p: Problem, i: int, x: Model, own: Own, t: int, adaptive: bool) -> tuple[Model, Own]:
    (w, s_w), ((v, s_v), alpha) = x, own
    for number, b in enumerate(p.batches(i, t)):
        g_w, s_w = p.gradient(w, s_w, b, i)
        g, s_v = p.gradient(alpha * v + (1 - alpha) * w, s_v, b, i)  # grad f_i(v_bar; xi)
        if adaptive and number == 0:  # alpha <- alpha - eta <v - w, grad f_i(v_bar; xi)>, once a round
            alpha = min(1.0, max(0.0, alpha - p.local.lr * float((v - w) @ g)))
        # w <- w - eta grad f_i(w; xi), and v <- v - eta grad_v f_i(v_bar; xi) at the alpha of this round
        if adaptive and number == 0:
            g, s_v = p.gradient(alpha * v + (1 - alpha) * w, own[0].s, b, i)
        w, v = w - p.local.lr * g_w, v - p.local.lr * alpha * g
    return Model(w, s_w), (Model(v, s_v), alpha)


CASES = [
    Case("apfl", apfl, {"alpha": 0.3, "server_lr": 0.7}, equations="Algorithm 1"),
    Case("apfl late", apfl, {"alpha": 0.6, "weighting": "size"}, std=1.5, equations="Algorithm 1"),
    Case("apfl adaptive, late", apfl, {"adaptive": True}, std=1.5, equations="Algorithm 1"),
]
