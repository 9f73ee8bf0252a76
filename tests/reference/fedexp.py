"""FedExP (Jhunjhunwala, Wang and Joshi, ICLR 2023), Algorithm 1."""

from collections.abc import Iterator

from torch import Tensor

from tests.reference.plain import Case, Fields, Model, Problem, Sent, arrived, mean, sgd, sizes


def fedexp(p: Problem, *, eps: float, eval_avg_last2: bool, weighting: str) -> Iterator[Fields]:
    x, sent = p.x0, list[Sent]()
    previous = x
    for t in range(p.num_rounds):
        for k in p.cohort(t):  # Delta_i <- w^t - w_i^(t, tau), with the sign of a change here
            sent.append(Sent(t, k.client, k.due, x, sgd(p, x, k.client, t)))
        here = arrived(sent, t)
        if here:
            n = sizes(p, here, weighting)
            delta: list[Tensor] = [u.y.w - u.x.w for u in here]
            mean_delta = mean(delta, n)
            spread = mean([(d * d).sum() for d in delta], n)
            # eta_g <- max(1, sum_i p_i ||Delta_i||^2 / (2 (||mean Delta||^2 + eps)))
            eta_g = max(1.0, float(spread) / (2 * (float((mean_delta * mean_delta).sum()) + eps)))
            previous, x = x, Model(x.w + eta_g * mean_delta, mean([u.y.s for u in here], n))
        # the model after T rounds is (w^T + w^(T-1)) / 2: `previous` is kept for it
        yield {"params": x.vector, "previous": previous.vector}


CASES = [
    Case("fedexp", fedexp, equations="Algorithm 1"),
    Case("fedexp uniform, eps 0", fedexp, {"weighting": "uniform", "eps": 0.0}, equations="Algorithm 1"),
    Case("fedexp late", fedexp, {}, std=1.5, equations="Algorithm 1"),
]
