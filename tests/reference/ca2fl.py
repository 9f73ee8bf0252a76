"""CA2FL (Wang, Cao, Wu, Chen and Chen, ICLR 2024), Algorithm 2.

The paper leaves open: a client that reports twice before the buffer is full is compared with its last update. Batch
norm's statistics become the mean of those in the buffer.
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from tests.reference.plain import Case, Fields, Model, Problem, Sent, arrived, sgd
from tests.reference.server_step import Server, without_optimizer


def ca2fl(
    p: Problem,
    *,
    buffer_size: int,
    server_lr: float,
    optimizer: Callable[[Problem], Server] = without_optimizer,
) -> Iterator[Fields]:
    x, sent, server = p.x0, list[Sent](), optimizer(p)
    zero, zeros = torch.zeros_like(x.w), torch.zeros_like(x.s)
    h_i: dict[int, Tensor] = {}  # h^i_1 = 0 for all i in [n], h_1 = 0, Delta_1 = 0, m = 0
    h, delta, statistics, m = zero, zero, zeros, 0
    for t in range(p.num_rounds):
        for k in p.cohort(t):
            sent.append(Sent(t, k.client, k.due, x, sgd(p, x, k.client, t)))
        for u in arrived(sent, t):
            update = u.y.w - u.x.w
            delta = delta + (update - h_i.get(u.client, zero))  # Delta_t <- Delta_t + (Delta^i_t - h^i_t)
            h_i[u.client] = update  # h^i_{t+1} <- Delta^i_t
            statistics, m = statistics + u.y.s, m + 1  # m <- m + 1
            if m == buffer_size:  # if m = M
                v = h + delta / buffer_size  # v_t = h_t + 1/|S_t| sum_{i in S_t} (Delta^i_t - h^i_t)
                x = server(x, Model(x.w + server_lr * v, statistics / buffer_size))  # x_{t+1} = x_t + eta v_t
                h = sum(h_i.values(), zero) / p.num_clients  # h_{t+1} = 1/n sum_{i in [n]} h^i_{t+1}
                delta, statistics, m = zero, zeros, 0
        fields = {"h_i": dict(h_i), "h": h, "buffer": delta, "statistics": statistics, "buffered": m}
        yield {"params": x.vector, **fields}


CASES = [
    Case("ca2fl", ca2fl, {"buffer_size": 3, "server_lr": 0.7}, equations="Algorithm 2"),
    # some report twice before the buffer is full
    Case("ca2fl late", ca2fl, {"buffer_size": 7}, std=1.5, rounds=8, equations="Algorithm 2"),
]
