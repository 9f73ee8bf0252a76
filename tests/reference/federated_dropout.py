"""Decentralised Federated Dropout (Caldas et al., 2018; DFML, Algorithm 3)."""

from collections.abc import Iterator

from tests.reference.decentralized import by_client, first_models, meetings
from tests.reference.plain import Case, Fields, Problem
from tests.reference.submodels import WIDTHS, Choose, partial_training


def federated_dropout(p: Problem) -> Iterator[Fields]:
    w = first_models(p)
    for t, meeting in enumerate(meetings(p)):
        partial_training(p, w, meeting, t, lambda n, t=t: drawn(p, n, t))
        yield {"models": by_client(w), "aggregator": meeting.next}


def drawn(p: Problem, n: int, t: int) -> Choose:
    """Eq 7: X_{n,i} = floor(r_n J_i) integers of [0, J_i - 1], layer after layer.

    They are different ones in ascending order: in the order of the draw equal models would be scrambled.
    """
    rng = p.rng("SUBMODEL", t, n)
    return lambda size, of: sorted(rng.choice(of, size, replace=False).tolist())


CASES = [Case("federated_dropout", federated_dropout, models=WIDTHS, cohort=2, equations="Algorithm 3, Eq 6 and 7")]
