"""Fed+FT: FedAvg whose server fine-tunes on its own examples after each step (Feddle, section 5, baseline a2)."""

from dataclasses import dataclass
from typing import ClassVar

from fedlab_runner.algorithms.shared.averaging import Params, Update, average, check_averaging, make_update
from fedlab_runner.algorithms.shared.server_batches import server_batches
from fedlab_runner.algorithms.shared.server_training import (
    ServerDataAlgorithm,
    check_server_training,
    train_on_server,
    training_operations,
)
from fedlab_runner.core.cohort import Cohort
from fedlab_runner.core.federation import Federation
from fedlab_runner.core.updates import Updates


@dataclass(frozen=True)
class FedFT(ServerDataAlgorithm[Update]):
    """FedAvg, then `epochs` epochs of a fresh Adam on in-domain server data, even in rounds without arrivals.

    `late_policy` and `weighting` are those of FedAvg.
    """

    lr: float
    epochs: int
    batch_size: int
    max_steps: int | None
    late_policy: str
    weighting: str

    averages: ClassVar[bool] = True
    reads_sums: ClassVar[bool] = True
    moves_alone: ClassVar[bool] = True
    in_domain: ClassVar[bool] = True
    model_copies: ClassVar[int] = 1  # the update is written over the trained model

    def __post_init__(self) -> None:
        check_server_training(self.lr, self.epochs, self.batch_size, self.max_steps)
        check_averaging(self.late_policy, self.weighting, server_lr=1.0)

    def client_update(self, state: Params, cohort: Cohort) -> Update:
        x = state.params
        return make_update(cohort.family, x, cohort.train(x), self.late_policy)

    def server_step(self, state: Params, arrivals: Updates[Update], fed: Federation) -> Params:
        x = average(state.params, arrivals, self.late_policy, self.weighting, server_lr=1.0)
        batches = server_batches(fed, self.epochs, self.batch_size, self.max_steps)
        return Params(train_on_server(fed, x, batches, self.lr).model)

    def operations(self, fed: Federation, local: float) -> float:
        return local + training_operations(fed, self.epochs, self.batch_size, self.max_steps)
