"""FedLAW (Li, Lin, Shang and Wu, ICML 2023): learned weights of aggregation. https://arxiv.org/abs/2302.10911"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedlab_runner.algorithms.shared.averaging import Params, Update, make_update
from fedlab_runner.algorithms.shared.server_batches import server_batches, server_steps
from fedlab_runner.algorithms.shared.server_training import (
    ServerDataAlgorithm,
    check_server_training,
    train_on_server,
    training_operations,
)
from fedlab_runner.core.cohort import Cohort
from fedlab_runner.core.federation import Federation
from fedlab_runner.core.optimizer import Adam
from fedlab_runner.core.updates import Updates
from fedlab_runner.utils.validate import at_least, within

ADAM = Adam(0.5, 0.999, 1e-8, 0.0, decoupled=False)  # learns the weights (the authors' code)


@dataclass(frozen=True)
class FedLAW(ServerDataAlgorithm[Update]):
    """The server model is gamma sum_j lambda_j y_j over the arrived models y_j; the server learns lambda and gamma on
    in-domain examples.

    The weights lambda = softmax(a) start from the clients' sizes; gamma = exp(b) is the shrinkage. Adam has `lr`, which
    `lr_decay` multiplies every `lr_decay_epochs` epochs. During this learning batch norm normalises by the server's
    minibatches. Then the server averages the statistics by lambda.
    """

    lr: float
    epochs: int
    batch_size: int
    max_steps: int | None
    lr_decay: float
    lr_decay_epochs: int

    in_domain: ClassVar[bool] = True
    model_copies: ClassVar[int] = 1  # the update is written over the trained model

    def __post_init__(self) -> None:
        check_server_training(self.lr, self.epochs, self.batch_size, self.max_steps)
        within("(0, 1]", lr_decay=self.lr_decay)
        at_least(1, lr_decay_epochs=self.lr_decay_epochs)

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
        fed.metrics.count_server_flops(steps * 4 * y.numel())  # `combined` and its gradient
        weights = learned[: len(y) + 1]
        share = torch.softmax(weights[:-1], 0)
        fed.metrics.report(gamma=float(weights[-1].exp()), lambda_min=float(share.min()), lambda_max=float(share.max()))
        return Params(torch.cat([combined(weights), share @ statistics]))

    def operations(self, fed: Federation, local: float) -> float:
        combining = (
            server_steps(fed, self.epochs, self.batch_size, self.max_steps) * 4 * fed.cohort_size * fed.family.size
        )
        return local + training_operations(fed, self.epochs, self.batch_size, self.max_steps) + combining
