"""Minibatches of the server's own examples."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedlab_runner.core.federation import Federation
from fedlab_runner.core.model_family import Batch
from fedlab_runner.core.rng import Purpose, generator
from fedlab_runner.core.server_data import ServerData
from fedlab_runner.utils.errors import UserError


@dataclass(frozen=True)
class ServerBatches:
    """Minibatches of the server's examples, or of other data, reshuffled in each epoch; each iteration gives the same.

    Their order is a function of (seed, `purpose`, round, `stage`). An algorithm has a stage for each use of the data in
    a round. `teach(inputs)` gives the targets instead of the labels. The last partial minibatch counts. With `training`
    it does not if it has a single example, on which batch norm would train. Raises UserError if all would be so small.
    """

    fed: Federation
    data: ServerData
    epochs: int
    batch_size: int
    max_steps: int | None
    stage: int
    training: bool
    purpose: Purpose
    teach: Callable[[Tensor], Tensor] | None = None

    def __post_init__(self) -> None:
        if self.batch_size == 1 and self._drops_single:
            raise UserError("algorithm.batch_size must be > 1 for a model with batch norm, got 1")

    def __iter__(self) -> Iterator[Batch]:
        family, inputs, labels = self.fed.family, self.data.inputs, self.data.targets
        for index in self.indices():
            ones = torch.ones(len(index), dtype=family.dtype, device=family.device)
            some = inputs.index_select(0, index).to(family.device)
            batch = family.batch(some, labels[index].to(family.device), ones)
            yield batch if self.teach is None else batch._replace(targets=self.teach(batch.inputs))

    def __len__(self) -> int:
        whole, rest = divmod(len(self.data), self.batch_size)
        steps = self.epochs * (whole + (rest > 0 and not (rest == 1 and self._drops_single)))
        return steps if self.max_steps is None else min(steps, self.max_steps)

    def indices(self) -> Iterator[Tensor]:
        """The examples of each minibatch [b] int64."""
        rng, n, steps = generator(self.fed.seed, self.purpose, self.fed.round, self.stage), len(self.data), 0
        for _ in range(self.epochs):
            order = torch.from_numpy(rng.permutation(n)).to(self.data.inputs.device)
            for index in torch.split(order, self.batch_size):
                if (self._drops_single and len(index) == 1) or not len(index):
                    continue
                if self.max_steps is not None and steps >= self.max_steps:
                    return
                steps += 1
                yield index

    def taught(self, teach: Callable[[Tensor], Tensor]) -> "ServerBatches":
        """The same minibatches with the targets `teach(inputs)`, of normalised inputs [b, ...]."""
        return replace(self, teach=teach)

    @property
    def _drops_single(self) -> bool:
        return self.training and self.fed.family.has_batch_norm and len(self.data) > 1


def server_batches(
    fed: Federation,
    epochs: int,
    batch_size: int,
    max_steps: int | None = None,
    *,
    targets: Tensor | None = None,
    stage: int = 0,
    training: bool = True,
    data: ServerData | None = None,
    purpose: Purpose = Purpose.SERVER_BATCHES,
) -> ServerBatches:
    """The `ServerBatches` of the server's examples or of other `data`; `targets` [n, ...] replace the labels."""
    data = fed.server_data if data is None else data
    assert data is not None
    data = data if targets is None else replace(data, targets=targets)
    return ServerBatches(fed, data, epochs, batch_size, max_steps, stage, training, purpose)


def server_steps(fed: Federation, epochs: int, batch_size: int, max_steps: int | None) -> int:
    """The number of minibatches of the server's examples for training; 0 without examples."""
    return 0 if fed.server_data is None else len(server_batches(fed, epochs, batch_size, max_steps))
