"""FedAvg's server, for algorithms that differ in what their clients do."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedlab_runner.algorithms.shared.averaging import Params, Update, all_discarded, average, check_averaging
from fedlab_runner.core.algorithm import ServerAlgorithm
from fedlab_runner.core.federation import Federation
from fedlab_runner.core.updates import Updates


@dataclass(frozen=True)
class AveragingServer(ServerAlgorithm[Params, Update]):
    """The base of algorithms whose server's model is the mean of the clients' models.

    `late_policy` says what the server does with late updates: it adds their changes to its present model (delta),
    averages the late models (model) or drops them (discard). `weighting` says how clients count (size, uniform).
    `server_lr` scales the server's step (1: the paper's).
    """

    late_policy: str
    weighting: str
    server_lr: float

    averages: ClassVar[bool] = True
    reads_sums: ClassVar[bool] = True
    model_copies: ClassVar[int] = 1  # the update is written over the trained model

    def __post_init__(self) -> None:
        check_averaging(self.late_policy, self.weighting, self.server_lr)

    def init(self, fed: Federation) -> Params:
        return Params(fed.family.init(fed.seed))

    def server_step(self, state: Params, arrivals: Updates[Update], fed: Federation) -> Params:
        return Params(average(state.params, arrivals, self.late_policy, self.weighting, self.server_lr))

    def stands_still(self, arriving: Sequence[np.ndarray]) -> str | None:
        return all_discarded(self.late_policy, arriving)
