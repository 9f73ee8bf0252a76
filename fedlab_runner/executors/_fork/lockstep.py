"""Work of one machine whose parts need in every step what the others have found: forks that wait for each other."""

import contextlib
import logging
import os
import socket
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from fedlab_runner.executors._fork.buffers import shared_zeros
from fedlab_runner.executors._fork.processes import Helper, answers, bury, fork, kill, one_thread

_log = logging.getLogger(__name__)
_STEP = b"s"


class HelperLost(Exception):
    """A helper has died."""


class SharedRows:
    """Rows of which every part fills its own in every step, and then reads all."""

    def __init__(self, memory: Tensor, meet: Callable[[], None]) -> None:
        self._memory, self._meet, self._step = memory, meet, 0

    def complete(self, rows: Tensor, values: Tensor) -> Tensor:
        """All rows of this step [M, ...] once each part has filled its own; valid until the next step but one.

        A step whose values have fewer places than the table has fills the first of them.
        """
        # Two in turns: nobody begins the step after next before all have read this one.
        room = self._memory[self._step % 2, :, : values.shape[1]]
        self._step += 1
        room[rows] = values.detach()
        self._meet()
        return room


def in_step(parts: int, shape: Sequence[int], dtype: torch.dtype, run: Callable[[int, SharedRows], None]) -> bool:
    """Calls `run(part, table)` for each part, the first here and the others in forks, whose results must be written
    into shared memory; the table has the given shape [M, places, ...]. False if a fork has died: nothing is whole then.
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
    """In a helper: the step is done here; until it is everywhere."""
    line.send(_STEP)
    if not line.recv(1):
        os._exit(1)  # the parent has gone on without


def _lead(helpers: list[Helper]) -> None:
    _gather(helpers)
    for helper in helpers:
        with contextlib.suppress(OSError):  # it has died since: noticed in the next step
            helper.line.send(_STEP)


def _gather(helpers: list[Helper]) -> None:
    """Until each helper has done the step."""
    for helper, said in answers(helpers):
        if said != _STEP:
            raise HelperLost(bury(helpers, helper, said))
