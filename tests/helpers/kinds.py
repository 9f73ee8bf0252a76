"""Of many cases those that a plain call of pytest runs: one method of each kind, each two choices together.

The contract of algorithms is proved for all of them in every call of pytest. What another layer adds to it, such as
files of a run or a guard, is proved for one method of each kind, and for the others in the slow tests.
"""

from collections.abc import Collection, Iterable
from itertools import product
from typing import Any

import pytest

KINDS = (
    "ca2fl",  # a buffer, and a cached update of each client
    "center",  # no client trains
    "dfml",  # decentralized mutual learning
    "ditto",  # clients with models of their own
    "dpsgd",  # gossip over a topology
    "fedavg",
    "fedcda",  # cached models
    "feddle",  # an atlas, searched with server data
    "fedgen",  # a network of the server's that clients train with
    "fedma",  # matched neurons
    "fedrep",  # layers at home, trained in turns
    "fedwalk",  # a leash around another algorithm
    "hyfem",  # slices of the server's model
    "scaffold",  # control variates
)


def by_kind(names: Iterable[str]) -> list[Any]:
    """These methods as parameters of a test: the first of each kind plain, the others marked slow."""
    return [name if name in KINDS else pytest.param(name, marks=pytest.mark.slow) for name in names]


def by_pairs(*axes: Collection[Any]) -> list[Any]:
    """All combinations of three axes as parameters: each two values of different axes meet in those not marked slow."""
    shortest = min(map(len, axes))
    places = product(*(range(len(axis)) for axis in axes))
    return [
        pytest.param(*values, marks=[pytest.mark.slow] * (sum(place) % shortest != 0))
        for values, place in zip(product(*axes), places, strict=True)
    ]


def in_turns(*axes: Collection[Any]) -> list[Any]:
    """All combinations of these axes as parameters: as many plain ones as the longest axis is long, in which each value
    has its turn, the others marked slow. Of methods the first of each kind alone has a turn.
    """
    turns = [[value for value in axis if value in KINDS] or list(axis) for axis in axes]
    plain = [
        tuple(values[(turn + number * (turn // len(values))) % len(values)] for number, values in enumerate(turns))
        for turn in range(max(map(len, turns)))
    ]
    return [pytest.param(*each, marks=[pytest.mark.slow] * (each not in plain)) for each in product(*axes)]
