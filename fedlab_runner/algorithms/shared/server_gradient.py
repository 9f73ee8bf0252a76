"""The gradient of a loss on minibatches of the server. Several threads compute the parts of large minibatches."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from types import MappingProxyType
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import grad_and_value

from fedlab_runner.core.additions import Loss, lasts
from fedlab_runner.core.federation import Federation
from fedlab_runner.core.layered_model import LayeredModel
from fedlab_runner.core.model_family import Batch, FunctionalModel, ModelFamily
from fedlab_runner.core.network_trial import tolerance_of
from fedlab_runner.executors.graphs import Graph, graph_of
from fedlab_runner.executors.team import Team
from fedlab_runner.utils.signals import deferred

_log = logging.getLogger(__name__)
Gradients = Sequence[Tensor]  # of each parameter that is not replaced
MIN_PART = 8  # examples of a part
MIN_SHARED_FLOPS = 2e8  # floating-point operations of a minibatch, from which on threads share its parts


class Batches(Protocol):
    """Minibatches, and how many there are."""

    def __iter__(self) -> Iterator[Batch]: ...

    def __len__(self) -> int: ...


class _BoundModel(FunctionalModel):
    """The model that the family's module is bound to."""

    def __call__(self, inputs: Tensor, instead: dict[str, Tensor] | None = None) -> Tensor:
        assert not instead
        return self.family.forward(None, inputs)


class ServerGradient:
    """The gradient at the model w [D] that the family's module is bound to. Writing into w moves the model."""

    def __init__(
        self,
        fed: Federation,
        w: Tensor,
        leaves: list[Tensor],
        steps: int,
        training: bool,
        instead: Mapping[str, Tensor],
        of: Team,
    ) -> None:
        family = fed.family
        self._fed, self._team, self._family, self._steps, self._training = fed, of, family, steps, training
        buffers = w[family.num_params :]
        self._model = _BoundModel(family, w[: family.num_params], buffers)
        named = list(zip(family.layout.items(), leaves, strict=False))  # parameters come first
        self._names = [k for (k, _), _ in named if k not in instead]
        self._leaves = [(begin, shape.numel(), leaf) for (k, (begin, shape)), leaf in named if k not in instead]
        replaced = {k: leaf.detach() for (k, _), leaf in named if k in instead}
        self._values = replaced | ({} if training else family.buffer_views(buffers))  # that have no gradient
        self._rows = w.new_zeros(0, family.num_params)
        # What mixes examples, as batch norm does, needs the whole minibatch, and dropout draws from one stream.
        whole = training and (family.mixes or family.draws)
        self._most = 1 if whole or family.device.type != "cpu" else of.size
        # The shape and the loss of the first minibatch, and whether minibatches like it are compiled.
        self._compiled: tuple[torch.Size, Loss | None, bool] | None = None

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
        graphs = self._graphs(batches, batch.inputs.shape, loss)
        gradient = partial(self._of_graph, graphs) if graphs else self._of_module

        def of_part(part: int) -> Tensor:
            its, row = batches[part], self._rows[part]
            value, found = gradient(of_one, its, len(its.mask) / count)
            for (begin, size, leaf), g in zip(self._leaves, found, strict=True):
                row[begin : begin + size].view(leaf.shape).copy_(g)
            return value

        values = self._team.each(of_part, parts)
        if parts == 1:
            return self._rows[0], values[0]

        def add(its: slice) -> None:
            for row in self._rows[1:parts]:
                self._rows[0, its] += row[its]

        self._team.each_range(add, self._rows.shape[1])
        return self._rows[0], torch.stack(values).sum()

    def _of_module(self, of_one: Loss, its: Batch, share: float) -> tuple[Tensor, Gradients]:
        """`share` times the loss of a part, and its gradient by each leaf."""
        value = of_one(self._model, its)
        if share != 1:
            value = value * share
        leaves = [leaf for *_, leaf in self._leaves]
        return value.detach(), torch.autograd.grad(value, leaves, materialize_grads=True)

    def _of_graph(self, graphs: dict[int, Graph], _: Loss, its: Batch, share: float) -> tuple[Tensor, Gradients]:
        """What `_of_module` gives, by compiled code."""
        leaves, fixed = [leaf.detach() for *_, leaf in self._leaves], list(self._values.values())
        found, value = graphs[len(its.mask)](leaves, fixed, its.mask.new_tensor(share), *its[:3])
        return value, found

    def _graphs(self, parts: list[Batch], shape: torch.Size, loss: Loss | None) -> dict[int, Graph]:
        """The graphs of these parts by size; none if minibatches of this shape are not compiled. The first minibatch
        decides: a last one of fewer examples would need graphs of its own.
        """
        family = self._family
        if self._compiled is None:
            operations = shape[0] * family.flops(parts[0].inputs).step
            draws = self._training and (family.writes_buffers or family.draws)
            worth = family.device.type == "cpu" and lasts(loss) and not draws
            asked = family, " x ".join(map(str, shape)), self._steps, self._steps * operations, self._fed.round
            self._compiled = shape, loss, worth and self._steps > 0 and self._fed.executor.compiles(*asked)
        if self._compiled != (shape, loss, True):
            return {}
        if len(parts) > 1:
            self._team.alone()  # a graph is compiled for the threads of its first call
        found = {len(its.mask): graph for its in parts if (graph := self._graph(its, loss)) is not None}
        return found if all(len(its.mask) in found for its in parts) else {}

    def _graph(self, its: Batch, loss: Loss | None) -> Graph | None:
        """The graph of parts like this one; None if the compiler fails. This thread compiles it, and compares the
        gradient with that of the module.
        """
        family = self._family
        key = ("server", loss, self._training, its.inputs.shape, tuple(self._values), family.active_part)
        if key not in family.compiled:
            graph = graph_of(_gradient(family, loss, self._names, list(self._values)), layer_by_layer=True, whole=True)
            how = loss or family.loss, its, 1.0
            with deferred():
                try:
                    apart = _apart(self._of_graph({len(its.mask): graph}, *how)[1], self._of_module(*how)[1])
                    fault = "they differ from uncompiled ones" if apart > tolerance_of(family) else None
                except Exception as error:  # of the compiler, of whatever type
                    fault = (str(error).splitlines() or [repr(error)])[0]
            if fault is not None:
                _log.warning("the server's steps are not compiled: %s", fault)
            family.compiled[key] = graph if fault is None else None
        found: Graph | None = family.compiled[key]
        return found


