"""Decentralised FedRolex (Alam et al., NeurIPS 2022; DFML, Algorithm 3), and FedRolex with its own order."""

from collections.abc import Iterator

import torch

from tests.reference.decentralized import by_client, first_models, meetings
from tests.reference.plain import Case, Fields, Problem
from tests.reference.submodels import WIDTHS, Choose, partial_training


def fedrolex(p: Problem, *, order: str) -> Iterator[Fields]:
    w = first_models(p)
    cut = [0] * p.num_clients  # the round in which each model was cut from W_g last
    for t, meeting in enumerate(meetings(p)):
        # `returned` is FedRolex with a server: a model is averaged where it was cut from
        last = (lambda n: window(cut[n], order)) if order == "returned" else None
        partial_training(p, w, meeting, t, lambda n, t=t: window(t, order), last)
        for n in meeting.participants:
            cut[n] = t
        yield {"models": by_client(w), "aggregator": meeting.next, "cut": torch.tensor(cut)}


def window(t: int, order: str) -> Choose:
    """Eq 9: X_{n,i} from t~ = t mod J_i on, and from 0 behind the end; `rolled` in this order, else ascending."""

    def channels(size: int, of: int) -> list[int]:
        begin = t % of
        if begin + size <= of:
            return list(range(begin, begin + size))
        behind, front = list(range(begin, of)), list(range(begin + size - of))
        return behind + front if order == "rolled" else front + behind

    return channels


EQUATIONS = "Algorithm 3, Eq 6 and 9"
CASES = [
    Case("fedrolex rolled", fedrolex, models=WIDTHS[:1], equations=EQUATIONS),
    Case("fedrolex sorted", fedrolex, {"order": "sorted"}, cohort=2, models=WIDTHS[1:], equations=EQUATIONS),
    # with one sender the widest model is not at every meeting
    Case("fedrolex returned", fedrolex, {"order": "returned"}, cohort=1, models=WIDTHS[1:], equations=EQUATIONS),
]
