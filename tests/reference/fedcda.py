"""FedCDA (Wang, Xu, Li, Xu, Li and Zhang, ICLR 2024), Algorithm 1.

What the paper leaves open: clients that have never reported are left out of Eq 8 and of the mean; the warm-up is
FedAvg's, with caching; of equal combinations the newest models win. The optimal strategy solves Eq 5: Eq 3, which the
text names, needs gradients over all examples of the clients. Norms are over parameters, and batch norm's statistics go
with their model.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F

from tests.reference.plain import BATCH_NORM, Case, Fields, Model, Problem, Sent, arrived, mean


class Cached(NamedTuple):
    model: Model  # w^n
    loss: float  # F_n(w^n)
    square: float  # ||w^n||^2
    round: int


def fedcda(p: Problem, *, memory: int, batches: int, warmup: int, smoothness: float, strategy: str) -> Iterator[Fields]:
    w, sent = p.x0, list[Sent]()  # line 1
    losses: dict[tuple[int, int], float] = {}
    caches: dict[int, list[Cached]] = {}  # W^n, the newest first
    chosen: dict[int, int] = {}  # the place of w^n in W^n
    for t in range(p.num_rounds):  # line 3
        for k in p.cohort(t):  # lines 4 to 7: P_t, local SGD from w_t, and the loss of the last local epoch
            y, losses[t, k.client] = client_update(p, k.client, w, t)
            sent.append(Sent(t, k.client, k.due, w, y))
        here = arrived(sent, t)
        for u in here:  # line 8: replace the oldest model of W^n by the received one
            entry = Cached(u.y, losses[u.round, u.client], float(u.y.w @ u.y.w), u.round)
            caches[u.client] = [entry, *caches.get(u.client, [])][:memory]
        reporting = [u.client for u in here]
        if reporting and (t < warmup or strategy == "newest"):
            chosen |= dict.fromkeys(reporting, 0)
        elif reporting and strategy == "random":
            rng = p.rng("ALGORITHM", t)
            chosen |= {n: int(rng.integers(len(caches[n]))) for n in reporting}
        elif reporting:  # line 9: solve problem (8); optimal: problem (6), over all clients at once
            free = sorted(caches) if strategy == "optimal" else p.rng("ALGORITHM", t).permutation(reporting).tolist()
            chosen = {n: place for n, place in chosen.items() if n not in free}
            for batch in np.array_split(free, 1 if strategy == "optimal" else min(batches, len(free))):
                chosen |= select(batch.tolist(), caches, chosen, smoothness)
        used = [caches[n][place].model for n, place in chosen.items()]
        if here and t < warmup:  # FedAvg
            n = [p.n(u.client) for u in here]
            w = Model(mean([u.y.w for u in here], n), mean([u.y.s for u in here], n))
        elif here:  # line 10: w_{t+1} = 1/N sum_n w^n
            w = Model(*(mean(each, [1] * len(used)) for each in zip(*used, strict=True)))
        total = sum((model.vector for model in used), torch.zeros_like(w.vector))
        entries = {n: [entry._replace(model=entry.model.vector) for entry in cache] for n, cache in caches.items()}
        yield {"params": w.vector, "total": total, "caches": plain(entries), "chosen": dict(chosen)}


def plain(caches: Mapping[int, Sequence[Cached]]) -> dict[int, list[Fields]]:
    return {n: [entry._asdict() for entry in cache] for n, cache in caches.items()}


def client_update(p: Problem, n: int, x: Model, t: int) -> tuple[Model, float]:
    """Lines 6 and 7: E epochs of SGD; F_n is the mean loss of the minibatches of the last epoch, by example."""
    (w, s), steps = x, p.batches(n, t)
    last = steps[len(steps) - len(steps) // p.local.epochs :]
    total, seen = torch.zeros((), dtype=torch.float64), 0
    for i, b in enumerate(steps):
        if i >= len(steps) - len(last):
            data = p.data.x[b]
            logits = p.net.eval(w, s, data) if p.n(n) == 1 else p.net.train(w, s, data)[0]
            total, seen = total + len(b) * F.cross_entropy(logits, p.data.y[b]), seen + len(b)
        g, s = p.gradient(w, s, b, n)
        w = w - p.local.lr * g
    return Model(w, s), float(total) / seen


def select(
    batch: Sequence[int], caches: Mapping[int, Sequence[Cached]], fixed: Mapping[int, int], smoothness: float
) -> dict[int, int]:
    """Eq 8 for one batch: the places that make 1/q sum_n (F_n(w^n) + L/2 ||w^n||^2) - L/2 ||w||^2 smallest."""
    best, smallest = {}, float("inf")
    for places in product(*(range(len(caches[n])) for n in batch)):
        pick = dict(fixed) | dict(zip(batch, places, strict=True))
        used = [caches[n][place] for n, place in pick.items()]
        w = torch.stack([each.model.w for each in used]).mean(0)
        l_n = sum(each.loss + smoothness / 2 * each.square for each in used)
        value = l_n / len(used) - smoothness / 2 * float(w @ w)
        if value < smallest:
            best, smallest = dict(zip(batch, places, strict=True)), value
    return best


STRONG = {"smoothness": 30.0}  # older models are chosen too
CASES = [
    Case("fedcda", fedcda, STRONG | {"memory": 3, "batches": 3, "warmup": 2}, rounds=9, equations="Algorithm 1, Eq 8"),
    Case(
        "fedcda one batch, late",
        fedcda,
        STRONG | {"memory": 2, "batches": 1, "warmup": 0},
        std=4.0,
        cohort=3,
        rounds=9,  # nothing arrives in the third
        equations="Algorithm 1, Eq 7",
    ),
    Case(
        "fedcda optimal",
        fedcda,
        STRONG | {"memory": 2, "warmup": 1, "strategy": "optimal"},
        rounds=7,
        equations="Algorithm 1, Eq 5 and 6",
    ),
    *(
        Case(
            f"fedcda {strategy}",
            fedcda,
            {"warmup": 1, "strategy": strategy},
            models=(BATCH_NORM,),
            equations="section 6.2, aggregation strategies",
        )
        for strategy in ("newest", "random")
    ),
]
