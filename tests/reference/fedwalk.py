"""FedWalk (Zhai, Gao, Ma, Zou, Ye and Jiang, 2024), Algorithm 1, over FedAvg and over SCAFFOLD.

What the paper leaves open: L^s is infinite before the first leash update, so that the first round has one; the leash
task has a classifier of its own on the model's body, and its minibatches move batch norm's statistics. FedAvg in the
paper is uniform (line 8); `base` may say otherwise.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.reference.plain import BATCH_NORM, Case, Fields, Model, Problem, Sent, arrived, fedavg_step, sgd


def fedwalk(
    p: Problem,
    *,
    base: dict[str, Any],
    tau: float,
    beta: float,
    unit: str,
    steps: int,
    lr: float | None,
    batch_size: int,
    move_statistics: bool,
    pretrain: int,
) -> Iterator[Fields]:
    fl = FedAvg(p, **base) if base["name"] == "fedavg" else Scaffold(p, **base)
    w, sent, losses = p.x0, list[Sent](), dict[tuple[int, int], float]()
    features = p.net.num_features
    # the leash task's classifier [C' (F + 1)], as torch draws a linear layer: uniform in +-1/sqrt(F)
    head = (2 * p.uniform("AUXILIARY_HEAD", p.auxiliary_classes * (features + 1)) - 1) / math.sqrt(features)
    client_loss, leash_loss = 0.0, math.inf  # line 1: L^c = 0
    gamma = p.local.lr if lr is None else lr

    def leash(w: Model, head: Tensor, t: int, steps: int) -> tuple[Model, Tensor]:
        """Lines 11 to 14, for T_s = `steps` minibatches or epochs."""
        v, s = torch.cat([w.w, head]), w.s
        most = steps if unit == "step" else None
        for b in p.server_batches(t, steps, batch_size, most, purpose="AUXILIARY_BATCHES", data=p.auxiliary):
            leaf = v.clone().requires_grad_()
            body, own = torch.split(leaf, [len(w.w), len(head)])
            if len(b) > 1:
                logits, s = p.net.train(body, s, p.auxiliary.x[b], own)
            else:
                logits = p.net.eval(body, s, p.auxiliary.x[b], own)
            (q,) = torch.autograd.grad(F.cross_entropy(logits, p.auxiliary.y[b]), leaf)  # line 12
            v, s = v - gamma * q, s.detach()  # line 13, Eq 6: W <- W - gamma_t q(W)
        v, head = torch.split(v, [len(w.w), len(head)])
        return Model(v, s if move_statistics else w.s), head

    for t in range(p.num_rounds):
        if t == 0 and pretrain:  # section 5.3: all leash updates before the first round
            w, head = leash(w, head, t, pretrain * steps)
        for k in p.cohort(t):  # line 2: sample C; line 3: broadcast W_{t-1}
            v = fl.local_update(k.client, w, t)  # lines 5 to 7, Eq 2
            sent.append(Sent(t, k.client, k.due, w, v))
            x, y = (each[p.members[k.client]] for each in p.data)
            losses[t, k.client] = float(F.cross_entropy(p.net.eval(*v, x), y))  # Eq 3: L_k = L(V_k, D_k)
        if here := arrived(sent, t):
            w = fl.aggregate(w, here)  # line 8, Eq 4: W <- 1/m sum_k V_k
            # Eq 5: L^c <- beta L^c + (1 - beta) 1/m sum_k L_k
            client_loss = beta * client_loss + (1 - beta) * sum(losses[u.round, u.client] for u in here) / len(here)
        # line 10, Eq 7: log2(L^c / L^s) < tau (section 5.1 has the base)
        if not pretrain and log_ratio(client_loss, leash_loss) < tau:
            w, head = leash(w, head, t, steps)
            leash_loss = float(F.cross_entropy(p.net.eval(*w, p.auxiliary.x, head), p.auxiliary.y))  # L^s = L(W, D_s)
        yield {"base": fl.state(w), "head": head, "client_loss": client_loss, "leash_loss": leash_loss}  # line 17


def log_ratio(client_loss: float, leash_loss: float) -> float:
    """log2(L^c / L^s); its limit where L^c is zero or L^s infinite."""
    return math.log2(client_loss / leash_loss) if client_loss / leash_loss else -math.inf


class FedAvg:
    """The passive method of Algorithm 1."""

    def __init__(self, p: Problem, *, name: str, late_policy: str, weighting: str, server_lr: float) -> None:
        self.p, self.how = p, (late_policy, weighting, server_lr)

    def local_update(self, client: int, x: Model, t: int) -> Model:
        return sgd(self.p, x, client, t)

    def aggregate(self, x: Model, here: Sequence[Sent]) -> Model:
        return fedavg_step(self.p, x, here, *self.how)

    def state(self, x: Model) -> Fields:
        return {"params": x.vector}


class Scaffold:
    """SCAFFOLD (Karimireddy et al., ICML 2020), Algorithm 1, option II; the leash leaves its control variates."""

    def __init__(self, p: Problem, *, name: str, option: int, weighting: str, server_lr: float) -> None:
        assert (option, weighting) == (2, "uniform")
        self.p, self.server_lr = p, server_lr
        self.zero = self.c = torch.zeros_like(p.x0.w)
        self.c_i: dict[int, Tensor] = {}
        self.delta_c: dict[tuple[int, int], Tensor] = {}  # by round and client

    def local_update(self, client: int, x: Model, t: int) -> Model:
        (y, s), steps, own, eta = x, self.p.batches(client, t), self.c_i.get(client, self.zero), self.p.local.lr
        for b in steps:
            g, s = self.p.gradient(y, s, b, client)
            y = y - eta * (g - own + self.c)
        self.delta_c[t, client] = (x.w - y) / (len(steps) * eta) - self.c  # c_i+ - c_i
        return Model(y, s)

    def aggregate(self, x: Model, here: Sequence[Sent]) -> Model:
        for u in here:
            delta = self.delta_c[u.round, u.client]
            self.c_i[u.client] = self.c_i.get(u.client, self.zero) + delta
            self.c = self.c + delta / self.p.num_clients
        return fedavg_step(self.p, x, here, "delta", "uniform", self.server_lr)

    def state(self, x: Model) -> Fields:
        return {"params": x.vector, "c": self.c, "c_i": dict(self.c_i)}


WHERE = "Algorithm 1, Eq 2 to 7"
UNIFORM = ("fedavg", {"weighting": "uniform"})
SOMETIMES = {"beta": 0.1, "tau": -0.75}  # some rounds have leash updates, some do not
CASES = [
    # minibatches of 23 leave one of a single example
    Case("fedwalk", fedwalk, SOMETIMES | {"base": UNIFORM, "batch_size": 23}, equations=WHERE),
    Case("fedwalk scaffold", fedwalk, SOMETIMES | {"base": ("scaffold", {"server_lr": 0.8})}, equations=WHERE),
    Case(
        "fedwalk steps, late",
        fedwalk,
        {"base": "scaffold", "unit": "step", "steps": 3, "lr": 0.05, "move_statistics": False},
        std=4.0,
        cohort=3,  # nothing arrives in round 3
        equations=WHERE,
    ),
    Case(
        "fedwalk pretrain",
        fedwalk,
        {"base": "fedavg", "pretrain": 3},
        models=(BATCH_NORM,),
        equations="Algorithm 1; section 5.3 (2)",
    ),
]
