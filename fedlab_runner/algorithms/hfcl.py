"""HFCL (Elbir, Coleri and Mishra, 2021): the server trains like a client. https://arxiv.org/abs/2011.06892"""

from dataclasses import dataclass
from typing import ClassVar

import torch

from fedlab_runner.algorithms.shared.averaging import Params, Update, average, check_averaging, make_update
from fedlab_runner.algorithms.shared.server_training import (
    ServerDataAlgorithm,
    require_server_data,
    train_as_client,
    training_operations,
)
from fedlab_runner.core.cohort import Cohort
from fedlab_runner.core.federation import Federation
from fedlab_runner.core.updates import Updates


@dataclass(frozen=True)
class HFCL(ServerDataAlgorithm[Update]):
    """FedAvg over the arrived updates and an update by the server itself, which is never late.

    The server trains its present model with the clients' optimiser and epochs on in-domain server data. It counts by
    its number of examples. `late_policy` and `weighting` are those of FedAvg.
    """

    late_policy: str
    weighting: str

    in_domain: ClassVar[bool] = True
    model_copies: ClassVar[int] = 1  # the update is written over the trained model

    def __post_init__(self) -> None:
        check_averaging(self.late_policy, self.weighting, server_lr=1.0)

    def client_update(self, state: Params, cohort: Cohort) -> Update:
        x = state.params
        return make_update(cohort.family, x, cohort.train(x), self.late_policy)

    def server_step(self, state: Params, arrivals: Updates[Update], fed: Federation) -> Params:
        x = state.params
        mine = make_update(fed.family, x, train_as_client(fed, x).unsqueeze(0), self.late_policy)
        size = len(require_server_data(self, fed, in_domain=True))
        everyone = Updates(
            Update(*(torch.cat(pair) for pair in zip(arrivals.upload, mine, strict=True))),
            torch.cat([arrivals.ids, arrivals.ids.new_full((1,), -1)]),
            torch.cat([arrivals.num_examples, arrivals.num_examples.new_full((1,), size)]),
            torch.cat([arrivals.staleness, arrivals.staleness.new_zeros(1)]),
        )
        return Params(average(x, everyone, self.late_policy, self.weighting, server_lr=1.0))

    def operations(self, fed: Federation, local: float) -> float:
        steps = fed.local.steps
        return local + training_operations(fed, fed.local.epochs or steps or 0, fed.local.batch_size, steps)
