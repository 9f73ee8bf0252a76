"""Room for the frames of Python functions.

CPython takes the memory of frames from chunks of 16 KB, and gives a chunk back to the system when its first frame ends.
A loop whose calls begin a chunk asks the system for memory at every call, which takes longer than the call. Whether a
loop lies there depends on how deeply it is called.
"""

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")  # of a function
R = TypeVar("R")

OWN_VALUES = 2**16 + 1  # of 8 bytes, that a frame pretends to need; its chunk is the next power of two, 1 MB


def in_one_chunk(function: Callable[P, R]) -> Callable[P, R]:
    """The function, with a chunk for the frames of all that it calls in its thread: a half of 1 MB of addresses, of
    which memory is taken as calls reach it.
    """

    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        return function(*args, **kwargs)

    call.__code__ = call.__code__.replace(co_stacksize=OWN_VALUES)
    return functools.wraps(function)(call)
