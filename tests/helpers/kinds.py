"""One method of each kind.

The contract of algorithms is proved for all of them in every call of pytest. What another layer adds to it, such as
files of a run or a guard, is proved for one method of each kind, and for the others in the slow tests.
"""

from collections.abc import Iterable
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
