"""Per-FedAvg (Fallah, Mokhtari and Ozdaglar, NeurIPS 2020), Algorithm 1, and the two variants of its experiments."""

from collections.abc import Iterator

from torch import Tensor

from tests.reference.plain import Case, Fields, Model, Problem, Sent, arrived, fedavg_step


def perfedavg(
    p: Problem,
    *,
    inner_lr: float,
    variant: str,
    delta: float | None,
    late_policy: str,
    weighting: str,
    server_lr: float,
) -> Iterator[Fields]:
    x, sent = p.x0, list[Sent]()
    for t in range(p.num_rounds):
        for k in p.cohort(t):  # the server chooses A_k and sends w_k
            y = client_update(p, k.client, x, t, inner_lr, delta if variant == "hessian_free" else None)
            sent.append(Sent(t, k.client, k.due, x, y))
        x = fedavg_step(p, x, arrived(sent, t, late_policy), late_policy, weighting, server_lr)
        yield {"params": x.vector}


def client_update(p: Problem, i: int, x: Model, t: int, alpha: float, delta: float | None) -> Model:
    w, s = x  # w_{k+1,0}^i = w_k
    # D_t^i, D'_t^i and D''_t^i, drawn apart
    first, second, third = (p.batches(i, t, purpose) for purpose in ("INNER_BATCHES", "BATCHES", "HESSIAN_BATCHES"))

    def gradient(at: Tensor, rows: Tensor) -> Tensor:
        return p.gradient(at, s, rows, i)[0]

    for d, d1, d2 in zip(first, second, third, strict=True):
        there = w - alpha * gradient(w, d)  # w_tilde = w - alpha grad f(w, D)
        g, after = p.gradient(there, s, d1, i)
        if delta is None:  # FO: without the Hessian
            step = g
        else:  # HF: the product with the Hessian as a difference of gradients
            product = (gradient(w + delta * g, d2) - gradient(w - delta * g, d2)) / (2 * delta)
            step = g - alpha * product
        w, s = w - p.local.lr * step, after  # w - beta (I - alpha hess f(w, D'')) grad f(w_tilde, D')
    return Model(w, s)


FO, HF = {"inner_lr": 0.3}, {"inner_lr": 0.3, "variant": "hessian_free", "delta": 1e-2}
CASES = [
    Case("perfedavg first order", perfedavg, FO | {"server_lr": 0.7}, equations="Algorithm 1, FO"),
    Case("perfedavg first order, late", perfedavg, FO, std=1.5, equations="Algorithm 1, FO"),
    Case("perfedavg hessian-free", perfedavg, HF | {"weighting": "size"}, equations="Algorithm 1, HF"),
    Case("perfedavg hessian-free, late", perfedavg, HF, std=1.5, equations="Algorithm 1, HF"),
]
