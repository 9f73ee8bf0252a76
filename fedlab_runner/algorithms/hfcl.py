"""HFCL (Elbir, Coleri and Mishra, 2021): the server trains like a client. https://arxiv.org/abs/2011.06892"""

from dataclasses import dataclass
from typing import ClassVar

import torch

from fedlab_runner.algorithms.shared.averaging import (
    Params,
    Update,
    check_averaging,
    in_time,
    make_update,
    stepped,
)
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
    its number of examples. `local.update_norm` bounds the clients' updates, not the server's. `late_policy`
    and `weighting` are those of FedAvg.
    """

    late_policy: str
    weighting: str

    reads_sums: ClassVar[bool] = True
    moves_alone: ClassVar[bool] = True
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
        arrived, uniform = in_time(arrivals, self.late_policy), self.weighting == "uniform"
        size = 1 if uniform else len(require_server_data(self, fed, in_domain=True))
        share = size / (size + (len(arrived) if uniform else int(arrived.num_examples.sum())))
        step, statistics = (
            torch.lerp(arrived.mean(rows, uniform=uniform), own[0], share)
            for rows, own in zip(arrived.upload, mine, strict=True)
        )
        if self.late_policy == "model":
            step = step - x[: len(step)]
        return Params(stepped(x, step, statistics))

    def operations(self, fed: Federation, local: float) -> float:
        steps = fed.local.steps
        return local + training_operations(fed, fed.local.epochs or steps or 0, fed.local.batch_size, steps)
