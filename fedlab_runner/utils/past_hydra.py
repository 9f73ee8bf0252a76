"""Carries errors through Hydra, which prints its own lines for an error of a job and goes on after a callback's."""

from collections.abc import Iterator
from contextlib import contextmanager


class PastHydra(BaseException):
    """Carries an error, its cause, through Hydra, which catches each Exception."""


@contextmanager
def past_hydra() -> Iterator[None]:
    """Turns an Exception within the block into PastHydra, whose cause it is."""
    try:
        yield
    except Exception as error:
        raise PastHydra from error
