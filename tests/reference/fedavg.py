"""FedAvg (McMahan et al., AISTATS 2017), Algorithm 1, and the server's rules for late updates (Feddle, Eq 1 to 3)."""

from collections.abc import Iterator

from tests.reference.plain import Case, Fields, Model, Problem, Start, mean, sgd


def fedavg(p: Problem, *, late_policy: str, weighting: str, server_lr: float) -> Iterator[Fields]:
    x = p.x0  # initialise w_0
    sent: list[tuple[int, Start, Model, Model]] = []
    for t in range(p.num_rounds):  # for each round t
        for k in p.cohort(t):  # S_t: a random set of clients; for each client k in S_t in parallel
            sent.append((t, k, x, sgd(p, x, k.client, t)))  # w_{t+1}^k <- ClientUpdate(k, w_t)
        here = [each for each in sent if each[1].due == t]
        if late_policy == "discard":  # Feddle, Eq 2
            here = [each for each in here if each[0] == t]
        if here:
            x = server_update(x, here, p, late_policy, weighting, server_lr)
        yield {"params": x.vector}


def server_update(
    x: Model,
    here: list[tuple[int, Start, Model, Model]],
    p: Problem,
    late_policy: str,
    weighting: str,
    server_lr: float,
) -> Model:
    n = [p.n(k.client) if weighting == "size" else 1 for _, k, _, _ in here]
    if late_policy == "model":  # w_{t+1} <- sum_k n_k / n w_{t+1}^k
        step = mean([y.w for *_, y in here], n) - x.w
    else:  # Feddle, Eq 1 and 3: w_{t+1} <- w_t + sum_k n_k / n Delta_k, Delta_k = the change when k started
        step = mean([y.w - start.w for _, _, start, y in here], n)
    return Model(x.w + server_lr * step, mean([y.s for *_, y in here], n))  # statistics are replaced by their mean


CASES = [
    Case("fedavg", fedavg, {"server_lr": 0.7}, equations="Algorithm 1"),
    Case("fedavg uniform", fedavg, {"weighting": "uniform"}, equations="Algorithm 1"),
    *(
        Case(
            f"fedavg {policy}, late",
            fedavg,
            {"late_policy": policy, "server_lr": 0.7},
            std=1.5,
            equations="Algorithm 1; Feddle, Eq 1 to 3",
        )
        for policy in ("delta", "model", "discard")
    ),
]
