"""q-FedAvg (Li, Sanjabi, Beirami and Smith, ICLR 2020), Algorithm 2.

The loss of a client has 1e-10 added, as in the authors' code. A late client's Delta_k and h_k are those of the model
that it received. The paper has no batch norm; the server takes the mean of the statistics.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch.nn.functional as F
from torch import Tensor

from tests.reference.plain import Case, Fields, Model, Problem, mean, sgd


class Upload(NamedTuple):
    client: int
    due: int
    delta: Tensor  # Delta_k^t
    h: float  # h_k^t
    statistics: Tensor


def qfedavg(p: Problem, *, q: float, lipschitz: float | None, weighting: str) -> Iterator[Fields]:
    w, sent = p.x0, list[Upload]()
    for t in range(p.num_rounds):
        for k in p.cohort(t):  # line 2: the server selects a subset S_t of K devices
            sent.append(client_update(p, k.client, k.due, w, t, q, lipschitz or 1 / p.local.lr))
        if here := [u for u in sent if u.due == t]:
            n = [p.n(u.client) if weighting == "size" else 1 for u in here]
            # line 7: w^{t+1} = w^t - sum_k Delta_k^t / sum_k h_k^t
            total_delta = sum(weight * u.delta for weight, u in zip(n, here, strict=True))
            total_h = sum(weight * u.h for weight, u in zip(n, here, strict=True))
            w = Model(w.w - total_delta / total_h, mean([u.statistics for u in here], n))
        yield {"params": w.vector}


def client_update(p: Problem, k: int, due: int, w: Model, t: int, q: float, lipschitz: float) -> Upload:
    x, y = p.data.x[p.members[k]], p.data.y[p.members[k]]
    loss = float(F.cross_entropy(p.net.eval(w.w, w.s, x), y)) + 1e-10  # F_k(w^t)
    trained = sgd(p, w, k, t)  # line 4: E epochs of SGD with step size eta
    delta_w = lipschitz * (w.w - trained.w)  # line 5: Delta w_k^t = L (w^t - w_k^{t+1})
    square = float((delta_w * delta_w).sum())
    # line 6: Delta_k^t = F_k^q Delta w_k^t; h_k^t = q F_k^{q-1} ||Delta w_k^t||^2 + L F_k^q
    h = q * loss ** (q - 1) * square + lipschitz * loss**q
    return Upload(k, due, loss**q * delta_w, h, trained.s)


WHERE = "Algorithm 2"
CASES = [
    Case("qfedavg", qfedavg, equations=WHERE),
    Case("qfedavg q 0", qfedavg, {"q": 0.0}, equations=WHERE),
    Case("qfedavg size, q 0.2, L 3", qfedavg, {"weighting": "size", "q": 0.2, "lipschitz": 3.0}, equations=WHERE),
    Case("qfedavg late, q 5", qfedavg, {"q": 5.0}, std=1.5, equations=WHERE),
]
