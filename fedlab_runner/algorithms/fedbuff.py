"""FedBuff (Nguyen et al., AISTATS 2022), Algorithm 1. https://arxiv.org/abs/2106.06639"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedlab_runner.algorithms.shared.averaging import Update, make_update, stepped
from fedlab_runner.core.algorithm import ServerAlgorithm
from fedlab_runner.core.cohort import Cohort
from fedlab_runner.core.federation import Federation
from fedlab_runner.core.footprint import CohortLoad, Footprint, MemoryItem
from fedlab_runner.core.updates import Updates
from fedlab_runner.utils.validate import above, at_least


class FedBuffState(NamedTuple):
    """The server's model and the updates that wait until the buffer is full."""

    params: Tensor  # x [D]
    buffer: Tensor  # [b, P], b < buffer_size changes, weighted by staleness
    statistics: Tensor  # [b, B], batch norm's of these updates


@dataclass(frozen=True)
class FedBuff(ServerAlgorithm[FedBuffState, Update]):
    """The server collects updates in a buffer and steps by the mean of every `buffer_size` updates, times `server_lr`.

    An update of staleness tau, in rounds, counts (1 + tau)^-staleness_exp. The paper's exponent is 0.5; with 0, as in
    Feddle's formula, all updates count alike. Clients count alike, however many examples they have. Batch norm's
    statistics become the mean of the statistics in the buffer.
    """

    buffer_size: int
    server_lr: float
    staleness_exp: float

    model_copies: ClassVar[int] = 1  # the update is written over the trained model

    def __post_init__(self) -> None:
        at_least(1, buffer_size=self.buffer_size)
        above(0, server_lr=self.server_lr)
        at_least(0, staleness_exp=self.staleness_exp)

    def footprint(self, fed: Federation, load: CohortLoad) -> Footprint:
        at_most = (max(0, min(n, self.buffer_size) - 1) for n in (load.trained, load.arriving))  # a full one is empty
        values, anew = (n * fed.family.size for n in at_most)
        return self.holding([MemoryItem(values, "the buffer", "lower algorithm.buffer_size", anew=anew)])

    def init(self, fed: Federation) -> FedBuffState:
        x = fed.family.init(fed.seed)
        p = fed.family.num_params
        return FedBuffState(x, buffer=x.new_zeros(0, p), statistics=x.new_zeros(0, len(x) - p))

    def client_update(self, state: FedBuffState, cohort: Cohort) -> Update:
        x = state.params
        return make_update(cohort.family, x, cohort.train(x), "delta")

    def server_step(self, state: FedBuffState, arrivals: Updates[Update], fed: Federation) -> FedBuffState:
        x, rows, new_statistics = state.params, arrivals.upload.rows, arrivals.upload.statistics
        weights = (1 + arrivals.staleness.to(x.dtype)) ** -self.staleness_exp
        buffer, statistics = state.buffer, state.statistics
        while len(buffer) + len(rows) >= self.buffer_size:
            taken = self.buffer_size - len(buffer)  # they need no copy in the buffer
            step = (buffer.sum(0) + weights[:taken] @ rows[:taken]) * (self.server_lr / self.buffer_size)
            mean = (statistics.sum(0) + new_statistics[:taken].sum(0)) / self.buffer_size
            x = fed.optimized(x, stepped(x, step, mean))  # lines 11 to 13
            buffer, statistics = buffer[:0], statistics[:0]
            weights, rows, new_statistics = weights[taken:], rows[taken:], new_statistics[taken:]
        buffer = torch.cat([buffer, weights.unsqueeze(1) * rows])  # line 8
        fed.metrics.report(buffered=len(buffer))
        return FedBuffState(x, buffer, torch.cat([statistics, new_statistics]))

    def cached(self, state: FedBuffState) -> int:
        return self.buffer_size * state.params.numel()  # the buffer when it is full

    def stands_still(self, arriving: Sequence[np.ndarray]) -> str | None:
        arrived = sum(map(len, arriving))
        if arrived >= self.buffer_size:
            return None
        return f"{arrived} updates arrive, and the server steps at {self.buffer_size}: lower algorithm.buffer_size"
