"""FedLAW (Li, Lin, Shang and Wu, ICML 2023), Algorithm 1, with exp and softmax as in the authors' code."""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.reference.plain import MLP, Adam, Case, Fields, Model, Problem, Sent, arrived, mean, sgd


def fedlaw(
    p: Problem,
    *,
    lr: float,
    epochs: int,
    batch_size: int,
    max_steps: int | None,
    lr_decay: float,
    lr_decay_epochs: int,
) -> Iterator[Fields]:
    x, sent = p.x0, list[Sent]()
    for t in range(p.num_rounds):
        for k in p.cohort(t):
            sent.append(Sent(t, k.client, k.due, x, sgd(p, x, k.client, t)))
        here = arrived(sent, t)
        if here:
            models, stats = torch.stack([u.y.w for u in here]), torch.stack([u.y.s for u in here])
            n = torch.tensor([p.n(u.client) for u in here], dtype=p.net.dtype)
            a, b = torch.log(n / n.sum()), torch.zeros(1, dtype=p.net.dtype)  # lambda: sizes; gamma: 1
            s, adam = mean(list(stats), n.tolist()), Adam(torch.cat([a, b]), betas=(0.5, 0.999))
            per_epoch = len(p.server_batches(t, 1, batch_size))
            for step, rows in enumerate(p.server_batches(t, epochs, batch_size, max_steps)):
                free = torch.cat([a, b]).requires_grad_()
                # min over gamma and lambda of the proxy loss l(gamma sum_i lambda_i w_i), lambda on the simplex
                w = aggregate(free, models)
                if len(rows) > 1:
                    logits, s = p.net.train(w, s, p.server.x[rows])
                else:
                    logits = p.net.eval(w, s, p.server.x[rows])
                (g,) = torch.autograd.grad(F.cross_entropy(logits, p.server.y[rows]), free)
                s = s.detach()
                eta = lr * lr_decay ** (step // per_epoch // lr_decay_epochs)
                a, b = torch.split(adam.step(free.detach(), g, eta), [len(a), 1])
            x = Model(aggregate(torch.cat([a, b]), models), torch.softmax(a, 0) @ stats)
        yield {"params": x.vector}


def aggregate(free: Tensor, models: Tensor) -> Tensor:
    """w_g = gamma sum_i lambda_i w_i, with gamma = exp(b), lambda = softmax(a)."""
    share = torch.exp(free[:-1]) / torch.exp(free[:-1]).sum()
    return torch.exp(free[-1]) * (share @ models)


CASES = [
    Case("fedlaw", fedlaw, {"lr": 0.05, "epochs": 3, "batch_size": 16}, equations="Algorithm 1"),
    Case(
        "fedlaw lr_decay",
        fedlaw,
        {"epochs": 5, "batch_size": 32, "lr_decay_epochs": 2},
        models=(MLP,),
        equations="Algorithm 1",
    ),
    Case("fedlaw late", fedlaw, {"epochs": 3, "batch_size": 89, "max_steps": 5}, std=1.5, equations="Algorithm 1"),
]
