"""Finds own code that writes into what it must only read."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from fedlab_runner.utils.errors import UserError


class Overwritten(UserError):
    """A method has written into what a checkpoint would hold, which must no longer be saved."""


@contextmanager
def only_read(component: object, method: str, what: str, value: Any) -> Iterator[None]:
    """`unchanged` for the block that calls a component's method."""
    with unchanged(f"{type(component).__name__}.{method}", what, value):
        yield


@contextmanager
def unchanged(name: str, what: str, value: Any) -> Iterator[None]:
    """Raises Overwritten if the block, which calls the function of this name, writes into a value: into one of its
    tensors or the tensor that it is a view of, or into its dicts and lists. It does so also if the block is
    interrupted.
    """
    before = _marks(value)
    told = False
    try:
        yield
    except Overwritten:  # of a method that this one has called
        told = True
        raise
    finally:
        if not told and _marks(value) != before:
            raise Overwritten(
                f"{name} writes into {what}, which the run may read again and save at any "
                "time: make new ones, as x + y in place of x.add_(y), or {**rows, i: y} in place of rows[i] = y"
            )


def _marks(value: Any) -> Any:
    """What a write into a value changes."""
    if isinstance(value, Tensor):  # torch counts what is written into a tensor and its views
        return id(value), 0 if value.is_inference() else value._version
    if isinstance(value, dict):
        return [(key, _marks(item)) for key, item in value.items()]
    if isinstance(value, tuple | list):
        return [_marks(item) for item in value]
    return value if isinstance(value, int | float | str | None) else id(value)
