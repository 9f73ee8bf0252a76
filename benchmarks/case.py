"""What a row of the benchmark is made of."""

from collections.abc import Callable
from typing import NamedTuple


class Contender(NamedTuple):
    """What is called with the number of the turn, and the threads that it may use; `plain` is what is not this
    package's; `note` says what there is to know when all is over. In each turn its first `warm` rounds do not count.
    """

    call: Callable[[int], object]
    threads: int = 1
    plain: bool = False
    note: Callable[[], str] = str
    warm: int = 2


class Case(NamedTuple):
    """Contenders by name, the first is the measure; and what a call computes, where that is known: products of matrices
    and convolutions in FLOPs, which may be asked for when all is over, and pieces of work of which one is to be told.
    """

    contenders: dict[str, Contender]
    flops: float | Callable[[], float] | None = None
    pieces: tuple[int, str] | None = None


class Row(NamedTuple):
    """One comparison, made when its turn has come."""

    name: str
    case: Callable[[], Case]
