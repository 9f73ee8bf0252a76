"""Errors that Hydra must pass on: of a job's it prints lines of its own, and after a callback's it goes on."""

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
