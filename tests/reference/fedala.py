"""FedALA (Zhang et al., AAAI 2023), Algorithm 1."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from tests.reference.plain import Case, Fields, Model, Problem, arrived, fedavg_step, gradient, sgd
from tests.reference.plain import Sent as Update


class Kept(NamedTuple):
    """What client i keeps: its model, the weights of the upper layers, and how often it has taken part, up to 2."""

    theta: Model
    weights: Tensor
    times: int


def fedala(
    p: Problem,
    *,
    share: float,
    layers: int,
    eta: float,
    threshold: float,
    window: int,
    max_epochs: int,
    late_policy: str,
    weighting: str,
    server_lr: float,
) -> Iterator[Fields]:
    owners = [name.rpartition(".")[0] for name in p.net.shapes]
    last = list(dict.fromkeys(owners))[-layers:]
    sizes = [shape.numel() for shape in p.net.shapes.values()]
    upper = torch.cat([torch.full((n,), owner in last) for n, owner in zip(sizes, owners, strict=True)])
    theta, ones = p.x0, torch.ones(int(upper.sum()), dtype=p.net.dtype)
    first = Kept(theta, ones, 0)  # local models are Theta^0, W_i^p are ones
    kept: dict[int, Kept] = {}
    sent, own = list[Update](), list[Kept]()
    for t in range(p.num_rounds):
        for i in p.cohort(t):
            mine = kept.get(i.client, first)
            weights = mine.weights
            if mine.times:  # t = 1: nothing to learn
                weights = learned(p, i.client, t, theta, mine, upper, share, eta, (window, threshold, max_epochs))
            start = theta
            if mine.times:  # [1, ..., 1; W_i^p]
                start = Model(mixed(mine, theta, weights, upper), theta.s)
            y = sgd(p, start, i.client, t)
            sent.append(Update(t, i.client, i.due, theta, y))
            own.append(Kept(y, weights, min(mine.times + 1, 2)))
        for update, new in zip(sent, own, strict=True):
            if update.due == t:
                kept[update.client] = new
        theta = fedavg_step(p, theta, arrived(sent, t, late_policy), late_policy, weighting, server_lr)
        yield {"params": theta.vector, "first": row(first), "personal": {i: row(each) for i, each in kept.items()}}


def row(kept: Kept) -> Tensor:
    return torch.cat([kept.theta.vector, kept.weights, torch.tensor([float(kept.times)])])


def mixed(mine: Kept, theta: Model, weights: Tensor, upper: Tensor) -> Tensor:
    """Theta_i + (Theta - Theta_i) * W_i on the upper layers, Theta below."""
    w = theta.w.clone()
    w[upper] = mine.theta.w[upper] + (theta.w - mine.theta.w)[upper] * weights
    return w


def learned(
    p: Problem,
    i: int,
    t: int,
    theta: Model,
    mine: Kept,
    upper: Tensor,
    share: float,
    eta: float,
    until: tuple[int, float, int],
) -> Tensor:
    """W_i^p of a client that has a model of its own: learned in its second round until the losses deviate little."""
    members, b = p.members[i].numpy(), p.local.batch_size
    drawn = p.rng("ALGORITHM", t, i).permutation(members)[: max(1, int(share * len(members)))]
    order = p.rng("PERSONAL_BATCHES", t, i).permuted(drawn[None], axis=1)[0]
    batches = [torch.from_numpy(order[k : k + b]) for k in range(0, len(order), b)]
    if p.net.stats and len(batches) > 1 and len(batches[-1]) == 1:
        batches.pop()
    (window, threshold, most), weights, losses = until, mine.weights, list[float]()
    while True:
        total = 0.0
        for rows in batches:
            at, x, y = mixed(mine, theta, weights, upper), p.data.x[rows], p.data.y[rows]
            value: list[Tensor] = []

            def loss(logits: Tensor, labels: Tensor, value: list[Tensor] = value) -> Tensor:
                value.append(torch.nn.functional.cross_entropy(logits, labels))
                return value[0]

            g, _ = gradient(p.net, at, theta.s, x, y, loss, frozen=len(order) == 1)
            weights = weights - eta * (g * (theta.w - mine.theta.w))[upper]
            weights = weights.clamp(0, 1)  # sigma
            total += float(value[0].detach()) * len(rows)
        losses.append(total / sum(map(len, batches)))
        done = mine.times == 2 or len(losses) == most
        if done or (len(losses) > window and np.std(losses[-window:]) < threshold):
            return weights


SOON = {"window": 2, "threshold": 0.003, "eta": 5.0}
CASES = [
    Case("fedala", fedala, SOON | {"server_lr": 0.7}, equations="Algorithm 1"),
    Case("fedala late", fedala, SOON | {"layers": 2}, std=1.5, equations="Algorithm 1", rounds=8),
    Case("fedala cut off", fedala, SOON | {"max_epochs": 4, "share": 0.5}, equations="Algorithm 1"),
]
