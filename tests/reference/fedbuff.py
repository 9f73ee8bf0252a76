"""FedBuff (Nguyen et al., AISTATS 2022), Algorithm 1.

Batch norm's statistics wait in the buffer too, all with a weight of 1.
"""

from collections.abc import Callable, Iterator

import torch

from tests.reference.plain import Case, Fields, Model, Problem, Sent, arrived, mean, sgd
from tests.reference.server_step import Server, without_optimizer


def fedbuff(
    p: Problem,
    *,
    buffer_size: int,
    server_lr: float,
    staleness_exp: float,
    optimizer: Callable[[Problem], Server] = without_optimizer,
) -> Iterator[Fields]:
    w, sent, server = p.x0, list[Sent](), optimizer(p)
    buffer: list[Model] = []
    for t in range(p.num_rounds):  # repeat
        for c in p.cohort(t):  # c <- sample available clients; run FedBuff-client(w, eta_l, Q) on c
            sent.append(Sent(t, c.client, c.due, w, sgd(p, w, c.client, t)))
        for u in arrived(sent, t):  # if receive client update: Delta_i
            weight = (1 + t - u.round) ** -staleness_exp  # of the staleness tau_i: 1 / sqrt(1 + tau_i)
            buffer.append(Model(weight * (u.y.w - u.x.w), u.y.s))  # Delta <- Delta + Delta_i; k <- k + 1
            if len(buffer) == buffer_size:  # if k == K
                delta, statistics = (mean(each, [1] * buffer_size) for each in zip(*buffer, strict=True))
                w = server(w, Model(w.w + server_lr * delta, statistics))  # w <- w + eta_g Delta / K
                buffer = []  # Delta <- 0, k <- 0
        waiting = Model(*(torch.stack([each, *rows])[1:] for each, *rows in zip(w, *buffer, strict=True)))
        yield {"params": w.vector, "buffer": waiting.w, "statistics": waiting.s}


CASES = [
    Case("fedbuff", fedbuff, {"buffer_size": 3}, equations="Algorithm 1"),  # two steps in a round, and one waits
    Case(
        "fedbuff staleness, late",
        fedbuff,
        {"buffer_size": 5, "server_lr": 0.7, "staleness_exp": 0.5},
        std=1.5,
        equations="Algorithm 1, section 5.1",
    ),
]
