"""HFCL (Elbir, Coleri and Mishra, 2021) as a baseline of Feddle (section 5): the server is one more client, on time."""

from collections.abc import Iterator

from tests.reference.plain import BATCH_NORM, MLP, Case, Fields, Model, Problem, Sent, arrived, gradient, mean, sgd


def hfcl(p: Problem, *, late_policy: str, weighting: str) -> Iterator[Fields]:
    x, sent = p.x0, list[Sent]()
    for t in range(p.num_rounds):
        for k in p.cohort(t):
            sent.append(Sent(t, k.client, k.due, x, sgd(p, x, k.client, t)))
        here = arrived(sent, t, late_policy)
        w, s = x
        for b in p.server_client_batches(t):  # the server trains from today's model as a client does
            g, s = gradient(p.net, w, s, p.server.x[b], p.server.y[b])
            w = w - p.local.lr * g
        y = [*(u.y for u in here), Model(w, s)]
        start = [*(u.x for u in here), x]
        n = [*(p.n(u.client) for u in here), len(p.server.y)] if weighting == "size" else [1] * len(y)
        if late_policy == "model":
            start = [x] * len(y)
        changes = [mine.w - then.w for mine, then in zip(y, start, strict=True)]
        x = Model(
            x.w + mean(changes, n), mean([each.s for each in y], n)
        )  # sum over D_1, ..., D_K and the server's D_S
        yield {"params": x.vector}


CASES = [
    Case("hfcl", hfcl, equations="Feddle, section 5"),
    Case("hfcl uniform", hfcl, {"weighting": "uniform"}, models=(MLP,), equations="Feddle, section 5"),
    Case("hfcl delta, late", hfcl, std=1.5, equations="Feddle, section 5"),
    *(
        Case(
            f"hfcl {policy}, late", hfcl, {"late_policy": policy, "weighting": "uniform"}, std=1.5, models=(BATCH_NORM,)
        )
        for policy in ("model", "discard")
    ),
]
