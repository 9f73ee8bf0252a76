"""FedRep (Collins et al., ICML 2021), Algorithm 1."""

from collections.abc import Collection, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tests.reference.homes import Names, batch_norm_layers, personal_layers
from tests.reference.plain import BATCH_NORM, MLP, Case, Fields, Model, Problem, mean

Parts = dict[str, Tensor]  # values by name


class Upload(NamedTuple):
    client: int
    due: int
    phi: Parts  # of the body that the client received
    new: Parts  # its own body and head


def fedrep(
    p: Problem, *, head: Names, head_epochs: int, late_policy: str, weighting: str, server_lr: float
) -> Iterator[Fields]:
    names, first = head(p.net), p.net.parts(p.x0)
    body = [name for name in first if name not in names]
    phi = {name: first[name] for name in body}  # phi^0; h_1^0, ..., h_n^0 are alike
    h = {i: {name: first[name] for name in names} for i in range(p.num_clients)}
    told, sent = set[int](), list[Upload]()
    for t in range(p.num_rounds):
        for i in p.cohort(t):  # the server sends phi^t to a batch of clients
            new = phi | h[i.client]
            heads = p.batches(i.client, t, purpose="PERSONAL_BATCHES", epochs=head_epochs)
            new = descend(p, i.client, new, heads, names)  # tau updates of the head: h <- GRD(f(h, phi), h, alpha)
            new = descend(p, i.client, new, p.batches(i.client, t), body)  # phi <- GRD(f(h, phi), phi, alpha)
            sent.append(Upload(i.client, i.due, phi, new))  # the client sends its body
        here = [u for u in sent if u.due == t]
        for u in here:
            h[u.client] = {name: u.new[name] for name in names}
            told.add(u.client)
        if here:
            phi = averaged(p, phi, here, weighting, server_lr)
        yield {
            "params": p.net.joined(phi | {name: first[name] for name in names}).vector,
            "home": {i: torch.cat([h[i][n].reshape(-1) for n in first if n in names]) for i in told},
        }


def descend(p: Problem, client: int, at: Parts, batches: Sequence[Tensor], trained: Collection[str]) -> Parts:
    """SGD, with L2 decay, on the values that train; the others, batch norm's statistics too, stay as they are."""
    w, s = p.net.joined(at)
    moves = torch.cat([torch.full((shape.numel(),), name in trained) for name, shape in p.net.shapes.items()])
    for b in batches:
        g, s = p.gradient(w, s, b, client)
        w = torch.where(moves, w - p.local.lr * (g + p.local.weight_decay * w), w)
    after = p.net.parts(Model(w, s))
    return {name: after[name] if name in trained else at[name] for name in at}


def averaged(p: Problem, phi: Parts, here: Sequence[Upload], weighting: str, server_lr: float) -> Parts:
    """The mean of the bodies: late changes are added to today's; batch norm's statistics are replaced."""
    weights = [p.n(u.client) if weighting == "size" else 1 for u in here]

    def step(name: str) -> Tensor:
        if name in p.net.stats:
            return mean([u.new[name] for u in here], weights)
        return phi[name] + server_lr * mean([u.new[name] - u.phi[name] for u in here], weights)

    return {name: step(name) for name in phi}


def case(name: str, home: str, head: Names, models: tuple[tuple[str, ...], ...], **how: Any) -> Case:
    loop, keys = partial(fedrep, head=head), {"head_epochs": 3, "server_lr": 0.7}
    return Case(f"fedrep {name}", loop, keys, home=home, models=models, equations="Algorithm 1", **how)


CASES = [
    case("head", "head", personal_layers, (MLP, BATCH_NORM), local={"weight_decay": 0.05}),
    case("head, late", "head", personal_layers, (MLP, BATCH_NORM), std=1.5),
    case("norm, late", "norm", batch_norm_layers, (BATCH_NORM,), std=1.5, local={"weight_decay": 0.05}),
]
