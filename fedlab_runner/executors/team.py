"""Threads of this process that do the parts of one step at the same time."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import TypeVar

import torch

T = TypeVar("T")


class Team:
    """As many threads as torch has, of which this one is the first.

    A thread for each part of a step keeps all cores busy from its first to its last operation; torch's own threads meet
    after every operation, and do the short ones alone.
    """

    def __init__(self) -> None:
        self.size = torch.get_num_threads()
        self._pool: ThreadPoolExecutor | None = None  # before the first step that is shared

    def each(self, function: Callable[[int], T], parts: int) -> list[T]:
        """The results of `function(part)` for up to `size` parts, each in a thread.

        From the first step in parts on, torch has one thread here too until the team ends: to wake its threads for what
        lies between the steps takes longer than they save. An error of a part is raised when all parts have ended.
        Gradient mode and autocast are a thread's own: a function that needs another than the default says so.
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

    def alone(self) -> None:
        """Gives torch one thread until the team ends: for steps so small that to wake another takes longer."""
        torch.set_num_threads(1)

    def _end(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()
        torch.set_num_threads(self.size)


@contextmanager
def team() -> Iterator[Team]:
    """A team whose threads end with the context, so that a process can be forked after it."""
    its = Team()
    try:
        yield its
    finally:
        its._end()
