"""Forks that work in lockstep: in every step each part needs the results of all others."""

import contextlib
import logging
import os
import socket
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from fedlab_runner.executors._fork.buffers import shared_zeros
from fedlab_runner.executors._fork.processes import Helper, answers, bury, fork, kill
from fedlab_runner.utils.torch_settings import one_thread

_log = logging.getLogger(__name__)
_STEP = b"s"  # message: a step is done


class HelperLost(Exception):
    """A helper has died."""


class SharedRows:
    """A table of rows. In every step each part fills its own rows and then reads all rows."""

    def __init__(self, memory: Tensor, meet: Callable[[], None]) -> None:
        self._memory, self._meet, self._step = memory, meet, 0

    def complete(self, rows: Tensor, values: Tensor) -> Tensor:
        """Fills some rows, waits for the other parts, and returns all rows of this step [M, ...], its own with their
        graph. Values with fewer places than the table fill its first places.
        """
        # Two tables in turns: no part begins the step after next before all parts have read this table.
        room = self._memory[self._step % 2, :, : values.shape[1]]
        self._step += 1
        room[rows] = values.detach()
        self._meet()
        return room.index_copy(0, rows, values)


def in_step(parts: int, shape: Sequence[int], dtype: torch.dtype, run: Callable[[int, SharedRows], None]) -> bool:
    """Calls `run(part, table)` for each part: the first part in this process, the others in forks.

    The forks must write their results into shared memory. The table has the shape [M, places, ...]. Returns False if a
    fork has died, which leaves the results incomplete.
    """
    memory = shared_zeros((2, *shape), dtype)
    helpers: list[Helper] = []

    def the_part(part: int) -> Callable[[socket.socket], None]:
        def run_part(line: socket.socket) -> None:
            run(part, SharedRows(memory, lambda: _follow(line)))
            line.send(_STEP)

        return run_part

    try:
        with one_thread():
            for part in range(1, parts):
                fork(helpers, the_part(part))
            run(0, SharedRows(memory, lambda: _lead(helpers)))
            _gather(helpers)
    except HelperLost as lost:
        _log.warning("%s: the work is done again in one process", lost)
        return False
    finally:
        kill(helpers)
    return True


def _follow(line: socket.socket) -> None:
    """In a helper: reports that its step is done, and waits until all helpers have done it."""
    line.send(_STEP)
    if not line.recv(1):
        os._exit(1)  # the parent has ended the work


def _lead(helpers: list[Helper]) -> None:
    _gather(helpers)
    for helper in helpers:
        with contextlib.suppress(OSError):  # the helper has died: noticed in the next step
            helper.line.send(_STEP)


def _gather(helpers: list[Helper]) -> None:
    """Waits until each helper has done the step."""
    for helper, said in answers(helpers):
        if said != _STEP:
            raise HelperLost(bury(helpers, helper, said))
