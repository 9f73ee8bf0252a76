"""Decentralised FedAvg (DFML, Khalil et al., TMLR 2024), Algorithm 2."""

from collections.abc import Iterator

from tests.reference.decentralized import by_client, first_models, label_loss, meetings
from tests.reference.plain import Case, Fields, Model, Problem, mean, sgd


def dec_fedavg(p: Problem) -> Iterator[Fields]:
    w = first_models(p)
    for t, meeting in enumerate(meetings(p)):  # a, S and P = S + {a}
        for n in meeting.participants:  # client side: locally train W_n using Eq 2
            w[n] = sgd(p, w[n], n, t, label_loss(p, n))
        for u in range(len(p.nets)):  # aggregator side: clusters of models of one architecture
            cluster = [n for n in meeting.participants if n % len(p.nets) == u]
            if cluster:
                d = [p.n(n) for n in cluster]
                # Eq 5: W_g^u <- sum over n in u of d_n W_n / sum of d_n
                global_model = Model(mean([w[n].w for n in cluster], d), mean([w[n].s for n in cluster], d))
                for n in cluster:  # fork W_g^u into local models
                    w[n] = global_model
        yield {"models": by_client(w), "aggregator": meeting.next}


MIXED = ("mlp", "batch_norm", "wide_mlp")
CASES = [
    Case("dec_fedavg", dec_fedavg, equations="Algorithm 2, Eq 5"),
    Case(
        "dec_fedavg wsm, ring", dec_fedavg, loss="wsm", topology="ring", models=(MIXED,), equations="Algorithm 2, Eq 2"
    ),
]
