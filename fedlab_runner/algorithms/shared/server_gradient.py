"""The gradient of a loss on minibatches of the server. Several threads compute the parts of large minibatches."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType

import torch
import torch.nn.functional as F
from torch import Tensor

from fedlab_runner.core.additions import Loss
from fedlab_runner.core.model_family import Batch, FunctionalModel, ModelFamily
from fedlab_runner.executors.team import Team

MIN_PART = 8  # examples of a part
MIN_SHARED_FLOPS = 2e8  # floating-point operations of a minibatch, from which on threads share its parts


class _BoundModel(FunctionalModel):
    """The model that the family's module is bound to."""

    def __call__(self, inputs: Tensor, instead: dict[str, Tensor] | None = None) -> Tensor:
        assert not instead
        return self.family.forward(None, inputs)


class ServerGradient:
    """The gradient at the model w [D] that the family's module is bound to. Writing into w moves the model."""

    def __init__(
        self,
        family: ModelFamily,
        w: Tensor,
        leaves: list[Tensor],
        training: bool,
        instead: Mapping[str, Tensor],
        of: Team,
    ) -> None:
        self._team, self._family, self._training = of, family, training
        self._model = _BoundModel(family, w[: family.num_params], w[family.num_params :])
        named = zip(family.layout.items(), leaves, strict=False)  # parameters come first
        self._leaves = [(begin, shape.numel(), leaf) for (k, (begin, shape)), leaf in named if k not in instead]
        self._rows = w.new_zeros(0, family.num_params)
        # Batch norm in training needs the whole minibatch, and dropout draws from one stream.
        whole = training and (family.keeps_statistics or family.draws)
        self._most = 1 if whole or family.device.type != "cpu" else of.size

    def __call__(self, batch: Batch, loss: Loss | None = None) -> tuple[Tensor, Tensor]:
        """The gradient [P] of `loss(model, batch)`, a mean over the examples (None: the family's), and the loss.

        The gradient is valid until the next call. A replaced parameter has the gradient zero. In training mode the call
        updates batch norm's statistics in w.
        """
        family, count, of_one = self._family, len(batch.mask), loss or self._family.loss
        parts = parts_of(batch.inputs, family.flops(batch.inputs).step, self._most)
        family.mode(self._training, frozen_norm=self._training and count == 1)
        if len(self._rows) < parts:
            self._rows = self._rows.new_zeros(parts, family.num_params)
        columns = (torch.tensor_split(column, parts) for column in batch[:3])
        batches = [Batch(*part) for part in zip(*columns, strict=True)] if parts > 1 else [batch]

        def of_part(part: int) -> Tensor:
            its, row = batches[part], self._rows[part]
            value = of_one(self._model, its)
            if parts > 1:
                value = value * (len(its.mask) / count)
            found = torch.autograd.grad(value, [leaf for *_, leaf in self._leaves], materialize_grads=True)
            for (begin, size, leaf), g in zip(self._leaves, found, strict=True):
                row[begin : begin + size].view(leaf.shape).copy_(g)
            return value.detach()

        values = self._team.each(of_part, parts)
        if parts == 1:
            return self._rows[0], values[0]
        return self._rows[:parts].sum(0), torch.stack(values).sum()


def cross_entropy(model: FunctionalModel, batch: Batch) -> Tensor:
    """The mean over the minibatch, for any number of classes."""
    return F.cross_entropy(model(batch.inputs), batch.targets)


def parts_of(inputs: Tensor, flops: int, most: int) -> int:
    """The number of parts, up to `most`, of a minibatch whose examples take `flops` operations each."""
    if len(inputs) * flops < MIN_SHARED_FLOPS:
        return 1
    return max(1, min(most, len(inputs) // MIN_PART))


@contextmanager
def server_gradient(
    family: ModelFamily,
    w: Tensor,
    team: Team,
    *,
    training: bool = True,
    instead: Mapping[str, Tensor] = MappingProxyType({}),
) -> Iterator[ServerGradient]:
    """A context in which the family's module is bound to w [D]; `instead` replaces parameters by name, of any size."""
    with family.bound(w) as leaves:
        for name, value in instead.items():
            family.module.get_parameter(name).data = value  # until `bound` ends
        yield ServerGradient(family, w, leaves, training, instead, team)
