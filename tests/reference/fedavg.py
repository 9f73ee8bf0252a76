"""FedAvg (McMahan et al., AISTATS 2017), Algorithm 1, and the server's rules for late updates (Feddle, Eq 1 to 3)."""

from collections.abc import Callable, Iterator

from tests.reference.plain import Case, Fields, Model, Problem, Sent, arrived, fedavg_step
from tests.reference.server_step import Server, without_optimizer


def fedavg(
    p: Problem,
    *,
    late_policy: str,
    weighting: str,
    server_lr: float,
    optimizer: Callable[[Problem], Server] = without_optimizer,
) -> Iterator[Fields]:
    x, sent, server = p.x0, list[Sent](), optimizer(p)  # initialise w_0
    for t in range(p.num_rounds):  # for each round t = 1, 2, ... do
        for k in p.cohort(t):  # S_t <- random set of clients; for each client k in S_t in parallel do
            sent.append(Sent(t, k.client, k.due, x, client_update(p, k.client, x, t)))
        if here := arrived(sent, t, late_policy):
            x = server(x, fedavg_step(p, x, here, late_policy, weighting, server_lr))
        yield {"params": x.vector}


def client_update(p: Problem, k: int, x: Model, t: int) -> Model:
    w, s = x
    for b in p.batches(k, t):  # for each local epoch; for batch b in B do
        g, s = p.gradient(w, s, b, k)
        w = w - p.local.lr * g  # w <- w - eta grad l(w; b)
    return Model(w, s)


CASES = [
    Case("fedavg", fedavg, {"server_lr": 0.7}, equations="Algorithm 1"),
    Case("fedavg uniform", fedavg, {"weighting": "uniform"}, equations="Algorithm 1"),
    *(
        Case(f"fedavg {policy}, late", fedavg, {"late_policy": policy, "server_lr": 0.7}, std=1.5, equations=equations)
        for policy, equations in {
            "delta": "Algorithm 1; Feddle, Eq 1 and 3",
            "model": "Algorithm 1",
            "discard": "Algorithm 1; Feddle, Eq 2",
        }.items()
    ),
]
