"""DFML (Khalil et al., TMLR 2024), Algorithm 1."""

import math
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.reference.decentralized import by_client, first_models, kl, label_loss, logits, meetings
from tests.reference.plain import Case, Fields, Model, Problem, sgd


def dfml(
    p: Problem,
    *,
    epochs: int,
    alpha_min: float | None,
    alpha_max: float,
    schedule: str,
    scheduled: str,
    period: int | None,
    growth: int | None,
    anneal_rounds: int | None,
    peak_updates: int | None,
    adaptive: str,
    weighted: bool,
    mutual: bool,
    fixed_aggregator: int | None,
    regular: bool,
) -> Iterator[Fields]:
    alpha_min, period, growth = alpha_min or 0.0, period or 10, 10 if growth is None else growth

    def scheduler(t: int, position: int, period: int) -> float:
        """alpha^(t) at a position of a period."""
        if schedule == "fixed":
            return alpha_max
        if anneal_rounds is not None:  # ANL (Clark et al., ACL 2019)
            return alpha_max - (alpha_max - alpha_min) * min(1.0, t / anneal_rounds)
        # Eq 4 as printed falls from alpha_max; in the text and in Figures 3, 7 and 11 alpha rises to its maximum, the
        # last round of a period, or the middle of a full cycle. So the cosine has the other sign.
        turns = position / (period - 1) if schedule == "half" else 2 * position / period
        return alpha_min + (alpha_max - alpha_min) / 2 * (1 - math.cos(math.pi * turns))

    w = first_models(p)
    peak, alphas = list(w), [0.0] * p.num_clients  # W^_n and alpha_n
    begin = 0  # the round in which the period began
    for t, meeting in enumerate(meetings(p, fixed_aggregator)):
        a, participants = meeting.aggregator, meeting.participants
        for n in participants:  # client side: locally train W_n using Eq 2
            w[n] = sgd(p, w[n], n, t, label_loss(p, n))
        if t - begin == period:  # the period "is incrementally increased after each completion" (appendix A.2)
            begin, period = t, period + growth
        alpha = scheduler(t, t - begin, period)
        of_labels, of_kl = {  # Eq 10; opposite is Eq 1
            "opposite": (1 - alpha, alpha),
            "supervision": (1 - alpha, 1.0),
            "distillation": (1.0, alpha),
            "both": (alpha, alpha),
        }[scheduled]
        size = {n: p.net_of(n).num_params if weighted else 1 for n in participants}  # Phi_n
        students = participants if mutual else [a]  # vanilla distillation: the aggregator's model alone learns
        norm = any(p.net_of(n).stats for n in participants)
        for b in p.batches(a, t, "DISTILLATION", epochs, norm):  # for k = 1, ..., K; for all batches X_a in D_a
            x, y = p.data.x[b], p.data.y[b]
            leaves = {n: w[n].w.clone().requires_grad_() for n in participants}
            seen = {n: logits(p.net_of(n), leaves[n], w[n].s, x) for n in participants}
            for n in students:  # update W_n using alpha and the logits of all, as they were before any moved
                z, s = seen[n]
                teachers = [q for q in participants if q != n]
                divergence = torch.zeros(())
                for q in teachers:  # Eq 3: Phi_q / sum over u != n of Phi_u, KL(p_q || p_n); a mean over X_a
                    each = kl(seen[q][0], z)
                    if adaptive == "wsl":
                        each = wsl(z, seen[q][0], y) * each
                    divergence = divergence + size[q] / sum(size[u] for u in teachers) * each.mean()
                loss = of_labels * label_loss(p, a)(z, y) + of_kl * divergence  # Eq 1
                (g,) = torch.autograd.grad(loss, leaves[n])
                w[n] = Model(w[n].w - p.local.lr * g, s.detach())
        for n in participants:
            # Algorithm 1 renews a peak model if alpha >= alpha_n. With few senders a client may miss the one maximum:
            # appendix A.4.6 renews in several rounds of a period. Without cycles there is no peak to wait for.
            wanted = peak_updates or max(1, round(0.5 * p.num_clients / max(1, len(meeting.senders))))
            largest = sorted(scheduler(t, position, period) for position in range(period))[-wanted:]
            if alpha >= alphas[n] or alpha >= largest[0] or schedule in ("fixed", "anneal"):
                peak[n] = w[n]
            alphas[n] = max(alphas[n], alpha)
        kept = torch.tensor(alphas, dtype=torch.float64)
        models, peaks = by_client(w), by_client(peak)
        here = {"aggregator": meeting.next, "start": begin, "period": period}
        yield {"models": models, "peaks": peaks, "alphas": kept} | here


def wsl(z: Tensor, teacher: Tensor, y: Tensor) -> Tensor:
    """WSL's weight of each example, 1 - exp(-CE_student / CE_teacher) (Zhou et al., ICLR 2021), a constant."""
    of_student, of_teacher = (F.cross_entropy(each.detach(), y, reduction="none") for each in (z, teacher))
    return 1 - torch.exp(-of_student / (of_teacher + 1e-7))


MIXED = ("mlp", "batch_norm", "wide_mlp")
# The aggregator, client 4, has nine examples and no batch norm, but others have: the ninth is left out.
LAST_OF_ONE = ("batch_norm", "mlp", "wide_mlp")
SHORT = {"epochs": 2, "period": 2, "growth": 1}
CASES = [
    Case("dfml", dfml, SHORT, loss="wsm", models=(("batch_norm",), MIXED), equations="Algorithm 1, Eq 1 to 4"),
    Case(
        "dfml full, wsl",
        dfml,
        SHORT
        | {"schedule": "full", "adaptive": "wsl", "weighted": False, "scheduled": "distillation", "alpha_min": 0.2},
        cohort=2,
        models=(("mlp",),),
        equations="Algorithm 1, Eq 1, 4 and 10",
    ),
    Case(
        "dfml vanilla, anneal",
        dfml,
        {"epochs": 2, "mutual": False, "schedule": "anneal", "anneal_rounds": 4, "scheduled": "both"},
        topology="ring",
        models=(MIXED,),
        equations="Algorithm 1, Eq 1 and 10",
    ),
    Case(
        "dfml fixed",
        dfml,
        {"epochs": 1, "schedule": "fixed", "alpha_max": 0.5, "fixed_aggregator": 4, "scheduled": "supervision"},
        models=(LAST_OF_ONE,),
        equations="Algorithm 1, Eq 1 and 10",
    ),
]
