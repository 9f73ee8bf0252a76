"""Feddle (Zhu et al., 2025), Algorithm 1, with Adam on the server, and FedBuff's step as fallback.

What the paper leaves open: an anchor that was never searched counts as the most important, and where all are, the
oldest goes. FedBuff's step is over the updates of this round, also over those for which the atlas has no room; where
none has arrived, it is zero. The search is in evaluation mode, with the mean of the arrived statistics of batch norm.
theta starts at zero and is kept.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.reference.plain import MLP, Adam, Case, Data, Fields, Model, Problem, Sent, arrived, mean, sgd

HEAD, SEARCH = 0, 1  # the server's two passes over its data in a round


@dataclass
class Anchor:
    """a_m, and who sent it when."""

    a: Tensor
    client: int
    round: int
    arrival: int
    score: float = float("inf")  # s_m


def feddle(
    p: Problem,
    *,
    atlas_size: int | None,
    anchor_norm: bool,
    importance_score: bool,
    fallback: str,
    eta_fb: float | None,
    lam: float | None,
    lr: float,
    epochs: int,
    batch_size: int,
    max_steps: int | None,
) -> Iterator[Fields]:
    omega, sent, atlas, received = p.x0, list[Sent](), list[Anchor](), 0  # line 3: A = {}
    in_domain = p.server_classes == p.num_classes
    theta = None if in_domain else torch.zeros(p.server_classes * (p.net.num_features + 1), dtype=p.net.dtype)
    size = atlas_size or 2 * len(p.cohort(0))  # M; appendix F.7: twice the number of sampled clients
    pull = lam if lam is not None else 0.0 if in_domain else 0.01  # lambda; appendix F.7

    def minibatches(k: int, stage: int) -> list[Data]:
        rows = p.server_batches(k, epochs, batch_size, max_steps, stage=stage, training=False)
        return [Data(p.server.x[b], p.server.y[b]) for b in rows]

    for k in range(p.num_rounds):
        for j in p.cohort(k):  # lines 5 and 6: sample available clients, start their training with omega^k
            sent.append(Sent(k, j.client, j.due, omega, sgd(p, omega, j.client, k)))
        here, new = arrived(sent, k), list[Anchor]()
        for u in here:  # lines 7 to 9: receive Delta_j, UpdateAtlas
            if (u.y.w - u.x.w).any():
                new.append(Anchor(u.y.w - u.x.w, u.client, u.round, received))
                received += 1
                update_atlas(atlas, new[-1], size, importance_score)
        if atlas:  # line 10: time to start the search
            a = torch.stack([each.a for each in atlas])
            if anchor_norm:  # Eq 4: a_m <- median(||a_1||, ..., ||a_|A|||) a_m / ||a_m||
                a = torch.stack([median([each.a.norm() for each in atlas]) * a_m / a_m.norm() for a_m in a])
            s = mean([u.y.s for u in here], [1] * len(here)) if here else omega.s
            c_start, w = start(
                fallback, 1.0 if eta_fb is None else eta_fb, new, atlas, a, omega.w
            )  # line 23, section 4.1.3: c'
            if theta is not None:  # Eq 8: theta = argmin h(D_S, [omega_bo + sum_m c_m a_m^bo; theta])
                adam = Adam(theta)
                for x, y in minibatches(k, HEAD):
                    leaf = theta.clone().requires_grad_()
                    (g,) = torch.autograd.grad(F.cross_entropy(p.net.eval(w + c_start @ a, s, x, leaf), y), leaf)
                    theta = adam.step(theta, g, lr)
            c, adam = c_start, Adam(c_start)
            for x, y in minibatches(k, SEARCH):  # line 24, Eq 5 or 9: c = argmin l(D_S, omega^k + sum_m c_m a_m)
                leaf = (w + c @ a).requires_grad_()  # Eq 15: omega' = stop_grad(omega^k + sum_m c_m a_m)
                (g,) = torch.autograd.grad(F.cross_entropy(p.net.eval(leaf, s, x, theta), y), leaf)
                by_c = torch.stack([g @ a_m for a_m in a])  # Eq 16: dl/dc_m = <dl/domega', a_m>
                c = adam.step(c, by_c + pull * (c - c_start), lr)  # Eq 10: + lambda/2 sum_m (c_m - c'_m)^2
            omega = Model(w + c @ a, s)  # line 25, Eq 6: omega^{k+1} = omega^k + sum_m c_m a_m
            for anchor, c_m in zip(atlas, c.tolist(), strict=True):
                anchor.score = abs(c_m)  # line 12: s_m <- |c_m|
        fields = {
            "anchors": torch.stack([omega.w, *(each.a for each in atlas)])[1:],
            "scores": torch.tensor([each.score for each in atlas], dtype=torch.float64),
            "arrival": torch.tensor([each.arrival for each in atlas], dtype=torch.int64),
            "clients": torch.tensor([each.client for each in atlas], dtype=torch.int64),
            "rounds": torch.tensor([each.round for each in atlas], dtype=torch.int64),
        }
        yield {"params": omega.vector, "atlas": fields, "head": omega.w[:0] if theta is None else theta}


def update_atlas(atlas: list[Anchor], new: Anchor, size: int, importance_score: bool) -> None:
    """UpdateAtlas, lines 14 to 20; without `importance_score` first in, first out (appendix F.7)."""
    if len(atlas) < size:
        atlas.append(new)  # line 16: m' <- |A| + 1
    elif importance_score and min(each.score for each in atlas) < float("inf"):
        atlas[min(range(size), key=lambda m: atlas[m].score)] = new  # line 18: m' = argmin_m s_m
    else:
        atlas[min(range(size), key=lambda m: atlas[m].arrival)] = new


def median(values: Sequence[Tensor]) -> Tensor:
    """The mean of the two middle values of an even number."""
    ordered, half = sorted(values), len(values) // 2
    return ordered[half] if len(values) % 2 else (ordered[half - 1] + ordered[half]) / 2


def start(
    fallback: str, eta: float, new: Sequence[Anchor], atlas: Sequence[Anchor], a: Tensor, omega: Tensor
) -> tuple[Tensor, Tensor]:
    """c' for which sum_m c'_m a_m is FedBuff's step eta/b sum_b Delta_b; omega after what the atlas lacks of it."""
    c, buffer = torch.zeros(len(atlas), dtype=omega.dtype), new if fallback == "fedbuff" else atlas
    if fallback == "zero" or not new:
        return c, omega
    for m, anchor in enumerate(atlas):
        if any(anchor is each for each in buffer):
            c[m] = eta / len(buffer) * anchor.a.norm() / a[m].norm()
    for each in buffer:
        if not any(each is anchor for anchor in atlas):
            omega = omega + eta / len(buffer) * each.a
    return c, omega


