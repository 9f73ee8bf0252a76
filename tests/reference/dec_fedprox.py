"""Decentralised FedProx (DFML, Khalil et al., TMLR 2024), Algorithm 2."""

from collections.abc import Iterator

from tests.reference.decentralized import by_client, first_models, label_loss, meetings
from tests.reference.plain import Case, Fields, Model, Problem, mean


def dec_fedprox(p: Problem, *, mu: float) -> Iterator[Fields]:
    w = first_models(p)
    for t, meeting in enumerate(meetings(p)):
        for n in meeting.participants:
            (before, s), loss = w[n], label_loss(p, n)  # W~_n <- W_n
            y = before
            for b in p.batches(n, t):  # locally train W_n using Eq 2 + mu / 2 ||W~_n - W_n||^2
                g, s = p.gradient(y, s, b, n, loss)
                y = y - p.local.lr * (g - mu * (before - y))
            w[n] = Model(y, s)
        for u in range(len(p.nets)):
            cluster = [n for n in meeting.participants if n % len(p.nets) == u]
            if cluster:
                d = [p.n(n) for n in cluster]
                # Eq 5
                global_model = Model(mean([w[n].w for n in cluster], d), mean([w[n].s for n in cluster], d))
                for n in cluster:
                    w[n] = global_model
        yield {"models": by_client(w), "aggregator": meeting.next}


MIXED = ("mlp", "batch_norm", "wide_mlp")
CASES = [Case("dec_fedprox", dec_fedprox, {"mu": 2.0}, equations="Algorithm 2, Eq 5", models=(MIXED,))]
