"""FedDF (Lin, Kong, Stich and Jaggi, NeurIPS 2020), Algorithm 1."""

import math
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.reference.plain import (
    BATCH_NORM,
    MLP,
    Adam,
    Case,
    Fields,
    Model,
    Problem,
    Sent,
    arrived,
    fedavg_step,
    gradient,
    sgd,
)


def feddf(
    p: Problem,
    *,
    lr: float,
    epochs: int,
    batch_size: int,
    max_steps: int | None,
    temperature: float,
    cosine: bool,
    clip_norm: float | None,
    late_policy: str,
    weighting: str,
) -> Iterator[Fields]:
    x, sent = p.x0, list[Sent]()
    for t in range(p.num_rounds):  # line 2: for each communication round
        for k in p.cohort(t):  # lines 3 to 6: S_t; the client's local update of x_{t-1}
            sent.append(Sent(t, k.client, k.due, x, sgd(p, x, k.client, t)))
        here = arrived(sent, t, late_policy)
        if here:
            w, s = fedavg_step(p, x, here, late_policy, weighting)  # line 7: initialise from the clients' mean
            steps, adam = p.server_batches(t, epochs, batch_size, max_steps), Adam(w)
            for j, d in enumerate(steps):  # lines 8 to 10: for j in 1, ..., N: sample a minibatch d of unlabelled data
                answers = [p.net.eval(*u.y, p.server.x[d]).detach() for u in here]
                ensemble = torch.stack(answers).mean(0)  # 1 / |S_t| sum_k f(x_t^k, d)

                def divergence(logits: Tensor, target: Tensor) -> Tensor:
                    """KL(sigma(mean logits / T), sigma(f(x, d) / T)), a mean over the minibatch."""
                    log_q, log_p = F.log_softmax(logits / temperature, 1), F.log_softmax(target / temperature, 1)
                    return (log_p.exp() * (log_p - log_q)).sum(1).mean()

                g, s = gradient(p.net, w, s, p.server.x[d], ensemble, divergence)
                if clip_norm is not None:
                    g = g * min(1.0, clip_norm / float(g.norm()))
                eta = lr * (1 + math.cos(math.pi * j / len(steps))) / 2 if cosine else lr
                w = adam.step(w, g, eta)
            x = Model(w, s)
        yield {"params": x.vector}


CASES = [
    Case("feddf", feddf, {"lr": 0.01, "epochs": 3, "batch_size": 16}, equations="Algorithm 1"),
    Case("feddf temperature, clipped", feddf, {"temperature": 3.0, "clip_norm": 1e-3, "cosine": False}, models=(MLP,)),
    # minibatches of 89 leave one of a single example
    Case("feddf late", feddf, {"lr": 0.01, "epochs": 3, "batch_size": 89, "max_steps": 5}, std=1.5),
    Case(
        "feddf model, late",
        feddf,
        {"lr": 0.01, "late_policy": "model", "weighting": "uniform"},
        std=1.5,
        models=(BATCH_NORM,),
    ),
]
