"""CA2FL (Wang, Cao, Wu, Chen and Chen, ICLR 2024), Algorithm 2: FedBuff with cached update calibration.
https://openreview.net/forum?id=4aywmeb97I
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedlab_runner.algorithms.shared.averaging import Update, make_update, stepped
from fedlab_runner.core.algorithm import ServerAlgorithm
from fedlab_runner.core.client_state import PLACES, RowRef
from fedlab_runner.core.cohort import Cohort
from fedlab_runner.core.federation import Federation
from fedlab_runner.core.footprint import CohortLoad, Footprint, rows_of_each
from fedlab_runner.core.updates import Updates
from fedlab_runner.utils.validate import above, at_least, one_of


class CA2FLState(NamedTuple):
    """The server's model, the last update of every client, and the buffer."""

    params: Tensor  # x   [D]
    h_i: dict[int, RowRef]  # each [P], by client; zero for a client that has never reported
    h: Tensor  # [P], the mean of h_i over all N clients at the last emptying of the buffer
    buffer: Tensor  # [P], the sum of Delta_i - h_i since then
    statistics: Tensor  # [B], the sum of the batch norm statistics of these updates
    buffered: int  # updates in these sums


@dataclass(frozen=True)
class CA2FL(ServerAlgorithm[CA2FLState, Update]):
    """FedBuff calibrated by cached updates: the server steps by the mean difference between the buffered clients' new
    and last updates, plus the mean of all clients' last updates.

    The server steps after every `buffer_size` updates; `server_lr` scales its step. It keeps the clients' last updates
    on the device, the host or disk (`store_on`). Batch norm's statistics become the mean of the buffered updates'
    statistics.
    """

    buffer_size: int
    server_lr: float
    store_on: str

    model_copies: ClassVar[int] = 1  # the update is written over the trained model

    def __post_init__(self) -> None:
        at_least(1, buffer_size=self.buffer_size)
        above(0, server_lr=self.server_lr)
        one_of(PLACES, store_on=self.store_on)

    def footprint(self, fed: Federation, load: CohortLoad) -> Footprint:
        held = rows_of_each(self.store_on, load, fed.family.num_params)
        return self.holding(held)

    def init(self, fed: Federation) -> CA2FLState:
        x = fed.family.init(fed.seed)
        p = fed.family.num_params
        return CA2FLState(x, {}, x.new_zeros(p), buffer=x.new_zeros(p), statistics=x.new_zeros(len(x) - p), buffered=0)

    def client_update(self, state: CA2FLState, cohort: Cohort) -> Update:
        x = state.params
        return make_update(cohort.family, x, cohort.train(x), "delta")

    def server_step(self, state: CA2FLState, arrivals: Updates[Update], fed: Federation) -> CA2FLState:
        x, h_i, h, buffer, statistics, buffered = state
        h_i, rows = dict(h_i), fed.row_store(self.store_on, len(h))
        buffer, statistics, news = buffer.clone(), statistics.clone(), torch.empty_like(buffer)
        for i, delta, its in zip(arrivals.ids.tolist(), *arrivals.upload, strict=True):
            buffer += torch.sub(delta, rows.get(h_i[i]), out=news) if i in h_i else delta
            statistics += its
            rows.replace(h_i, i, delta)
            buffered += 1
            if buffered == self.buffer_size:
                v = h + buffer / self.buffer_size
                x = fed.optimized(x, stepped(x, self.server_lr * v, statistics / self.buffer_size))
                h = h + buffer / fed.population  # the buffer is the change of the sum of h_i
                buffer, statistics, buffered = torch.zeros_like(buffer), torch.zeros_like(statistics), 0
        fed.metrics.report(buffered=buffered, cached_clients=len(h_i))
        return CA2FLState(x, h_i, h, buffer, statistics, buffered)

    def cached(self, state: CA2FLState) -> int:
        return len(state.h) * (len(state.h_i) + 2) + len(state.statistics)  # h_i, h and the buffer

    def stands_still(self, arriving: Sequence[np.ndarray]) -> str | None:
        arrived = sum(map(len, arriving))
        if arrived >= self.buffer_size:
            return None
        return f"{arrived} updates arrive, and the server steps at {self.buffer_size}: lower algorithm.buffer_size"
