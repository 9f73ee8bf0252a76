"""Watches that a round leaves the State that it reads as it is: a checkpoint may be made of it at any time."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from fedlab_runner.core.updates import tensors_in
from fedlab_runner.utils.errors import UserError


class Overwritten(UserError):
    """An algorithm has written into its State, which must no longer be saved."""


@contextmanager
def untouched(state: Any, algorithm: object) -> Iterator[None]:
    """A context after which no tensor of a State may have been written into. Raises Overwritten."""
    before = _versions(state)
    yield
    if _versions(state) != before:
        raise Overwritten(
            f"{type(algorithm).__name__} writes into its State, of which a checkpoint may be made at any time: make "
            "new tensors, as x + y in place of x.add_(y)"
        )


def _versions(state: Any) -> list[int]:
    """How often each tensor, or the one that it is a view of, was written into."""
    return [0 if tensor.is_inference() else tensor._version for tensor in tensors_in(state)]
