"""FedBE (Chen and Chao, ICLR 2021), Algorithm 1, with the authors' Gaussian by tensors and the paper's Dirichlet."""

from collections.abc import Iterator

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.reference.plain import (
    BATCH_NORM,
    MLP,
    Case,
    Fields,
    Model,
    Problem,
    Sent,
    arrived,
    fedavg_step,
    gradient,
    mean,
    sgd,
)


def fedbe(
    p: Problem,
    *,
    sampler: str,
    num_samples: int,
    noise: float | None,
    alpha: float | None,
    temperature: float,
    lr: float,
    momentum: float,
    weight_decay: float,
    epochs: int,
    batch_size: int,
    max_steps: int | None,
    swa_start: int,
    swa_every: int,
    late_policy: str,
    weighting: str,
) -> Iterator[Fields]:
    x, sent = p.x0, list[Sent]()
    for t in range(p.num_rounds):
        for k in p.cohort(t):  # clients train from the global model
            sent.append(Sent(t, k.client, k.due, x, sgd(p, x, k.client, t)))
        here = arrived(sent, t, late_policy)
        if here:
            average = fedavg_step(p, x, here, late_policy, weighting)  # w-bar
            rng = p.rng("ALGORITHM", t)
            if sampler == "gaussian":  # construct the distribution; sample M models
                samples = gaussian(p, x, [u.y for u in here], average, num_samples, noise or 0.1, rng)
            else:
                samples = dirichlet([u.y for u in here], num_samples, alpha or 1.0, rng)
            ensemble = [*(u.y for u in here), average, *samples]  # {w-bar} + {w_i} + {w^(m)}
            # pseudo-labels: p-hat = 1/M sum_m P(y | x; w^(m)), then sharpened
            p_hat = torch.stack([F.softmax(p.net.eval(*each, p.server.x).detach(), 1) for each in ensemble]).mean(0)
            p_hat = p_hat ** (1 / temperature)
            p_hat = p_hat / p_hat.sum(1, keepdim=True)
            w, s = average  # knowledge distillation from w-bar, by SWA
            velocity, swa = torch.zeros_like(w), list[Tensor]()
            for step, b in enumerate(p.server_batches(t, epochs, batch_size, max_steps), 1):
                g, s = gradient(p.net, w, s, p.server.x[b], p_hat[b], divergence)
                velocity = momentum * velocity + g + weight_decay * w
                w = w - lr * velocity
                if step >= swa_start and (step - swa_start) % swa_every == 0:
                    swa.append(torch.cat([w, s]))
            x = p.net.model(mean(swa, [1] * len(swa))) if swa else Model(w, s)
        yield {"params": x.vector}


def divergence(logits: Tensor, target: Tensor) -> Tensor:
    """KL(p-hat || P(y | x; w)), a mean over the minibatch."""
    return (torch.xlogy(target, target) - target * F.log_softmax(logits, 1)).sum(1).mean()


def gaussian(
    p: Problem, x: Model, y: list[Model], average: Model, num_samples: int, noise: float, rng: np.random.Generator
) -> list[Model]:
    """Tensor by tensor, N(mean direction, noise^2 variance of the directions), times the mean length; from x."""
    samples = []
    changes = [p.net.tensors(each.w - x.w) for each in y]
    for _ in range(num_samples):
        xi = p.net.tensors(torch.from_numpy(rng.standard_normal(len(x.w))))
        parts = []
        for name, start in p.net.tensors(x.w).items():
            u = torch.stack([direction(change[name]) for change in changes])
            variance = ((u**2).mean(0) - u.mean(0) ** 2).clamp(min=1e-5)
            length = torch.stack([change[name].norm() for change in changes]).mean()
            parts.append((start + length * (u.mean(0) + noise * variance.sqrt() * xi[name])).reshape(-1))
        samples.append(Model(torch.cat(parts), average.s))
    return samples


def direction(change: Tensor) -> Tensor:
    """A tensor that a client has not changed has none: zero."""
    return change / change.norm() if change.norm() else change


def dirichlet(y: list[Model], num_samples: int, alpha: float, rng: np.random.Generator) -> list[Model]:
    """w = sum_i gamma_i w_i, gamma ~ Dir(alpha)."""
    gamma = rng.dirichlet([alpha] * len(y), num_samples)
    return [Model(mean([m.w for m in y], row), mean([m.s for m in y], row)) for row in gamma]


FEW = {"lr": 0.05, "epochs": 3, "batch_size": 16, "num_samples": 4}
CASES = [
    Case("fedbe gaussian", fedbe, FEW | {"noise": 0.5}, equations="Algorithm 1, the authors' Gaussian"),
    Case(
        "fedbe dirichlet",
        fedbe,
        FEW | {"sampler": "dirichlet", "alpha": 0.5},
        models=(MLP,),
        equations="Algorithm 1, Dirichlet",
    ),
    Case(
        "fedbe SWA",
        fedbe,
        FEW | {"swa_start": 6, "swa_every": 4, "temperature": 1.0},
        models=(BATCH_NORM,),
        equations="Algorithm 1, SWA",
    ),
    Case("fedbe late", fedbe, FEW | {"batch_size": 89, "max_steps": 5, "weighting": "uniform"}, std=1.5),
    Case(
        "fedbe model, late",
        fedbe,
        FEW | {"late_policy": "model", "sampler": "dirichlet"},
        std=1.5,
        models=(BATCH_NORM,),
    ),
]
