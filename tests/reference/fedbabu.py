"""FedBABU (Oh et al., ICLR 2022), Algorithm 1."""

from collections.abc import Iterator

import torch

from tests.reference.fedrep import Upload, averaged, descend
from tests.reference.homes import personal_layers
from tests.reference.plain import Case, Fields, Problem


def fedbabu(p: Problem, *, late_policy: str, weighting: str, server_lr: float) -> Iterator[Fields]:
    first, names = p.net.parts(p.x0), personal_layers(p.net)  # theta^0 = {theta_ext^0, theta_cls^0}
    head = {name: first[name] for name in names}
    ext = {name: first[name] for name in first if name not in names}
    told, sent = set[int](), list[Upload]()
    for t in range(p.num_rounds):
        for i in p.cohort(t):  # ClientBodyUpdate: theta_cls has learning rate 0
            new = descend(p, i.client, ext | head, p.batches(i.client, t), list(ext))
            sent.append(Upload(i.client, i.due, ext, new))
        here = [u for u in sent if u.due == t]
        told |= {u.client for u in here}
        if here:
            ext = averaged(p, ext, here, weighting, server_lr)  # theta_ext^{k+1} <- sum_i n_i / n theta_{i,ext}
        kept = torch.cat([head[name].reshape(-1) for name in names])
        yield {"params": p.net.joined(ext | head).vector, "home": dict.fromkeys(told, kept)}


DECAY = {"weight_decay": 0.05}
CASES = [
    Case("fedbabu", fedbabu, {"server_lr": 0.7}, local=DECAY, home="head", equations="Algorithm 1"),
    Case("fedbabu late", fedbabu, local=DECAY, home="head", std=1.5, equations="Algorithm 1"),
]