def _gradient(family: ModelFamily, loss: Loss | None, names: list[str], fixed: list[str]) -> Graph:
    """(parameters by the names, fixed values, share, inputs, targets, mask) -> the gradients, and the loss."""

    def gradient(layers: list[Tensor], values: list[Tensor], share: Tensor, *batch: Tensor) -> Any:
        held = dict(zip(fixed, values, strict=True))

        def objective(layers: list[Tensor]) -> Tensor:
            model = LayeredModel(family, dict(zip(names, layers, strict=True)), share.new_zeros(0), fixed=held)
            return share * (loss or family.loss)(model, Batch(*batch))

        return grad_and_value(objective)(layers)

    return gradient


def _apart(mine: Gradients, theirs: Gradients) -> float:
    """The length of the difference of two gradients, relative to the second."""
    one, other = (torch.cat([g.flatten() for g in each]).double() for each in (mine, theirs))
    return float((one - other).norm() / other.norm().clamp_min(torch.finfo(other.dtype).tiny))


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
    fed: Federation,
    w: Tensor,
    team: Team,
    steps: int = 0,
    *,
    training: bool = True,
    instead: Mapping[str, Tensor] = MappingProxyType({}),
) -> Iterator[ServerGradient]:
    """A context in which the family's module is bound to w [D]; `instead` replaces parameters by name, of any size.

    If a round has so many `steps` that the executor compiles them, those of the first minibatch's size are compiled.
    """
    with fed.family.bound(w) as leaves:
        for name, value in instead.items():
            fed.family.module.get_parameter(name).data = value  # until `bound` ends
        yield ServerGradient(fed, w, leaves, steps, training, instead, team)