WHERE = "Algorithm 1, Eq 4, 6, 10, 15, 16"
SHORT = {"lr": 0.05, "epochs": 2, "batch_size": 32}
CASES = [
    Case("feddle", feddle, SHORT | {"atlas_size": 6, "lam": 0.1}, equations=f"{WHERE}; Eq 5"),
    Case("feddle late", feddle, SHORT, std=4.0, cohort=3, equations=f"{WHERE}; Eq 5"),  # nothing arrives in round 3
    Case(
        "feddle out of domain, late",
        feddle,
        SHORT,
        std=4.0,
        cohort=3,  # nothing arrives in round 3
        out_of_domain=True,
        equations=f"{WHERE}; Eq 8 and 9",
    ),
    Case(
        "feddle small atlas, out of domain, late",
        feddle,
        SHORT | {"atlas_size": 2, "eta_fb": 0.7, "max_steps": 3},  # more updates arrive than it holds
        std=1.5,
        cohort=6,
        out_of_domain=True,
        equations=f"{WHERE}; Eq 8 and 9",
    ),
    Case(
        "feddle small atlas, oldest first",
        feddle,
        SHORT | {"atlas_size": 3, "importance_score": False, "anchor_norm": False},
        models=(MLP,),
        equations="appendix F.7: first in, first out, no normalisation",
    ),
    Case("feddle all, late", feddle, SHORT | {"fallback": "all", "atlas_size": 5}, std=1.5, equations=WHERE),
    Case("feddle zero", feddle, SHORT | {"fallback": "zero", "atlas_size": 5}, models=(MLP,), equations=WHERE),
]
