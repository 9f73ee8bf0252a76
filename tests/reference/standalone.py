"""Stand-alone training (HyFEM, section 4): each client trains its own model, all from one start; nothing is sent."""

from collections.abc import Iterator

from tests.reference.plain import Case, Fields, Problem, Sent, arrived, sgd


def standalone(p: Problem) -> Iterator[Fields]:
    own = [p.x0] * p.num_clients
    sent: list[Sent] = []
    for t in range(p.num_rounds):
        for k in p.cohort(t):
            sent.append(Sent(t, k.client, k.due, own[k.client], sgd(p, own[k.client], k.client, t)))
        for u in arrived(sent, t):  # a late client has its model later
            own[u.client] = u.y
        yield {"own": {k: model.vector for k, model in enumerate(own)}}


CASES = [
    Case("standalone", standalone, equations="HyFEM, section 4"),
    Case("standalone late", standalone, std=1.5, equations="HyFEM, section 4"),
]
