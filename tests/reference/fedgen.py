"""FedGEN (Zhu, Hong and Zhou, ICML 2021), Algorithm 1; weights and diversity loss as in the authors' code."""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.reference.plain import BATCH_NORM, Adam, Case, Fields, Model, Net, Problem, Sent, arrived, fedavg_step


def fedgen(
    p: Problem,
    *,
    alpha: float,
    beta: float,
    decay: float,
    gen_epochs: int,
    gen_batch_size: int,
    noise_size: int,
    hidden: int,
    eta: float,
    lr: float,
    lr_decay: float,
    weight_decay: float,
    steps: int,
    batch_size: int,
    late_policy: str,
    weighting: str,
) -> Iterator[Fields]:
    x, sent, classes = p.x0, list[Sent](), p.num_classes
    features = head(p, x.w)[0].shape[1]

    def build() -> nn.Module:
        """G_w: (noise, label) -> features."""
        layers = nn.Linear(noise_size + classes, hidden), nn.BatchNorm1d(hidden), nn.ReLU(), nn.Linear(hidden, features)
        return nn.Sequential(*layers)

    net = Net(build, p.net.dtype)
    made = net.model(p.initial(build, seed=int(p.rng("ALGORITHM").integers(2**63)) >> 15))
    adam = Adam(made.w, weight_decay=weight_decay)

    def client_update(client: int, t: int) -> Model:
        """Lines 5 to 9: local steps on Eq 2 (examples), with the regulariser of generated features (Eq 5)."""
        (w, s), all_batches = x, p.batches(client, t)
        a, b = (min(weight, max(1e-4, weight * decay**t)) for weight in (alpha, beta))
        until = gen_epochs * len(all_batches) // p.local.epochs
        for step, rows in enumerate(all_batches):
            rng = p.rng("ALGORITHM", t, client, step)
            drawn = torch.from_numpy(rng.integers(classes, size=gen_batch_size))  # y ~ p(y)
            noise = torch.from_numpy(rng.random((gen_batch_size + p.local.batch_size, noise_size)))
            labels = torch.cat([drawn, p.data.y[rows]])
            leaf = w.clone().requires_grad_()
            if p.n(client) > 1:
                logits, s = p.net.train(leaf, s, p.data.x[rows])
            else:
                logits = p.net.eval(leaf, s, p.data.x[rows])
            loss = F.cross_entropy(logits, p.data.y[rows])
            if adam.t and step < until:
                z = net.eval(*made, torch.cat([noise[: len(labels)], F.one_hot(labels, classes)], 1)).detach()
                guesses = F.linear(z, *head(p, leaf))  # h(z; theta)
                loss = loss + gen_batch_size / p.local.batch_size * a * F.cross_entropy(guesses[:gen_batch_size], drawn)
                wanted = F.log_softmax(guesses[gen_batch_size:], 1).detach()
                apart = (wanted.exp() * (wanted - F.log_softmax(logits, 1))).sum(1).mean()
                loss = loss + b * apart
            (g,) = torch.autograd.grad(loss, leaf)
            w, s = w - p.local.lr * g, s.detach()
        return Model(w, s)

    for t in range(p.num_rounds):  # line 2
        for k in p.cohort(t):  # lines 3 and 4: A; broadcast theta, w, p(y)
            sent.append(Sent(t, k.client, k.due, x, client_update(k.client, t)))
        here = arrived(sent, t, late_policy)
        if here:
            x = fedavg_step(p, x, here, late_policy, weighting)  # line 11: theta <- 1/|A| sum theta_k
            counts = torch.stack([p.label_counts(u.client) for u in here]).double()
            present = counts.sum(0).nonzero().flatten().numpy()  # p(y): labels that somebody has
            rng, (w, s) = p.rng("SERVER_BATCHES", t), made
            for _ in range(steps):  # lines 12 to 14: w <- w - grad J(w), Eq 4
                y = torch.from_numpy(rng.choice(present, batch_size))
                noise = torch.from_numpy(rng.random((batch_size, noise_size)))
                leaf = w.clone().requires_grad_()
                z, s = net.train(leaf, s, torch.cat([noise, F.one_hot(y, classes)], 1))
                taught = torch.zeros(())
                for u, own in zip(here, counts, strict=True):
                    each = F.cross_entropy(F.linear(z, *head(p, u.y.w)), y, reduction="none")
                    taught = taught + (own[y] / counts.sum(0)[y] * each).mean()
                (g,) = torch.autograd.grad(taught + eta * diversity(noise, z), leaf)
                w, s = adam.step(w, g, lr * lr_decay**t), s.detach()
            made = Model(w, s)
        slots = [adam.m, adam.v]
        yield {"params": x.vector, "generator": made.vector, "slots": slots, "steps": adam.t}


def head(p: Problem, w: Tensor) -> tuple[Tensor, Tensor]:
    """Weight and bias of the classifier, theta^p: the last layer."""
    weight, bias = list(p.net.tensors(w).values())[-2:]
    return weight, bias


def diversity(noise: Tensor, z: Tensor) -> Tensor:
    """exp(-mean over all pairs of ||e_i - e_j||^2 |z_i - z_j|, each a mean over its entries)."""
    noise_apart = ((noise[:, None] - noise[None]) ** 2).mean(2)
    return torch.exp(-(noise_apart * (z[:, None] - z[None]).abs().mean(2)).mean())


CASES = [
    Case("fedgen", fedgen, equations="Algorithm 1, Eq 2 to 5"),
    Case(
        "fedgen weights",
        fedgen,
        {"alpha": 3.0, "beta": 2.0, "eta": 0.3, "decay": 0.02, "gen_epochs": 1},
        models=(BATCH_NORM,),
    ),
    Case("fedgen late", fedgen, {"lr": 0.02, "lr_decay": 0.5, "weighting": "uniform"}, std=1.5),
    Case("fedgen model, late", fedgen, {"late_policy": "model", "alpha": 0.0}, std=1.5, models=(BATCH_NORM,)),
]
