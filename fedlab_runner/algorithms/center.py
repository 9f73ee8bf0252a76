"""Center: training on the server's examples alone, without clients (Feddle, section 5, baseline a1)."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from torch import Tensor

from fedlab_runner.algorithms.shared.server_batches import server_batches
from fedlab_runner.algorithms.shared.server_training import (
    ADAM,
    check_server_training,
    require_server_data,
    train_on_server,
    training_operations,
)
from fedlab_runner.core.algorithm import Algorithm
from fedlab_runner.core.federation import Federation
from fedlab_runner.core.optimizer import zero_slots


class CenterState(NamedTuple):
    """The model, and the state of the one Adam of the whole training."""

    params: Tensor  # x [D]
    slots: tuple[Tensor, ...]  # of Adam, each [P]
    steps: int  # taken so far


@dataclass(frozen=True)
class Center(Algorithm[CenterState]):
    """The server trains alone: Adam on in-domain server data, one epoch a round, up to `epochs` (or `max_steps`)."""

    lr: float
    epochs: int
    batch_size: int
    max_steps: int | None

    model_copies: ClassVar[int] = 0  # no client trains
    payload_copies: ClassVar[int] = 0

    def __post_init__(self) -> None:
        check_server_training(self.lr, self.epochs, self.batch_size, self.max_steps)

    def check(self, fed: Federation) -> None:
        require_server_data(self, fed, in_domain=True)
        self.operations(fed, 0.0)  # of its minibatches, if these have a size that can be trained on

    def init(self, fed: Federation) -> CenterState:
        self.check(fed)
        x = fed.family.init(fed.seed)
        return CenterState(x, zero_slots(ADAM, x[: fed.family.num_params]), 0)

    def round(self, state: CenterState, fed: Federation) -> CenterState:
        fed.record_server_cache(sum(slot.numel() for slot in state.slots))
        fed.metrics.count_server_flops(0)  # in a round after the training too
        if fed.round >= self.epochs:
            return state
        left = None if self.max_steps is None else self.max_steps - state.steps
        batches = list(server_batches(fed, 1, self.batch_size, left))
        x, slots = train_on_server(fed, state.params, batches, self.lr, slots=state.slots, first_step=state.steps)
        return CenterState(x, slots, state.steps + len(batches))

    def operations(self, fed: Federation, local: float) -> float:
        return training_operations(fed, 1, self.batch_size, self.max_steps)

    def models(self, state: CenterState) -> Tensor:
        return state.params
