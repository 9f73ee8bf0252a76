"""FedLAW (Li, Lin, Shang and Wu, ICML 2023): learned weights of aggregation. https://arxiv.org/abs/2302.10911"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedlab_runner.algorithms.shared.averaging import Params, Update, make_update
from fedlab_runner.algorithms.shared.server_training import (
    check_server_training,
    require_server_data,
    server_batches,
    server_steps,
    train_on_server,
    training_operations,
)
from fedlab_runner.core.algorithm import ServerAlgorithm
from fedlab_runner.core.cohort import Cohort
from fedlab_runner.core.federation import Federation
from fedlab_runner.core.optimizer import Adam
from fedlab_runner.core.updates import Updates

ADAM = Adam(0.5, 0.999, 1e-8, 0.0, decoupled=False)  # what the authors' code learns the weights with


@dataclass(frozen=True)
class FedLAW(ServerAlgorithm[Params, Update]):
    """The server's model is gamma sum_j lambda_j y_j, over the models that have arrived: it learns the weights
    lambda = softmax(a), which start from the clients' sizes, and the shrinkage gamma = exp(b) on in-domain examples,
    with Adam, `lr` times `lr_decay` at every `lr_decay_epochs`.

    While the weights are learned, batch norm normalises by the server's minibatches; its statistics are then averaged
    by lambda.
    """

    lr: float
    epochs: int
    batch_size: int
    max_steps: int | None
    lr_decay: float
    lr_decay_epochs: int

    model_copies: ClassVar[int] = 1  # what is sent takes the place of what was trained

    def __post_init__(self) -> None:
        check_server_training(self.lr, self.epochs, self.batch_size, self.max_steps)
        if not 0 < self.lr_decay <= 1:
            raise ValueError(f"lr_decay must be > 0 and <= 1, got {self.lr_decay}")
        if self.lr_decay_epochs < 1:
            raise ValueError(f"lr_decay_epochs must be >= 1, got {self.lr_decay_epochs}")

    def check(self, fed: Federation) -> None:
        require_server_data(self, fed, in_domain=True)

    def init(self, fed: Federation) -> Params:
        self.check(fed)
        return Params(fed.family.init(fed.seed))

    def client_update(self, state: Params, cohort: Cohort) -> Update:
        x = state.params
        return make_update(cohort.family, x, cohort.train(x), "model")

    def server_step(self, state: Params, arrivals: Updates[Update], fed: Federation) -> Params:
        if not len(arrivals):
            return state
        y, statistics = arrivals.upload
        sizes = arrivals.num_examples.to(state.params)
        steps_per_epoch = server_steps(fed, 1, self.batch_size, None)

        def lr(t: int) -> float:
            done: int = t // steps_per_epoch // self.lr_decay_epochs
            return self.lr * self.lr_decay**done

        def combined(weights: Tensor) -> Tensor:
            """gamma sum_j lambda_j y_j [P], for weights (a, b) [A + 1]."""
            return torch.exp(weights[-1]) * (torch.softmax(weights[:-1], 0) @ y)

        start = torch.cat([torch.log(sizes / sizes.sum()), sizes.new_zeros(1), arrivals.mean(statistics)])
        batches = server_batches(fed, self.epochs, self.batch_size, self.max_steps)
        learned = train_on_server(fed, start, batches, lr, optimizer=ADAM, params_of=combined).model
        steps = server_steps(fed, self.epochs, self.batch_size, self.max_steps)
        fed.metrics.count_server_flops(steps * 4 * y.numel())  # of `combined` and its gradient
        weights = learned[: len(y) + 1]
        share = torch.softmax(weights[:-1], 0)
        fed.metrics.report(gamma=float(weights[-1].exp()), lambda_min=float(share.min()), lambda_max=float(share.max()))
        return Params(torch.cat([combined(weights), share @ statistics]))

    def operations(self, fed: Federation, local: float) -> float:
        combining = (
            server_steps(fed, self.epochs, self.batch_size, self.max_steps) * 4 * fed.cohort_size * fed.family.size
        )
        return local + training_operations(fed, self.epochs, self.batch_size, self.max_steps) + combining

    def models(self, state: Params) -> Tensor:
        return state.params
