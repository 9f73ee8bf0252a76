"""What stays at home, around FedAvg: FedPer (Arivazhagan et al., 2019), LG-FedAvg (Liang et al., 2020) and FedBN
(Li et al., ICLR 2021).
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from tests.reference.fedavg import client_update
from tests.reference.plain import BATCH_NORM, MLP, Case, Fields, Net, Problem, mean

Names = Callable[[Net], list[str]]  # the tensors of a network that stay with the client


def personal_layers(net: Net) -> list[str]:
    """FedPer, Figure 1: the last layer is the client's own."""
    return list(net.shapes)[-2:]


def local_layers(net: Net) -> list[str]:
    """LG-FedAvg, Algorithm 1: the layers before the last one, the representation, are the client's own."""
    return [name for name in (*net.shapes, *net.stats) if name not in personal_layers(net)]


def batch_norm_layers(net: Net) -> list[str]:
    """FedBN, section 4: all that batch norm has, its parameters and its statistics."""
    layers = {name.rpartition(".")[0] for name in net.stats}
    return [name for name in (*net.shapes, *net.stats) if name.rpartition(".")[0] in layers]


def with_home(p: Problem, *, keep: Names, late_policy: str, weighting: str, server_lr: float) -> Iterator[Fields]:
    """FedAvg on the shared tensors, in the deltas' form; each client continues from its own tensors beside them."""
    assert (late_policy, weighting) == ("delta", "size")
    names, first = keep(p.net), p.net.parts(p.x0)
    x = dict(first)
    own = {k: {name: first[name] for name in names} for k in range(p.num_clients)}  # FedPer: W_P1, ..., W_PN
    told = set[int]()
    sent: list[tuple[int, int, dict[str, Tensor], dict[str, Tensor]]] = []
    for t in range(p.num_rounds):
        for k in p.cohort(t):
            begin = p.net.joined(x | own[k.client])  # (W_B, W_Pj): the client's model
            y = p.net.parts(client_update(p, k.client, begin, t))
            sent.append((k.client, k.due, dict(x), y))  # of which the client sends what is shared
        here = [each for each in sent if each[1] == t]
        for client, _, _, y in here:
            own[client] = {name: y[name] for name in names}
            told.add(client)
        sizes = [p.n(client) for client, *_ in here]
        for name in set(x) - set(names) if here else ():
            if name in p.net.stats:
                x[name] = mean([y[name] for *_, y in here], sizes)
            else:
                x[name] = x[name] + server_lr * mean([y[name] - begun[name] for _, _, begun, y in here], sizes)
        order = [name for name in (*p.net.shapes, *p.net.stats) if name in names]
        yield {
            "params": p.net.joined(x).vector,
            "home": {k: torch.cat([own[k][n].reshape(-1) for n in order]) for k in told},
        }


def case(name: str, home: str, keep: Names, models: tuple[tuple[str, ...], ...], **how: Any) -> Case:
    return Case(f"fedavg {name}", partial(with_home, keep=keep), {"server_lr": 0.7}, home=home, models=models, **how)


CASES = [
    case("fedper", "head", personal_layers, (MLP, BATCH_NORM), equations="FedPer, Algorithms 1 and 2"),
    case("fedper, late", "head", personal_layers, (MLP, BATCH_NORM), std=1.5, equations="FedPer, Algorithms 1 and 2"),
    case("lg_fedavg, late", "body", local_layers, (MLP, BATCH_NORM), std=1.5, equations="LG-FedAvg, Algorithm 1"),
    case("fedbn", "norm", batch_norm_layers, (BATCH_NORM,), equations="FedBN, Algorithm 1"),
    case("fedbn, late", "norm", batch_norm_layers, (BATCH_NORM,), std=1.5, equations="FedBN, Algorithm 1"),
]
