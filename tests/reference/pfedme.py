"""pFedMe (T. Dinh, Tran and Nguyen, NeurIPS 2020), Algorithm 1."""

from collections.abc import Iterator

from tests.reference.plain import Case, Fields, Model, Problem, Sent, arrived, fedavg_step


def pfedme(
    p: Problem,
    *,
    lam: float,
    inner_steps: int,
    inner_lr: float,
    warm_start: bool,
    late_policy: str,
    weighting: str,
    server_lr: float,
) -> Iterator[Fields]:
    x = p.x0
    own: dict[int, Model] = {}  # theta_i, the personalised models
    sent, found = list[Sent](), dict[tuple[int, int], Model]()
    for t in range(p.num_rounds):
        for k in p.cohort(t):  # the server sends w_t
            (w, s), theta = x, x.w  # w_{i,0}^t = w_t
            for b in p.batches(k.client, t):  # for r = 0 to R - 1: sample D_i
                theta = theta if warm_start else w
                for _ in range(inner_steps):  # minimise h_i(theta; w_{i,r}, D_i) up to some accuracy
                    g, s = p.gradient(theta, s, b, k.client)
                    theta = theta - inner_lr * (g + lam * (theta - w))
                w = w - p.local.lr * lam * (w - theta)  # w_{i,r+1} = w_{i,r} - eta lambda (w_{i,r} - theta)
            sent.append(Sent(t, k.client, k.due, x, Model(w, s)))
            found[t, k.client] = Model(theta, s)
        for u in arrived(sent, t):
            own[u.client] = found[u.round, u.client]
        # w_{t+1} = (1 - beta) w_t + beta sum w_{i,R}^t / S
        x = fedavg_step(p, x, arrived(sent, t, late_policy), late_policy, weighting, server_lr)
        yield {"params": x.vector, "first": p.x0.vector, "personal": {k: theta.vector for k, theta in own.items()}}


SMALL = {"lam": 4.0, "inner_steps": 3, "inner_lr": 0.1}
CASES = [
    Case("pfedme", pfedme, SMALL | {"server_lr": 0.7}, equations="Algorithm 1"),
    Case("pfedme cold", pfedme, SMALL | {"warm_start": False, "weighting": "size"}, equations="Algorithm 1"),
    Case("pfedme late", pfedme, SMALL, std=1.5, equations="Algorithm 1"),
]
