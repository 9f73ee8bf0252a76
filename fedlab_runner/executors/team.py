"""Threads of this process that compute the parts of one step at the same time."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import TypeVar

import torch

T = TypeVar("T")
MIN_SHARED_VALUES = 2**17  # of an element-wise step, from which on threads share it
ALIGNED_VALUES = 64  # each range of values begins at a multiple


class Team:
    """As many threads as torch has; the first is the calling thread.

    A thread for each part keeps all cores busy from the first to the last operation of a step. torch's own threads meet
    after every operation, and leave short operations to one of them.
    """

    def __init__(self) -> None:
        self.size = torch.get_num_threads()
        self._pool: ThreadPoolExecutor | None = None  # made for the first step with several parts

    def each(self, function: Callable[[int], T], parts: int) -> list[T]:
        """The results of `function(part)` for up to `size` parts, each in a thread.

        From the first step in parts to the end of the team, torch has one thread here too: waking its threads for the
        work between the steps takes longer than they save. An error of a part is raised when all parts have ended. Each
        thread has its own gradient mode and autocast: a function that needs others than the defaults must set them.
        """
        if parts == 1:
            return [function(0)]
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self.size - 1, initializer=torch.set_num_threads, initargs=(1,))
            self.alone()
        others = [self._pool.submit(function, part) for part in range(1, parts)]
        try:
            first = function(0)
        finally:
            wait(others)
        return [first, *(other.result() for other in others)]

    def ranges(self, values: int) -> list[slice]:
        """`values` numbers in equal ranges, one for each thread."""
        width = -(-values // (self.size * ALIGNED_VALUES)) * ALIGNED_VALUES
        return [slice(first, min(first + width, values)) for first in range(0, values, width)]

    def each_range(self, function: Callable[[slice], None], values: int) -> None:
        """Calls `function` for ranges of `values` numbers, if other threads have had parts and so would wait for this
        one; otherwise for all numbers at once.
        """
        ranges = self.ranges(values) if self._pool is not None and values >= MIN_SHARED_VALUES else []
        if len(ranges) > 1:
            self.each(lambda part: function(ranges[part]), len(ranges))
        else:
            function(slice(None))

    def alone(self) -> None:
        """Gives torch one thread until the team ends: for steps so small that to wake another takes longer."""
        torch.set_num_threads(1)

    def _end(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()
        torch.set_num_threads(self.size)


@contextmanager
def team() -> Iterator[Team]:
    """A team whose threads end with the context, so that the process can fork after it."""
    its = Team()
    try:
        yield its
    finally:
        its._end()
