"""FedSAM (Qu et al., ICML 2022), Algorithm 1."""

from collections.abc import Iterator

from tests.reference.plain import Case, Fields, Model, Problem, Sent, arrived, fedavg_step


def fedsam(p: Problem, *, rho: float, late_policy: str, weighting: str, server_lr: float) -> Iterator[Fields]:
    x, sent = p.x0, list[Sent]()
    for t in range(p.num_rounds):
        for k in p.cohort(t):
            sent.append(Sent(t, k.client, k.due, x, client_update(p, k.client, x, t, rho)))
        x = fedavg_step(p, x, arrived(sent, t, late_policy), late_policy, weighting, server_lr)
        yield {"params": x.vector}


def client_update(p: Problem, i: int, x: Model, t: int, rho: float) -> Model:
    w, s = x
    for b in p.batches(i, t):
        g, seen = p.gradient(w, s, b, i)  # g_i = grad F_i(w; xi)
        ascended = w + rho * g / (g.norm() + 1e-16)  # w~ = w + rho g_i / ||g_i||
        sam, _ = p.gradient(ascended, s, b, i)  # g~_i = grad F_i(w~; xi), on the same minibatch
        w, s = w - p.local.lr * sam, seen  # w <- w - eta_l g~_i; the statistics are those at w
    return Model(w, s)


CASES = [
    Case("fedsam", fedsam, {"rho": 0.5}, equations="Algorithm 1"),
    Case("fedsam late", fedsam, {"rho": 0.5, "server_lr": 0.7}, std=1.5, equations="Algorithm 1"),
]
