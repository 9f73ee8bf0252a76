"""Def-KT (Li, Li and Varshney, IEEE IoT Journal 2021), Algorithm 1."""

from collections.abc import Iterator

from tests.reference.decentralized import by_client, clients, first_models, label_loss, reached, teach_each_other
from tests.reference.plain import Case, Fields, Problem, sgd


def def_kt(p: Problem, *, epochs: int) -> Iterator[Fields]:
    w = first_models(p)
    for t in range(p.num_rounds):
        pairs = senders_and_receivers(p, t)  # two disjoint groups of clients, A and B
        for a, _ in pairs:  # each client of A trains and sends its model to a client of B
            w[a] = sgd(p, w[a], a, t, label_loss(p, a))
        for a, b in pairs:
            # on B's examples: L1 = CE(received) + KL(own || received), L2 = CE(own) + KL(received || own)
            received, _ = teach_each_other(p, b, t, (p.net, p.net), (w[a], w[b]), (1.0, 1.0), (1.0, 1.0), epochs)
            w[b] = received  # B's model is replaced by the received one; A keeps its own
        yield {"models": by_client(w), "aggregator": clients(p)[0]}  # nobody aggregates


def senders_and_receivers(p: Problem, t: int) -> list[tuple[int, int]]:
    """Each sender draws a receiver among the clients that it reaches and that do not send or receive yet."""
    everyone = clients(p)
    senders, rng = p.sample(t, everyone)[: len(everyone) // 2], p.rng("AGGREGATOR", t)
    free, pairs = set(everyone) - set(senders), []
    for a in senders:
        candidates = [n for n in reached(p, a) if n in free]
        if candidates:
            b = int(rng.choice(candidates))
            pairs.append((a, b))
            free.remove(b)
    return pairs


CASES = [
    Case("def_kt", def_kt, {"epochs": 2}, models=(("batch_norm",),), equations="Algorithm 1"),
    Case("def_kt wsm, ring", def_kt, {"epochs": 1}, loss="wsm", topology="ring", cohort=3, models=(("mlp",),)),
]
