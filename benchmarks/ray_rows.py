"""Rows of a Ray cluster on this machine."""

import math
from collections.abc import Callable, Iterator
from functools import partial
from unittest.mock import patch

import torch

from benchmarks import plain_rounds, workloads
from benchmarks.case import Case, Contender, Row
from benchmarks.workloads import Shape
from fedlab_runner.aggregators.mean import Mean
from fedlab_runner.core.federation import Federation
from fedlab_runner.executors._blocks import Blocks
from fedlab_runner.executors._ray import session
from fedlab_runner.executors.ray import Ray
from fedlab_runner.executors.vectorized import Vectorized

WIDE = Shape(40, 20, 40, 20)  # all clients take part, each with one minibatch


def rows(cores: int) -> Iterator[Row]:
    """A round whose models workers write into the run's memory, beside one whose models, or sums of them, are sent as
    from other machines.
    """
    yield Row("round of fedavg, wide mlp, Ray", partial(_sums, cores))


def on_workers(fed: Federation, work: Callable[[Federation, int], object]) -> Callable[[int], object]:
    """Joint work of a federation on workers of a cluster, as if its own machine had a single core."""
    fed.begin(0, 1.0)
    fed.cohort(fed.participants).train(fed.family.init(0), counted=False)  # the workers begin

    def one(turn: int) -> object:
        slow = {"usable_cores": lambda: 1, "EXCHANGE_SECONDS": 0.0, "BYTES_A_SECOND": math.inf}
        with patch.multiple(session, **slow):
            return work(fed, turn)

    return one


def _sums(cores: int) -> Case:
    built, feds = workloads.algorithm("fedavg"), list[Federation]()

    def ours(*, sent: bool, sum_every: int | None = None) -> Contender:
        executor = Ray(None, 0, Vectorized(chunk_size=10, compile=False))
        fed = WIDE.federation(workloads.wide_mlp, executor, aggregator=Mean(sum_every))
        state = built.init(fed)
        feds.append(fed)

        def one(round: int) -> torch.Tensor:
            nonlocal state
            fed.begin(round, 1.0)
            real = Blocks.staged
            with patch.object(Blocks, "staged", lambda blocks, work: (None, None) if sent else real(blocks, work)):
                state = built.round(state, fed)
            return built.models(state)

        return Contender(one, cores)

    fed = WIDE.federation(workloads.wide_mlp)
    clients = plain_rounds.Clients(fed, workloads.wide_mlp, WIDE.delays(0.0))
    contenders = {
        "plain": Contender(plain_rounds.FedAvg(clients), cores, plain=True),
        "ray": ours(sent=False),
        "ray, models sent": ours(sent=True),
        "ray, sums of 20 sent": ours(sent=True, sum_every=20),
    }
    return Case(contenders, lambda: workloads.counted_flops(feds[0]))
