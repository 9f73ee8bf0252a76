"""An executor that trains nobody, for what a run costs beside local training."""

import time
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from fedlab_runner.core.executor import OfOne, Parallel
from fedlab_runner.core.model_family import ModelFamily
from fedlab_runner.core.work import Work
from fedlab_runner.executors._chunks import SingleProcessExecutor, new_models
from fedlab_runner.executors.vectorized import Vectorized


class Mark(NamedTuple):
    """Seconds on the clocks."""

    wall: float
    cpu: float


MARKS: list[tuple[Mark, Mark]] = []  # the begin and the end of local training in each round of the run at hand


@dataclass(frozen=True)
class Idle(SingleProcessExecutor):
    """Works out the minibatches and hands back the models that clients started from."""

    def parallel(self, clients: int) -> Parallel:
        return Parallel(min(1, clients), 0, 0)

    def map_models(self, family: ModelFamily, function: OfOne, *rows: Tensor, fill: bool = False) -> list[Tensor]:
        return Vectorized(chunk_size=None, compile=False).map_models(family, function, *rows, fill=fill)

    def train(self, work: Work) -> tuple[Tensor, Tensor]:
        begin = _now()
        for _, rows in work.groups():
            work.plan(rows)
        y = new_models(work).copy_(work.starts())
        MARKS.append((begin, _now()))
        return y, y.new_zeros(len(y))


def _now() -> Mark:
    return Mark(time.perf_counter(), time.process_time())
