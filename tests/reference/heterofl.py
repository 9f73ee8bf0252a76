"""Decentralised HeteroFL (Diao, Ding and Tarokh, ICLR 2021; DFML, Algorithm 3).

As in DFML's comparison without HeteroFL's scaler, static batch norm and masked classifier.
"""

from collections.abc import Iterator

from tests.reference.decentralized import by_client, first_models, meetings
from tests.reference.plain import Case, Fields, Problem
from tests.reference.submodels import WIDTHS, partial_training


def heterofl(p: Problem) -> Iterator[Fields]:
    w = first_models(p)
    for t, meeting in enumerate(meetings(p)):
        partial_training(p, w, meeting, t, lambda n: first)
        yield {"models": by_client(w), "aggregator": meeting.next}


def first(size: int, of: int) -> list[int]:
    """Eq 8: X_{n,i} = {0, 1, ..., floor(r_n J_i) - 1}."""
    return list(range(size))


CASES = [Case("heterofl", heterofl, models=WIDTHS, loss="wsm", equations="Algorithm 3, Eq 2, 6 and 8")]
